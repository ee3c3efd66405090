/**
 * @file skep/moe.h
 * Mixtures of remote experts. A layer chooses, for each sample of a batch, the best experts of a
 * grid by a gating network's scores, sends each expert its samples in one call, and joins what
 * comes back in time. Experts that fail are left out; a sample succeeds with k_min answers.
 *
 * A sample that the chosen experts leave with fewer than k_min answers is given to others within
 * the pass: the next best of the same search, in the place of those that failed, as soon as the
 * rest of the chosen ones cannot make up for them; and once, when half of the time that calls have
 * is over, in the place of those that have not answered by then. So it succeeds if k_min experts
 * are alive among those that are asked: k_best, and as many again (4, if k_best is less). Switch
 * layers do so if their k_min is 1.
 *
 * What fails is passed over by the client's next searches, for 1 s at first, twice as long with
 * each failure in a row (60 s at most), until it succeeds: a node that cannot be reached, loses its
 * connection or does not answer in time, with all it serves; an expert at a node that answers NaN,
 * a wrong shape or an error (a full queue: twice in a row), alone. Samples for which fewer than
 * k_min experts are left are given those all the same.
 *
 * skep_moe_*: top-k, softmax over the experts that answered (Shazeer et al. 2017, "Outrageously
 * large neural networks"; the product-key grid of Ryabinin and Gusev 2020, "Towards crowdsourced
 * training of large neural networks using decentralized mixture-of-experts"). skep_switch_moe_*:
 * top-1, load-balancing loss (Fedus et al. 2021, "Switch Transformers", 2.2).
 *
 * A layer may be used from any number of threads at once, each with passes of its own. Functions
 * that call experts wait; do not call them from a callback.
 */
#ifndef SKEP_MOE_H
#define SKEP_MOE_H

#include <skep/beam.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Settings of a layer. Fill with skep_moe_options_init(), then change what differs. */
struct skep_moe_options {
    size_t size;           /**< sizeof of this struct, set by _init: for later versions. */
    struct skep_grid grid; /**< prefix is copied by the layer */
    uint32_t k_best;       /**< experts asked for each sample; default 4 */
    uint32_t k_min; /**< answers with which a sample succeeds, 0 to k_best; default 1. With 0,
                         a sample without any answer succeeds with zeros (unless no expert is found
                         for any), and nobody is asked in the place of experts that failed. */
    uint32_t backward_k_min;      /**< the same for backward; default 1 */
    uint32_t beam_width;          /**< 0 (default): k_best, 4 at least */
    uint32_t forward_timeout_ms;  /**< for all of a forward pass, search included; 0 (default): the
                                       client's */
    uint32_t backward_timeout_ms; /**< 0 (default): the client's */
    uint32_t timeout_after_k_min_ms; /**< how long stragglers are waited for once every sample has
                                          k_min answers (or cannot get them any more); default
                                          1,000; 0: until the timeout. An expert none of whose known
                                          nodes can be reached is no straggler: it is looked up anew
                                          only as long as a sample needs it for k_min. */
    /** Drop answers that hold NaN or infinity; refuse inputs and gradients that do. Default true.
     */
    bool detect_anomalies;
    /**
     * What happens to samples with fewer than k_min answers. False (default): the pass fails. True:
     * it succeeds, their outputs and gradients are zeros, and skep_moe_pass_answers() tells which.
     */
    bool allow_missing;
    bool unchecked; /**< as skep_beam_options */
    /**
     * How activations and gradients travel; DEFAULT (the default): as the client's options say. If
     * these leave it open, too, answers come as each expert's schema recommends (`skep node
     * --compression`), and so do requests go once an answer has shown how: the first one to a node
     * goes as it is, and nothing is sent just to find out.
     */
    enum skep_compression compression, grad_compression;
    uint32_t hedge_after_ms; /**< of forward calls, as skep_client_options; 0 (default): its */
    /**
     * Rows of one call; an expert that is chosen by more samples gets several. Not more than its
     * node's max_batch_size. Default 256.
     */
    uint32_t max_rows;
    /** Shape of an output row; out_ndim -1 (default): that of an input row. */
    int out_ndim;
    int64_t out_shape[SKEP_TENSOR_MAX_DIMS];
    /**
     * 0 (default): the caller gives scores with each pass. Above: the layer holds a projection from
     * this many features to the scores of all dimensions, see skep_moe_weight().
     */
    int64_t in_features;
    DLDataType projection_dtype; /**< float32 (default) or float64 */
    uint64_t seed;               /**< of the projection's first values; 0 (default): a random one */
};

