/* Grids of experts and the scores over them, as beam searches and mixtures take them. */
#ifndef SKEP_CLIENT_GRID_H
#define SKEP_CLIENT_GRID_H

#include <skep/beam.h>
#include "client/client_internal.h"
#include "dht/directory/beam.h"

/* SKEP_INVALID_ARGUMENT naming what is wrong with it. */
skep_status grid_check(const struct skep_grid *grid, struct skep_error *err);
int64_t grid_total(const struct skep_grid *grid); /* sum of the sizes */
/* "ffn.[4, 4]", cut to cap; returns text. */
const char *grid_describe(const struct skep_grid *grid, char *text, size_t cap);

/* Scores as doubles: dimension d has samples times sizes[d] numbers. */
struct score_lines {
    size_t samples;
    bool wide;                         /* a tensor of them was float64 */
    double *lines[SKEP_GRID_MAX_DIMS]; /* owned: score_lines_fini() */
};
/* Room for this many samples, zeroed. */
skep_status score_lines_init(struct score_lines *out, const struct skep_grid *grid, size_t samples,
                             struct skep_error *err);
/* From tensors. SKEP_INVALID_ARGUMENT naming the one whose shape or type is wrong. */
skep_status score_lines_read(struct score_lines *out, const struct skep_grid *grid,
                             const DLTensor *const *scores, struct skep_error *err);
void score_lines_fini(struct score_lines *scores); /* NULL and zeroed are allowed */

/* A search on behalf of a client: query.prefix, dims, sizes, samples and scores are filled in here;
 * the rest is the caller's. beam_result_free(). */
skep_status grid_search(struct skep_client *client, const struct skep_grid *grid,
                        const struct score_lines *scores, bool pass_over_failing,
                        struct beam_query *query, struct beam_result *out, struct skep_error *err);

/*
 * What it means that a search has found no expert at all, in one sentence for every reason and for
 * whoever searched: which grid of which swarm, for how long, why.
 * @return SKEP_NOT_FOUND: nobody serves one; SKEP_UNAVAILABLE: no DHT peer could be asked;
 *         SKEP_DEADLINE_EXCEEDED: time was up.
 */
skep_status grid_found_nobody(const struct skep_client *client, const struct skep_grid *grid,
                              const struct beam_result *found, uint64_t started_us, const char *who,
                              struct skep_error *err);

#endif
