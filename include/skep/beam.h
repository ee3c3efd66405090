/**
 * @file skep/beam.h
 * Beam search: for each sample of a batch the best experts of a grid, by the sum of scores that a
 * gating network gave to each coordinate of each dimension.
 *
 * The rule is docs/decisions/beam-search.md: left to right, one bulk look-up a dimension, shared
 * by the whole batch; candidates under which nothing is alive are replaced by the next best; equal
 * scores come in the order of coordinates. It finds exactly the best k if the beam is wide enough.
 */
#ifndef SKEP_BEAM_H
#define SKEP_BEAM_H

#include <skep/client.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most dimensions of a grid. */
#define SKEP_GRID_MAX_DIMS 8

/** A grid of experts: UIDs are the prefix and one coordinate for each dimension, joined by dots. */
struct skep_grid {
    const char *prefix;                /**< with its dot: "ffn." (or deeper: "ffn.3.") */
    int dims;                          /**< 1 to SKEP_GRID_MAX_DIMS */
    int64_t sizes[SKEP_GRID_MAX_DIMS]; /**< of each dimension, 1 to 65,536. Experts with coordinates
                                            beyond are ignored. */
};

/** Settings of one search. Fill with skep_beam_options_init(), then change what differs. */
struct skep_beam_options {
    size_t size; /**< sizeof of this struct, set by _init: for later versions. */
    uint32_t k;  /**< experts wanted for each sample, 1 to 1,024; default 4 */
    uint32_t
        beam_width; /**< prefixes kept in each dimension, at least k; 0 (default): k, 4 at least */
    uint32_t timeout_ms; /**< for all of it; 0 (default): the client's */
    /**
     * Take the prefixes' word for it that an expert is there, without looking the expert up: one
     * look-up less, and an expert that has just gone may be returned. Under a watch (skep/watch.h)
     * nothing is looked up in either case.
     */
    bool unchecked;
    /** Pass over experts that failed lately at all their nodes; see skep/moe.h. Default false. */
    bool pass_over_failing;
};

SKEP_API void skep_beam_options_init(struct skep_beam_options *options);

/** What a search found. */
struct skep_beam_search;

/**
 * Searches, waiting. Not from a callback.
 * @param grid     borrowed.
 * @param scores   grid->dims tensors, float32 or float64: number d has shape [n, sizes[d]], or
 *                 [sizes[d]] for a single sample; n is the same in all. Finite, or -infinity, which
 *                 comes last. Borrowed.
 * @param options  NULL: defaults. Borrowed.
 * @param out      owned: skep_beam_search_free(). NULL on failure.
 * @return SKEP_OK also if nothing was found (an empty answer: nobody serves any, or no DHT peer
 *         answers, as in a swarm of one), or less than there is because time was up or peers have
 *         left (skep_beam_search_partial() tells); SKEP_DEADLINE_EXCEEDED: nothing was found in
 *         time, saying where and for how long; SKEP_INVALID_ARGUMENT: what is wrong with the grid,
 *         the scores or the options; SKEP_FAILED_PRECONDITION: the client has no DHT;
 *         SKEP_RESOURCE_EXHAUSTED.
 * Thread: any.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_beam_search_run(
    struct skep_client *client, const struct skep_grid *grid, const DLTensor *const *scores,
    const struct skep_beam_options *options, struct skep_beam_search **out, struct skep_error *err);

/** Frees it; calls on its experts that are under way go on. NULL is allowed. */
SKEP_API void skep_beam_search_free(struct skep_beam_search *search);

/** One expert that was chosen for a sample. Views of the search. */
struct skep_beam_hit {
    const char *uid;
    const int64_t *coords;             /**< grid.dims of them */
    double score;                      /**< sum of its coordinates' scores */
    struct skep_remote_expert *expert; /**< shared by all samples that chose it */
};

/** How many samples were searched for. */
SKEP_API size_t skep_beam_search_samples(const struct skep_beam_search *search);
/** How many experts were found for a sample: at most k. */
SKEP_API size_t skep_beam_search_count(const struct skep_beam_search *search, size_t sample);
/** Number `rank` of a sample's experts, the best being 0. False if there is none. */
SKEP_API bool skep_beam_search_hit(const struct skep_beam_search *search, size_t sample,
                                   size_t rank, struct skep_beam_hit *out);
/** Whether something may be missing: why, in err (which may be NULL), as SKEP_UNAVAILABLE (no DHT
 * peer answers) or SKEP_DEADLINE_EXCEEDED, with prefix, grid, swarm and duration. */
SKEP_API bool skep_beam_search_partial(const struct skep_beam_search *search,
                                       struct skep_error *err);
/**
 * How many coordinates were ignored because they are not of the grid: alive under the prefixes that
 * were searched, but not below their dimension's size. The first dimension is not among them, since
 * its prefixes are asked for one by one. More than 0 says that nodes serve experts by another grid
 * than this one; a client logs that once.
 */
SKEP_API size_t skep_beam_search_outside(const struct skep_beam_search *search);

#ifdef __cplusplus
}
#endif
#endif
