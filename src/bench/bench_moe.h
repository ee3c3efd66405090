/* The parts of `skep bench moe`. */
#ifndef SKEP_BENCH_BENCH_MOE_H
#define SKEP_BENCH_BENCH_MOE_H

#include "bench/bench_frame.h"

enum { BENCH_MOE_MAX_RUNS = 20 };

struct bench_moe {
    struct bench_frame *frame;
    size_t peers, nodes, side; /* of the network and its grid */
    size_t batches;            /* watched searches a run */
    size_t searches;           /* cold ones */
    size_t passes;             /* forward passes a run */
};

/* Beam search: watched, and unwatched and cold. Starts processes: before the others. */
SKEP_MUST_CHECK skep_status bench_moe_search(struct bench_moe *b, struct skep_error *err);
/* Forward passes of a mixture, against its calls alone. */
SKEP_MUST_CHECK skep_status bench_moe_calls(struct bench_moe *b, struct skep_error *err);

#endif