SKEP_API void skep_moe_options_init(struct skep_moe_options *options);

struct skep_moe;
struct skep_moe_pass;

/**
 * @param client  borrowed until skep_moe_free().
 * @param out     owned: skep_moe_free(). NULL on failure.
 * @return SKEP_INVALID_ARGUMENT naming the option that is wrong; SKEP_FAILED_PRECONDITION: the
 *         client has no DHT; SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_moe_new(struct skep_client *client,
                                                  const struct skep_moe_options *options,
                                                  struct skep_moe **out, struct skep_error *err);
/** Passes must have been freed before. NULL is allowed. */
SKEP_API void skep_moe_free(struct skep_moe *moe);

/**
 * The projection: scores = x W^T + b, with W of shape [sum of sizes, in_features] and b of
 * [sum of sizes], dimension after dimension; uniform in +-1/sqrt(in_features) at first, as
 * PyTorch's Linear. To be changed by the caller between passes (an optimizer step, a checkpoint).
 * View of the layer; NULL without projection.
 */
SKEP_API const DLTensor *skep_moe_weight(const struct skep_moe *moe);
SKEP_API const DLTensor *skep_moe_bias(const struct skep_moe *moe);

/**
 * Forward pass.
 * @param x       float32 or float64, [n, ...]; sent to experts as it is, in rows. Borrowed.
 * @param scores  grid.dims tensors as for skep_beam_search_run(), n samples. Experts with a score
 * of -infinity are never asked. NULL with a projection: then the scores are computed from x, whose
 * last dimension must be in_features (dimensions between are averaged).
 * @param pass    owned: skep_moe_pass_free(); what backward needs. NULL on failure.
 * @param y       owned: skep_tensor_free(); [n, out_shape...], of x's type: for each sample the sum
 *                over the experts that answered, weighted by the softmax of their scores. Untouched
 *                on failure.
 * @return if no expert of the grid was found for any sample, unless allow_missing, a sentence that
 *         says which prefix and grid were searched in which swarm and for how long, with
 *         SKEP_NOT_FOUND: nobody serves one; SKEP_UNAVAILABLE: no DHT peer could be asked;
 *         SKEP_DEADLINE_EXCEEDED: time was up. SKEP_UNAVAILABLE also: samples with fewer than k_min
 *         answers, and why, unless allow_missing; SKEP_INVALID_ARGUMENT: shapes, types, NaN;
 * SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_moe_forward(struct skep_moe *moe, const DLTensor *x,
                                                      const DLTensor *const *scores,
                                                      struct skep_moe_pass **pass,
                                                      DLManagedTensor **y, struct skep_error *err);

/** Gradients of one pass. Each owned; skep_moe_grads_free(). */
struct skep_moe_grads {
    DLManagedTensor *x; /**< of x's shape and type; through the experts, and through a projection */
    DLManagedTensor
        *scores[SKEP_GRID_MAX_DIMS]; /**< [n, sizes[d]], float64 if x or the scores are */
    DLManagedTensor *weight;         /**< of the projection, of its type; NULL without */
    DLManagedTensor *bias;
};
SKEP_API void skep_moe_grads_free(struct skep_moe_grads *grads);

/**
 * Backward pass: sends each expert that answered its weighted share of the gradient, by which it
 * takes an optimizer step, and returns the gradients of inputs and scores. Experts that failed in
 * forward are absent; those that fail here count as constants: they add nothing to the gradient of
 * x. Once for each pass.
 * @param grad_y  of y's shape and type. Borrowed.
 * @param grads   zeroed on failure.
 * @return SKEP_UNAVAILABLE: samples with fewer than backward_k_min answers, unless allow_missing
 * (the others' experts have been trained then); SKEP_FAILED_PRECONDITION: a second time;
 *         SKEP_INVALID_ARGUMENT; SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_moe_backward(struct skep_moe_pass *pass,
                                                       const DLTensor *grad_y,
                                                       struct skep_moe_grads *grads,
                                                       struct skep_error *err);

/** Frees it. Calls that were given up end by themselves. NULL is allowed. */
SKEP_API void skep_moe_pass_free(struct skep_moe_pass *pass);

