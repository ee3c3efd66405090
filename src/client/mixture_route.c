/* Which experts a pass asks: the best ones and, where these fail, the next best. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "client/mixture.h"

/* ---- at first */

/* Half of the time is left for calls, however long the search takes. */
static uint64_t search_deadline(const struct skep_moe_pass *p)
{
    return p->started_us + (p->deadline_us - p->started_us) / 2;
}

static skep_status search(struct skep_moe_pass *p, bool pass_over_failing, struct skep_error *err)
{
    const struct skep_moe_options *o = &p->mixture->options;
    struct beam_query query = {
        .k = o->k_best,
        .width = o->beam_width,
        .unchecked = o->unchecked,
        .deadline_us = search_deadline(p),
    };

    beam_result_free(&p->found);
    return grid_search(p->mixture->client, &o->grid, &p->scores, pass_over_failing, &query,
                       &p->found, err);
}

static bool lacks_experts(const struct skep_moe_pass *p)
{
    size_t least = p->mixture->options.k_min > 0 ? p->mixture->options.k_min : 1;

    for (size_t s = 0; s < p->samples; s++)
        if (p->found.hit_count[s] < least)
            return true;
    return false;
}

skep_status pass_route(struct skep_moe_pass *p, struct skep_error *err)
{
    skep_status rc = search(p, true, err);

    /* Better a node that failed lately than none. */
    if (rc == SKEP_OK && lacks_experts(p))
        rc = search(p, false, err);
    if (rc != SKEP_OK)
        return rc;
    if (p->found.expert_count == 0 && p->samples > 0 && !p->mixture->options.allow_missing)
        return grid_found_nobody(p->mixture->client, &p->mixture->options.grid, &p->found,
                                 p->started_us, "mixture", err);
    for (size_t s = 0; s < p->samples; s++) {
        p->hit_count[s] = p->found.hit_count[s];
        for (size_t i = 0; i < p->hit_count[s]; i++)
            p->hits[s * p->k + i] = p->found.hits[s * p->mixture->options.k_best + i];
    }
    p->experts = mem_calloc(p->found.expert_count + 1, sizeof(struct skep_remote_expert *));
    if (p->experts == NULL)
        return error_no_memory(err, "experts", p->found.expert_count);
    for (size_t i = 0; i < p->found.expert_count && rc == SKEP_OK; i++) {
        rc = remote_expert_adopt(p->mixture->client, &p->found.experts[i], &p->experts[i], err);
    }
    return rc;
}

/* ---- in the place of those that failed */

enum { NO_EXPERT = UINT32_MAX };

/* Further experts for some samples. */
struct more {
    struct skep_moe_pass *pass;
    size_t *samples; /* owned: those that want some */
    size_t count;
    struct score_lines lines; /* owned: their scores */
    bool *failed;             /* owned: experts of the pass that are asked no more */
    size_t failed_count;
};

static void more_fini(struct more *m)
{
    mem_free(m->samples);
    mem_free(m->failed);
    score_lines_fini(&m->lines);
}

static skep_status more_init(struct more *m, struct skep_moe_pass *p, bool anew,
                             struct skep_error *err)
{
    const struct skep_grid *grid = &p->mixture->options.grid;

    *m = (struct more){.pass = p, .failed_count = p->found.expert_count};
    m->samples = mem_calloc(p->samples + 1, sizeof(*m->samples));
    m->failed = mem_calloc(m->failed_count + 1, sizeof(*m->failed));
    if (m->samples == NULL || m->failed == NULL)
        return error_no_memory(err, "further experts", p->samples);
    for (size_t s = 0; s < p->samples; s++)
        if (p->wants[s] > 0)
            m->samples[m->count++] = s;
    for (size_t c = 0; c < p->call_count; c++) {
        bool open;
        if (!fanout_is_good(&p->forward, c, &open) && (anew || !open))
            m->failed[p->call_experts[c]] = true;
    }
    skep_status rc = score_lines_init(&m->lines, grid, m->count, err);
    for (int d = 0; rc == SKEP_OK && d < grid->dims; d++) {
        size_t size = (size_t)grid->sizes[d];
        for (size_t i = 0; i < m->count; i++)
            memcpy(m->lines.lines[d] + i * size, p->scores.lines[d] + m->samples[i] * size,
                   size * sizeof(double));
    }
    return rc;
}

/* The number of an expert of the pass. */
static uint32_t find_expert(const struct skep_moe_pass *p, const char *uid)
{
    for (size_t e = 0; e < p->found.expert_count; e++)
        if (strcmp(p->found.experts[e].uid, uid) == 0)
            return (uint32_t)e;
    return NO_EXPERT;
}

