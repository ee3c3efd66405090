/* Beam search for users: the scores as tensors, the experts ready to be called. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "client/grid.h"

enum { DEFAULT_K = 4 };

struct skep_beam_search {
    size_t samples, k;
    struct beam_result found;
    struct skep_remote_expert **experts; /* owned, one reference each */
    struct skep_error cut_short;
};

void skep_beam_options_init(struct skep_beam_options *options)
{
    *options = (struct skep_beam_options){.size = sizeof(*options), .k = DEFAULT_K};
}

static skep_status make_experts(struct skep_beam_search *s, struct skep_client *client,
                                struct skep_error *err)
{
    s->experts = mem_calloc(s->found.expert_count + 1, sizeof(struct skep_remote_expert *));
    if (s->experts == NULL)
        return error_no_memory(err, "experts", s->found.expert_count * sizeof(*s->experts));
    for (size_t i = 0; i < s->found.expert_count; i++) {
        skep_status rc = remote_expert_adopt(client, &s->found.experts[i], &s->experts[i], err);
        if (rc != SKEP_OK)
            return rc;
    }
    return SKEP_OK;
}

/* Fills in cut_short. Nothing at all, because time was up, is a failure; because there is nobody to
 * ask, an empty answer: such is a swarm of one. */
static skep_status conclude(struct skep_beam_search *s, const struct skep_client *client,
                            const struct skep_grid *grid, uint64_t started_us,
                            struct skep_error *err)
{
    char text[160];

    if (!s->found.partial)
        return SKEP_OK;
    if (s->found.expert_count == 0)
        grid_found_nobody(client, grid, &s->found, started_us, "beam search", &s->cut_short);
    else
        error_set(&s->cut_short, s->found.status,
                  "beam search %s: cut short in swarm %s after %.1f ms: %s",
                  grid_describe(grid, text, sizeof(text)), client->swarm_name,
                  (double)(clock_mono_us() - started_us) / 1000,
                  s->found.status == SKEP_UNAVAILABLE ? "no DHT peer answers"
                                                      : skep_status_text(s->found.status));
    if (s->found.expert_count > 0 || s->found.status == SKEP_UNAVAILABLE)
        return SKEP_OK;
    if (err != NULL)
        *err = s->cut_short;
    return s->found.status;
}

skep_status skep_beam_search_run(struct skep_client *client, const struct skep_grid *grid,
                                 const DLTensor *const *scores,
                                 const struct skep_beam_options *given,
                                 struct skep_beam_search **out, struct skep_error *err)
{
    struct skep_beam_options known;
    const struct skep_beam_options *options = &known;
    struct score_lines lines = {0};
    skep_status rc = SKEP_OK;
    uint64_t started_us = clock_mono_us();

    *out = NULL;
    skep_beam_options_init(&known);
    if (given != NULL)
        rc = client_take_options(&known, sizeof(known), given, "skep_beam_options_init", err);
    if (rc != SKEP_OK)
        return rc;
    struct beam_query query = {
        .k = options->k,
        .width = options->beam_width,
        .unchecked = options->unchecked,
        .deadline_us =
            clock_deadline_us(options->timeout_ms != 0 ? options->timeout_ms : client->timeout_ms),
    };
    struct skep_beam_search *s = mem_calloc(1, sizeof(*s));
    if (s == NULL)
        return error_no_memory(err, "beam search", sizeof(*s));
    rc = grid_check(grid, err);
    if (rc == SKEP_OK)
        rc = score_lines_read(&lines, grid, scores, err);
    if (rc == SKEP_OK)
        rc = grid_search(client, grid, &lines, options->pass_over_failing, &query, &s->found, err);
    s->samples = lines.samples;
    s->k = options->k;
    if (rc == SKEP_OK)
        rc = conclude(s, client, grid, started_us, err);
    if (rc == SKEP_OK)
        rc = make_experts(s, client, err);
    score_lines_fini(&lines);
    if (rc == SKEP_OK)
        *out = s;
    else
        skep_beam_search_free(s);
    return rc;
}

void skep_beam_search_free(struct skep_beam_search *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; s->experts != NULL && i < s->found.expert_count; i++)
        remote_expert_unref(s->experts[i]);
    mem_free(s->experts);
    beam_result_free(&s->found);
    mem_free(s);
}

size_t skep_beam_search_samples(const struct skep_beam_search *s)
{
    return s->samples;
}

size_t skep_beam_search_count(const struct skep_beam_search *s, size_t sample)
{
    return sample < s->samples ? s->found.hit_count[sample] : 0;
}

bool skep_beam_search_hit(const struct skep_beam_search *s, size_t sample, size_t rank,
                          struct skep_beam_hit *out)
{
    if (rank >= skep_beam_search_count(s, sample))
        return false;
    const struct beam_hit *hit = &s->found.hits[sample * s->k + rank];
    const struct beam_expert *e = &s->found.experts[hit->expert];
    *out = (struct skep_beam_hit){e->uid, e->coords, hit->score, s->experts[hit->expert]};
    return true;
}

bool skep_beam_search_partial(const struct skep_beam_search *s, struct skep_error *err)
{
    if (s->found.partial && err != NULL)
        *err = s->cut_short;
    return s->found.partial;
}

size_t skep_beam_search_outside(const struct skep_beam_search *s)
{
    return s->found.outside;
}