/** One expert of one sample of a pass. */
struct skep_moe_choice {
    const char *uid; /**< view of the pass */
    double score;
    double weight;               /**< 0 if it did not answer */
    skep_status status;          /**< how its forward call ended */
    skep_status backward_status; /**< and the backward one; SKEP_CANCELLED before */
};
/** How many experts answered for a sample in forward. */
SKEP_API size_t skep_moe_pass_answers(const struct skep_moe_pass *pass, size_t sample);
/** Number `rank` of those asked for a sample: those chosen, best first, then those that were asked
 * because some of these failed. False if there is none. */
SKEP_API bool skep_moe_pass_choice(const struct skep_moe_pass *pass, size_t sample, size_t rank,
                                   struct skep_moe_choice *out);
/** Why the first expert that failed did, forward or backward. False if none has. */
SKEP_API bool skep_moe_pass_failure(const struct skep_moe_pass *pass, struct skep_error *err);

/* ---- switch ---- */

/** Settings of a switch layer, with those of a mixture in front: k_best is 1; k_min and
 * backward_k_min are 0 (a sample without an answer passes as zeros, but a pass for which no expert
 * at all is found fails), and so is
 * timeout_after_k_min_ms, unless set. */
struct skep_switch_moe_options {
    struct skep_moe_options moe;
    double utilization_alpha; /**< weight of the past in the utilization estimate; default 0.9 */
    double jitter_eps; /**< with a projection: what it reads is multiplied by random factors of
                            1 +- this in training; default 0.01; 0: none */
    double grid_keep;  /**< chance of each coordinate to take part in a training pass; default 1 */
};

SKEP_API void skep_switch_moe_options_init(struct skep_switch_moe_options *options);

struct skep_switch_moe;
struct skep_switch_moe_pass;

/** As skep_moe_new(). */
SKEP_API SKEP_MUST_CHECK skep_status
skep_switch_moe_new(struct skep_client *client, const struct skep_switch_moe_options *options,
                    struct skep_switch_moe **out, struct skep_error *err);
SKEP_API void skep_switch_moe_free(struct skep_switch_moe *moe);
SKEP_API const DLTensor *skep_switch_moe_weight(const struct skep_switch_moe *moe);
SKEP_API const DLTensor *skep_switch_moe_bias(const struct skep_switch_moe *moe);

/**
 * The utilization estimate of one dimension: for each coordinate the share of samples that went
 * there, an exponential moving average over training passes, 1/size at first. Copied.
 * @param out  grid.sizes[dim] numbers.
 */
SKEP_API void skep_switch_moe_utilization(struct skep_switch_moe *moe, int dim, double *out);

/**
 * Forward pass: each sample goes to the one best expert; y is its output times the product of the
 * dimensions' softmax probabilities of its coordinates.
 * @param training  jitter, dropout of the grid, and the utilization estimate.
 * @param loss      gets the load-balancing loss: the sum over dimensions of size times the dot
 *                  product of utilization (a constant to the gradient) and mean probability; 1 for
 *                  each dimension if all is even. May be NULL.
 * Otherwise as skep_moe_forward().
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_switch_moe_forward(
    struct skep_switch_moe *moe, const DLTensor *x, const DLTensor *const *scores, bool training,
    struct skep_switch_moe_pass **pass, DLManagedTensor **y, double *loss, struct skep_error *err);

/** Backward pass. @param grad_loss gradient of the whole loss for the load-balancing loss: its
 * weight there, such as 0.01. Otherwise as skep_moe_backward(). */
SKEP_API SKEP_MUST_CHECK skep_status skep_switch_moe_backward(struct skep_switch_moe_pass *pass,
                                                              const DLTensor *grad_y,
                                                              double grad_loss,
                                                              struct skep_moe_grads *grads,
                                                              struct skep_error *err);
SKEP_API void skep_switch_moe_pass_free(struct skep_switch_moe_pass *pass);
/** The pass as of a mixture, for skep_moe_pass_answers(), _choice() and _failure(). View. */
SKEP_API const struct skep_moe_pass *
skep_switch_moe_pass_choices(const struct skep_switch_moe_pass *pass);

#ifdef __cplusplus
}
#endif
#endif