/* Takes the providers and the view of `expert`, on success. */
static skep_status add_expert(struct skep_moe_pass *p, struct beam_expert *expert,
                              struct skep_error *err)
{
    size_t count = p->found.expert_count + 1;
    struct beam_expert *found = mem_realloc(p->found.experts, count * sizeof(*found));
    if (found != NULL)
        p->found.experts = found;
    struct skep_remote_expert **experts = mem_realloc(p->experts, count * sizeof(*experts));
    if (experts != NULL)
        p->experts = experts;
    if (found == NULL || experts == NULL)
        return error_no_memory(err, expert->uid, count * sizeof(*found));
    skep_status rc = remote_expert_adopt(p->mixture->client, expert, &experts[count - 1], err);
    if (rc != SKEP_OK)
        return rc;
    found[count - 1] = *expert;
    p->found.expert_count = count;
    return SKEP_OK;
}

static bool has_expert(const struct skep_moe_pass *p, size_t sample, uint32_t expert)
{
    for (size_t i = 0; i < p->hit_count[sample]; i++)
        if (p->hits[sample * p->k + i].expert == expert)
            return true;
    return false;
}

/* Of what a search has found, what its samples do not have yet. */
static skep_status take_more(struct more *m, struct beam_result *r, size_t k,
                             struct skep_error *err)
{
    struct skep_moe_pass *p = m->pass;
    uint32_t *numbers = mem_alloc((r->expert_count + 1) * sizeof(*numbers));
    skep_status rc =
        numbers == NULL ? error_no_memory(err, "further experts", r->expert_count) : SKEP_OK;

    for (size_t e = 0; rc == SKEP_OK && e < r->expert_count; e++)
        numbers[e] = find_expert(p, r->experts[e].uid);
    for (size_t i = 0; i < m->count && rc == SKEP_OK; i++) {
        size_t s = m->samples[i];
        for (size_t n = 0; n < r->hit_count[i] && p->wants[s] > 0 && p->hit_count[s] < p->k; n++) {
            const struct beam_hit *hit = &r->hits[i * k + n];
            uint32_t *number = &numbers[hit->expert];
            if (!isfinite(hit->score))
                break;
            if (*number != NO_EXPERT &&
                ((*number < m->failed_count && m->failed[*number]) || has_expert(p, s, *number)))
                continue;
            if (*number == NO_EXPERT) {
                rc = add_expert(p, &r->experts[hit->expert], err);
                if (rc != SKEP_OK)
                    break;
                *number = (uint32_t)p->found.expert_count - 1;
            }
            p->hits[s * p->k + p->hit_count[s]++] = (struct beam_hit){*number, hit->score};
            p->wants[s]--;
        }
    }
    mem_free(numbers);
    return rc;
}

static skep_status search_more(struct more *m, bool pass_over_failing, struct skep_error *err)
{
    const struct skep_moe_pass *p = m->pass;
    const struct skep_moe_options *o = &p->mixture->options;
    uint64_t now_us = clock_mono_us();
    struct beam_result found = {0};
    /* All that a sample has may be among the best: so as many as it can have. */
    size_t k = p->k < BEAM_MAX_WIDTH ? p->k : BEAM_MAX_WIDTH;
    struct beam_query query = {
        .k = k,
        .width = o->beam_width == 0 || o->beam_width > k ? o->beam_width : k,
        .unchecked = o->unchecked,
        .deadline_us =
            now_us < p->deadline_us ? now_us + (p->deadline_us - now_us) / 2 : p->deadline_us,
    };

    skep_status rc = grid_search(p->mixture->client, &o->grid, &m->lines, pass_over_failing, &query,
                                 &found, err);
    if (rc == SKEP_OK)
        rc = take_more(m, &found, k, err);
    beam_result_free(&found);
    return rc;
}

static bool wants_more(const struct more *m)
{
    for (size_t i = 0; i < m->count; i++)
        if (m->pass->wants[m->samples[i]] > 0 && m->pass->hit_count[m->samples[i]] < m->pass->k)
            return true;
    return false;
}

skep_status pass_route_more(struct skep_moe_pass *p, bool anew, struct skep_error *err)
{
    struct more m;
    skep_status rc = more_init(&m, p, anew, err);

    if (rc == SKEP_OK)
        rc = search_more(&m, true, err);
    if (rc == SKEP_OK && wants_more(&m)) /* as in pass_route() */
        rc = search_more(&m, false, err);
    for (size_t i = 0; rc == SKEP_OK && i < m.count; i++) {
        size_t s = m.samples[i];
        p->spent[s] = p->hit_count[s] == p->planned[s] || p->hit_count[s] == p->k;
    }
    more_fini(&m);
    return rc;
}
