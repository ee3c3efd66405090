/* Grids of experts and the scores over them. */
#include "client/grid.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/tensor.h"
#include "base/text.h"

_Static_assert((int)SKEP_GRID_MAX_DIMS == (int)BEAM_MAX_DIMS, "a grid can be searched");

skep_status grid_check(const struct skep_grid *grid, struct skep_error *err)
{
    const char *prefix = grid->prefix != NULL ? grid->prefix : "";

    if (!uid_prefix_is_valid(prefix, strnlen(prefix, UID_BYTES)))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "grid prefix \"%.80s\": expected a name, coordinates and a dot, such as "
                         "\"ffn.\"",
                         prefix);
    if (grid->dims < 1 || grid->dims > SKEP_GRID_MAX_DIMS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "grid %.80s: %d dimensions, expected 1 to %d",
                         prefix, grid->dims, SKEP_GRID_MAX_DIMS);
    for (int d = 0; d < grid->dims; d++)
        if (grid->sizes[d] < 1 || grid->sizes[d] > BEAM_MAX_GRID)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "grid %.80s: dimension %d of %" PRId64
                             " coordinates, expected 1 to %d",
                             prefix, d, grid->sizes[d], BEAM_MAX_GRID);
    return SKEP_OK;
}

int64_t grid_total(const struct skep_grid *grid)
{
    int64_t total = 0;

    for (int d = 0; d < grid->dims; d++)
        total += grid->sizes[d];
    return total;
}

const char *grid_describe(const struct skep_grid *grid, char *text, size_t cap)
{
    int len = snprintf(text, cap, "%s[", grid->prefix);

    for (int d = 0; d < grid->dims && len > 0 && (size_t)len < cap; d++)
        len += snprintf(text + len, cap - (size_t)len, "%s%" PRId64, d > 0 ? ", " : "",
                        grid->sizes[d]);
    if (len > 0 && (size_t)len < cap)
        snprintf(text + len, cap - (size_t)len, "]");
    return text;
}

skep_status score_lines_init(struct score_lines *out, const struct skep_grid *grid, size_t samples,
                             struct skep_error *err)
{
    *out = (struct score_lines){.samples = samples};
    for (int d = 0; d < grid->dims; d++) {
        size_t count;
        out->lines[d] = size_mul(samples, (size_t)grid->sizes[d], &count)
                            ? mem_calloc(count + 1, sizeof(double))
                            : NULL;
        if (out->lines[d] == NULL) {
            score_lines_fini(out);
            return error_no_memory(err, "scores", samples * (size_t)grid->sizes[d]);
        }
    }
    return SKEP_OK;
}

/* The number of samples of one tensor; -1 if it is not of scores of a dimension of this size. */
static int64_t samples_of(const DLTensor *t, int64_t size)
{
    bool is_float = t != NULL && t->dtype.code == kDLFloat && t->dtype.lanes == 1 &&
                    (t->dtype.bits == 32 || t->dtype.bits == 64);

    if (!is_float || t->ndim < 1 || t->ndim > 2 || t->shape[t->ndim - 1] != size)
        return -1;
    return t->ndim == 1 ? 1 : t->shape[0];
}

static void copy_scores(double *out, const DLTensor *t, size_t count)
{
    const void *data = skep_tensor_data(t);

    if (t->dtype.bits == 64) {
        memcpy(out, data, count * sizeof(*out));
        return;
    }
    for (size_t i = 0; i < count; i++)
        out[i] = (double)((const float *)data)[i];
}

skep_status score_lines_read(struct score_lines *out, const struct skep_grid *grid,
                             const DLTensor *const *scores, struct skep_error *err)
{
    int64_t samples = scores != NULL ? samples_of(scores[0], grid->sizes[0]) : -1;

    *out = (struct score_lines){0};
    for (int d = 0; d < grid->dims; d++) {
        size_t bytes;
        char text[128] = "none";
        const DLTensor *t = scores != NULL ? scores[d] : NULL;
        if (samples >= 0 && samples_of(t, grid->sizes[d]) == samples &&
            skep_tensor_bytes(t, &bytes, NULL) == SKEP_OK)
            continue;
        if (t != NULL)
            tensor_describe(t, text, sizeof(text));
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "scores of dimension %d: %s, expected [samples, %" PRId64
                         "] F32 or F64, contiguous, with as many samples as the others",
                         d, text, grid->sizes[d]);
    }
    skep_status rc = score_lines_init(out, grid, (size_t)samples, err);
    for (int d = 0; rc == SKEP_OK && d < grid->dims; d++) {
        copy_scores(out->lines[d], scores[d], (size_t)(samples * grid->sizes[d]));
        out->wide = out->wide || scores[d]->dtype.bits == 64;
    }
    return rc;
}

void score_lines_fini(struct score_lines *scores)
{
    for (int d = 0; scores != NULL && d < SKEP_GRID_MAX_DIMS; d++) {
        mem_free(scores->lines[d]);
        scores->lines[d] = NULL;
    }
}

/* Whether at one of the nodes it has not failed lately. */
static bool is_usable(void *arg, const char *uid, const struct provider *providers, size_t count)
{
    struct skep_client *client = arg;
    bool usable = false;

    pthread_mutex_lock(&client->lock);
    for (size_t i = 0; i < count && !usable; i++)
        usable = !backoff_is_active(&client->backoff, providers[i].peer_id, uid);
    pthread_mutex_unlock(&client->lock);
    return usable;
}

/* Somebody serves experts by another grid than the one searched: said once, not with each pass. */
static void tell_outside(struct skep_client *client, const struct skep_grid *grid, size_t outside)
{
    char text[160];

    if (outside > 0 && !atomic_exchange_explicit(&client->told_outside, true, memory_order_relaxed))
        log_warn(
            "grid %s: %zu coordinates alive under the prefixes searched lie outside it and are "
            "ignored; said once",
            grid_describe(grid, text, sizeof(text)), outside);
}

skep_status grid_search(struct skep_client *client, const struct skep_grid *grid,
                        const struct score_lines *scores, bool pass_over_failing,
                        struct beam_query *query, struct beam_result *out, struct skep_error *err)
{
    *out = (struct beam_result){0};
    if (client->swarm == NULL)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "client: started without the DHT, so nothing can be searched for");
    query->prefix = grid->prefix;
    query->dims = (size_t)grid->dims;
    query->sizes = grid->sizes;
    query->samples = scores->samples;
    query->scores = (const double *const *)scores->lines;
    query->usable = pass_over_failing ? is_usable : NULL;
    query->arg = client;
    skep_status rc = beam_search(swarm_directory(client->swarm), query, out, err);
    if (rc == SKEP_OK)
        tell_outside(client, grid, out->outside);
    return rc;
}

skep_status grid_found_nobody(const struct skep_client *client, const struct skep_grid *grid,
                              const struct beam_result *found, uint64_t started_us, const char *who,
                              struct skep_error *err)
{
    char text[160];
    skep_status status = found->partial ? found->status : SKEP_NOT_FOUND;

    return error_set(
        err, status, "%s %s: no expert found in swarm %s within %.1f ms (%zu look-up%s; %s)", who,
        grid_describe(grid, text, sizeof(text)), client->swarm_name,
        (double)(clock_mono_us() - started_us) / 1000, found->lookups, text_plural(found->lookups),
        status == SKEP_NOT_FOUND           ? "nobody serves one"
        : status == SKEP_UNAVAILABLE       ? "no DHT peer answers"
        : status == SKEP_DEADLINE_EXCEEDED ? "time was up"
                                           : skep_status_text(status));
}
