/*
 * Beam search: for each sample of a batch, the best k experts of a grid by the sum of their
 * coordinates' scores, one per dimension (DESIGN.md 4.3).
 *
 * Left to right, at most one bulk lookup a dimension (prefixes may tell of the next one): a beam
 * holds the best prefixes so far; the coordinates that are alive under them, with their scores, are
 * the candidates of the next. Candidates enter the beam best first, and only if something is alive
 * under them; those whose lookup comes back empty are replaced by the next best. It starts with
 * every first coordinate as a candidate, asking for the best ones' prefixes several at a time until
 * the beam is full, and never reads the root. The last candidates are experts, which are looked up
 * themselves, so that one whose prefix outlived it is replaced too. Who serves a chosen expert is
 * whoever was found and whoever its prefix names, since a look-up ends with the first answer.
 *
 * All samples of a batch share lookups: each prefix and each expert is asked for once.
 *
 * Whatever the beam is, the order is by score, and by coordinates (smaller first) where scores are
 * equal. It returns exactly the best k if the beam is wide enough to hold their prefixes.
 */
#ifndef SKEP_DHT_DIRECTORY_BEAM_H
#define SKEP_DHT_DIRECTORY_BEAM_H

#include "dht/directory/directory_collect.h"

enum {
    BEAM_MAX_DIMS = 8,
    BEAM_DEFAULT_WIDTH = 4, /* or k, if that is more */
    BEAM_MAX_WIDTH = 1024,
    BEAM_MAX_GRID = 1 << 16, /* coordinates of one dimension */
};

struct beam_query {
    const char *prefix; /* of the grid, "ffn."; experts are prefix + coordinates */
    size_t dims;        /* 1 to BEAM_MAX_DIMS */
    const int64_t
        *sizes; /* of each dimension, 1 to BEAM_MAX_GRID: coordinates outside are ignored */
    size_t samples;
    /* For each dimension samples times sizes[d] numbers. Finite or -infinity, which comes last. */
    const double *const *scores;
    size_t k;       /* wanted experts a sample, 1 to BEAM_MAX_WIDTH */
    size_t width;   /* of the beam, at least k; 0: the default */
    bool unchecked; /* take the prefixes' word for it that an expert is there */
    /* Whether an expert may be returned that (only) these nodes serve; NULL: any. */
    bool (*usable)(void *arg, const char *uid, const struct provider *providers, size_t count);
    void *arg;
    uint64_t deadline_us;
};

struct beam_expert {
    char uid[UID_BYTES];
    int64_t coords[BEAM_MAX_DIMS];
    /* Who serves it. If it was looked up: those found, then those only named by the prefix, at
     * least one. Else NULL, and `view` names them: beam_expert_providers() reads both. */
    struct provider *providers; /* owned */
    size_t provider_count;
    struct prefix_view *view; /* shared */
    size_t named_at;          /* index in the view */
    int64_t found_at_s;       /* when its providers were alive */
};

struct beam_hit {
    size_t expert; /* index into beam_result.experts */
    double score;
};

struct beam_result {
    size_t expert_count; /* each once, whatever samples chose it */
    struct beam_expert *experts;
    size_t *hit_count;     /* of each sample, at most k */
    struct beam_hit *hits; /* sample i has hits[i * k], ..., best first */
    bool partial;          /* the deadline or a failed lookup cut it short: some may be missing */
    skep_status status;    /* SKEP_OK; with `partial` what cut it short */
    size_t lookups;        /* prefixes and experts asked for */
    size_t outside;        /* coordinates beyond the grid that were ignored, under the prefixes of
                              the beams, each once */
};

/*
 * Searches, waiting. Not from a callback of the directory's.
 * @param out  beam_result_free(); zeroed on failure.
 * @return SKEP_OK also if nothing was found or the search was cut short, see beam_result.status;
 *         SKEP_INVALID_ARGUMENT naming what is wrong with the query; SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status beam_search(struct directory *directory, const struct beam_query *query,
                                        struct beam_result *out, struct skep_error *err);
/* Copies who serves an expert. @return how many, at least 1. */
size_t beam_expert_providers(const struct beam_expert *expert,
                             struct provider out[static DIRECTORY_MAX_PROVIDERS]);
void beam_result_free(struct beam_result *result); /* NULL and zeroed are allowed */

#endif
