/*
 * What every mixture layer does, whatever its weights are: choose experts, gather their rows, call
 * them, add up. A pass (struct skep_moe_pass) holds what backward needs.
 *
 *   pass_new -> pass_route -> pass_call -> (the layer sets weights) -> pass_combine
 *                             (pass_route_more, if experts fail)
 *            -> pass_shares -> pass_call_back -> pass_fini
 */
#ifndef SKEP_CLIENT_MIXTURE_H
#define SKEP_CLIENT_MIXTURE_H

#include <skep/moe.h>
#include "client/fanout.h"
#include "client/gate.h"
#include "client/grid.h"
#include "client/rows.h"

/* A layer: its settings and, if it has one, its projection. */
struct mixture {
    struct skep_client *client;
    struct skep_moe_options options; /* grid.prefix is owned */
    struct gate gate;
};
skep_status mixture_init(struct mixture *m, struct skep_client *client,
                         const struct skep_moe_options *options, struct skep_error *err);
void mixture_fini(struct mixture *m); /* zeroed is allowed */

/* One expert of one sample. */
struct pair {
    uint32_t call; /* FANOUT_NO_CALL: its score is -infinity, or memory was short */
    uint32_t row;  /* in that call */
    bool answered; /* in forward */
    bool answered_back;
    double weight; /* the layer's; of what did not answer 0 */
    double dot;    /* of the gradient of y and its output */
};

struct skep_moe_pass {
    const struct mixture *mixture;
    size_t samples;
    size_t k; /* places of a sample: k_best, and behind them those asked when these have failed */
    uint64_t deadline_us, started_us;
    DLDataType dtype;
    int x_ndim, y_ndim; /* with the batch */
    int64_t x_shape[SKEP_TENSOR_MAX_DIMS], y_shape[SKEP_TENSOR_MAX_DIMS];
    size_t x_width, y_width;
    struct score_lines scores;           /* owned */
    struct gate_input gate_input;        /* owned; with a projection */
    struct beam_result found;            /* owned; of the first search, and experts of later ones */
    struct skep_remote_expert **experts; /* owned */
    struct beam_hit *hits;               /* owned: samples times k; hit_count of each are there */
    size_t *hit_count;                   /* owned */
    size_t *planned;                     /* owned: how many of each have got their calls */
    size_t *wants;                       /* owned: as fanout_policy */
    bool *spent;                         /* owned: there is nobody more to ask for a sample */
    struct pair *pairs;                  /* owned: samples times k */
    uint32_t *pair_calls;                /* owned: for fanout_policy */
    size_t *answers;                     /* owned: of each sample */
    DLManagedTensor **inputs;            /* owned: the rows of each call, for backward */
    uint32_t *call_experts;              /* owned: index into found.experts */
    uint32_t *call_rows; /* owned: where each call's rows begin in row_pairs; one more at the end */
    uint32_t *row_pairs; /* owned: the pair of each row */
    size_t call_count;
    struct fanout forward, backward;
    bool went_back;
};

enum {
    MIXTURE_SPARES = 4, /* places for further experts, or k_best if that is more */
    MIXTURE_ROUNDS = 8, /* how often a pass looks for some */
};

/* Checks x and takes its shape. Scores: either read from tensors, or by the projection, where
 * `jitter` multiplies what it reads (NULL: nothing does). */
skep_status pass_new(const struct mixture *m, const DLTensor *x, const DLTensor *const *scores,
                     const struct gate_jitter *jitter, struct skep_moe_pass **out,
                     struct skep_error *err);
void pass_free(struct skep_moe_pass *pass); /* NULL is allowed */

/* Searches. As grid_found_nobody() if no sample has an expert, unless allow_missing. */
skep_status pass_route(struct skep_moe_pass *pass, struct skep_error *err);
/* For each sample as many further experts as p->wants says, or those there are, next best first and
 * in places of their own. @param anew experts that have not answered yet count as failed. */
skep_status pass_route_more(struct skep_moe_pass *pass, bool anew, struct skep_error *err);
/* Calls experts and notes who answered. SKEP_UNAVAILABLE if samples have too few answers. */
skep_status pass_call(struct skep_moe_pass *pass, const DLTensor *x, struct skep_error *err);
/* y = sum of weight times output. */
skep_status pass_combine(struct skep_moe_pass *pass, DLManagedTensor **y, struct skep_error *err);

/* Checks the gradient of y, and fills in pair.dot. */
skep_status pass_dots(struct skep_moe_pass *pass, const DLTensor *grad_y, struct skep_error *err);
/* Sends shares and adds up the gradients of x. @param grad_x owned, on success. */
skep_status pass_call_back(struct skep_moe_pass *pass, const DLTensor *grad_y,
                           DLManagedTensor **grad_x, struct skep_error *err);
/* Gradients of the scores into tensors, and through a projection. Takes `lines`' numbers, which
 * have the layout of pass->scores. */
skep_status pass_score_grads(struct skep_moe_pass *pass, const struct score_lines *lines,
                             struct skep_moe_grads *grads, struct skep_error *err);

/* Coordinates of a pair's expert. */
const int64_t *pass_coords(const struct skep_moe_pass *pass, size_t sample, size_t rank);
double pass_score(const struct skep_moe_pass *pass, size_t sample, size_t rank);

#endif
