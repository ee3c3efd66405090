/*
 * Beam search. beam.h has the rule; this is its machine:
 *
 * Each level has a table of nodes, one for each (parent, coordinate) that some sample got to: a
 * prefix, or at the last level an expert. Each sample has a heap of candidates. Candidates are
 * popped best first and wait until their node is known to be active or empty; then they enter the
 * beam or are dropped, in order. What is unknown is asked for, for all samples together, round
 * after round.
 */
#include "dht/directory/beam_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "dht/directory/directory_internal.h"

enum {
    ASK_ROUND = 256,   /* experts looked up at once: an answer takes 20 KB */
    MAX_DOUBLINGS = 6, /* of what is asked ahead for one place in a beam */
};

/* Whether the caller takes an expert from (only) these nodes. */
static bool is_usable(const struct beam_state *s, const struct beam_node *n,
                      const struct provider *providers, size_t count)
{
    char uid[UID_BYTES];

    return s->query->usable == NULL ||
           (beam_node_text(s, n, uid) && s->query->usable(s->query->arg, uid, providers, count));
}

/* ---- rounds */

/* An expert is active if some of these may be asked for it. */
static void take_providers(struct beam_state *s, struct beam_node *n, const struct provider *items,
                           size_t count)
{
    n->state = NODE_EMPTY;
    if (count == 0 || !is_usable(s, n, items, count))
        return;
    n->providers = mem_alloc(count * sizeof(*items));
    if (n->providers == NULL) {
        s->no_memory = true;
        return;
    }
    memcpy(n->providers, items, count * sizeof(*items));
    n->provider_count = count;
    n->state = NODE_ACTIVE;
}

/* Who serves an expert of the last level, as its prefix says. */
static size_t list_named(const struct beam_state *s, const struct beam_node *n,
                         struct provider out[static DIRECTORY_MAX_PROVIDERS])
{
    const struct prefix_view *view = s->before.nodes[n->parent].view;
    size_t at = prefix_view_find(view, n->coords[s->level]);

    return at == SIZE_MAX ? 0
                          : prefix_view_providers(view, at, s->now_s, out, DIRECTORY_MAX_PROVIDERS);
}

/*
 * An expert of a last level whose prefix says enough. It keeps the place where the prefix names its
 * providers and not the providers: they are large, and most callers call few of a batch's experts.
 */
static void take_prefix_word(struct beam_state *s, struct beam_node *n)
{
    struct prefix_view *view = s->before.nodes[n->parent].view;
    size_t at = prefix_view_find(view, n->coords[s->level]);

    n->state = NODE_EMPTY;
    if (at == SIZE_MAX || !prefix_view_is_alive(view, at, 1, s->now_s))
        return;
    if (s->query->usable != NULL) {
        struct provider named[DIRECTORY_MAX_PROVIDERS];
        if (!is_usable(s, n, named, list_named(s, n, named)))
            return;
    }
    prefix_view_ref(view);
    n->view = view;
    n->named_at = at;
    n->state = NODE_ACTIVE;
}

static struct provider *find_provider(struct provider *items, size_t count, const uint8_t *peer_id)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(items[i].peer_id, peer_id, PEER_ID_BYTES) == 0)
            return &items[i];
    return NULL;
}

/*
 * Who was found, and behind them who is only named by the prefix: a look-up ends with the first
 * that answers, and a caller who knows of one replica cannot choose the idle one. An expert's own
 * record tells of its own queue and the prefix' of its node's, so the longer one counts.
 */
static void take_found(struct beam_state *s, struct beam_node *n,
                       const struct lookup_result *answer)
{
    struct provider all[DIRECTORY_MAX_PROVIDERS], named[DIRECTORY_MAX_PROVIDERS];
    size_t count = answer->provider_count;
    size_t more = s->level > 0 ? list_named(s, n, named) : 0;

    memcpy(all, answer->providers, count * sizeof(*all));
    for (size_t i = 0; i < more; i++) {
        struct provider *known = find_provider(all, count, named[i].peer_id);
        if (known == NULL && count < DIRECTORY_MAX_PROVIDERS)
            all[count++] = named[i];
        else if (known != NULL && known->load.queued_tasks < named[i].load.queued_tasks)
            known->load = named[i].load;
    }
    take_providers(s, n, all, count);
}

/* Finds out about a node, now or with this round's lookup. */
static void ask(struct beam_state *s, uint32_t index)
{
    struct beam_node *n = &s->table.nodes[index];

    if (beam_is_last(s) && s->level > 0 &&
        (s->query->unchecked || s->give_up || s->before.nodes[n->parent].watched)) {
        take_prefix_word(s, n);
        return;
    }
    if (s->give_up) {
        n->state = NODE_EMPTY;
        return;
    }
    if (s->asked_count == s->asked_cap) {
        size_t cap = s->asked_cap > 0 ? 2 * s->asked_cap : 256;
        uint32_t *asked = mem_realloc(s->asked, cap * sizeof(*asked));
        if (asked == NULL) {
            s->no_memory = true;
            return;
        }
        s->asked = asked;
        s->asked_cap = cap;
    }
    n->state = NODE_ASKED;
    s->asked[s->asked_count++] = index;
}

/* Decides on what is known, in order, and asks for more; false if the sample is done. */
static bool advance(struct beam_state *s, struct beam_sample *p, unsigned round)
{
    size_t ahead;

    for (;;) {
        size_t waiting = p->total - p->left - p->settled;
        if (waiting > 0) {
            const struct beam_candidate *c = beam_popped(p, p->settled);
            enum node_state state = s->table.nodes[c->ref].state;
            if (state == NODE_ACTIVE)
                p->beam[p->beam_count++] = (struct beam_entry){c->score, c->ref};
            if (state == NODE_ACTIVE || state == NODE_EMPTY) {
                p->settled++;
                if (p->beam_count == s->place_count)
                    return false;
                continue;
            }
        }
        ahead = (s->place_count - p->beam_count) << (round < MAX_DOUBLINGS ? round : MAX_DOUBLINGS);
        if (p->left == 0 || waiting >= ahead)
            return waiting > 0;
        beam_pop(s, p);
        if (s->no_memory)
            return false;
        uint32_t node = beam_popped(p, p->total - p->left - 1)->ref;
        if (s->table.nodes[node].state == NODE_UNKNOWN)
            ask(s, node);
        if (s->no_memory)
            return false;
    }
}

/* A lookup that was not answered: what it was about counts as empty, and the result as partial. */
static void note_failure(struct beam_state *s, skep_status status)
{
    s->result->partial = true;
    if (s->result->status == SKEP_OK)
        s->result->status = status;
}

struct round {
    char (*texts)[UID_BYTES];
    const char **pointers;
    size_t count; /* of those whose text fits; nodes stand in the same order */
    uint32_t *nodes;
};

static bool round_init(struct beam_state *s, struct round *r)
{
    *r = (struct round){
        .texts = mem_alloc((s->asked_count + 1) * sizeof(*r->texts)),
        .pointers = mem_alloc((s->asked_count + 1) * sizeof(*r->pointers)),
        .nodes = mem_alloc((s->asked_count + 1) * sizeof(*r->nodes)),
    };
    if (r->texts == NULL || r->pointers == NULL || r->nodes == NULL)
        return false;
    for (size_t i = 0; i < s->asked_count; i++) {
        struct beam_node *n = &s->table.nodes[s->asked[i]];
        if (!beam_node_text(s, n, r->texts[r->count])) {
            n->state = NODE_EMPTY;
            continue;
        }
        r->pointers[r->count] = r->texts[r->count];
        r->nodes[r->count++] = s->asked[i];
    }
    return true;
}

static void round_fini(struct round *r)
{
    mem_free(r->texts);
    mem_free(r->pointers);
    mem_free(r->nodes);
}

/* Whether a status says something about what was asked for, or only that it could not be asked. */
static bool is_answer(skep_status status)
{
    return status == SKEP_OK || status == SKEP_NOT_FOUND || status == SKEP_INVALID_ARGUMENT;
}

static skep_status ask_prefixes(struct beam_state *s, const struct round *r, struct skep_error *err)
{
    struct successors *answers = mem_calloc(r->count + 1, sizeof(*answers));
    struct successors_parent *parents = mem_calloc(r->count + 1, sizeof(*parents));
    size_t answered = 0;

    if (answers == NULL || parents == NULL) {
        mem_free(answers);
        mem_free(parents);
        return error_no_memory(err, "beam search", r->count * sizeof(*answers));
    }
    for (size_t i = 0; s->level > 0 && i < r->count; i++) {
        const struct beam_node *n = &s->table.nodes[r->nodes[i]];
        parents[i].view = s->before.nodes[n->parent].view;
        parents[i].coord = n->coords[s->level];
    }
    const struct successors_question question = {r->pointers, parents, r->count, 0};
    skep_status rc =
        directory_successors(s->directory, &question, s->query->deadline_us, answers, err);
    mem_free(parents);
    for (size_t i = 0; i < r->count; i++) {
        struct beam_node *n = &s->table.nodes[r->nodes[i]];
        n->state = answers[i].status == SKEP_OK ? NODE_ACTIVE : NODE_EMPTY;
        n->view = answers[i].view;
        n->watched = answers[i].watched;
        answered += is_answer(answers[i].status);
        if (!is_answer(answers[i].status))
            note_failure(s, answers[i].status);
    }
    s->give_up = answered == 0 && r->count > 0;
    mem_free(answers);
    return rc;
}

static void take_expert(struct beam_state *s, struct beam_node *n,
                        const struct lookup_result *answer)
{
    n->state = NODE_EMPTY;
    if (answer->status == SKEP_OK) {
        take_found(s, n, answer);
    } else if (!is_answer(answer->status)) {
        note_failure(s, answer->status);
        if (s->level > 0)
            take_prefix_word(s, n); /* not confirmed, but not contradicted */
    }
}

static skep_status ask_experts(struct beam_state *s, const struct round *r, struct skep_error *err)
{
    size_t most = r->count < ASK_ROUND ? r->count : ASK_ROUND;
    struct lookup_result *answers = mem_alloc((most + 1) * sizeof(*answers));
    skep_status rc = SKEP_OK;
    size_t answered = 0;

    if (answers == NULL)
        return error_no_memory(err, "beam search", most * sizeof(*answers));
    for (size_t first = 0; first < r->count && rc == SKEP_OK; first += most) {
        size_t n = r->count - first < most ? r->count - first : most;
        rc = directory_get_wait(s->directory, r->pointers + first, n, 0, s->query->deadline_us,
                                answers, err);
        for (size_t i = 0; i < n; i++) {
            answered += is_answer(answers[i].status);
            take_expert(s, &s->table.nodes[r->nodes[first + i]], &answers[i]);
        }
    }
    s->give_up = answered == 0 && r->count > 0;
    mem_free(answers);
    return rc;
}

/* Looks up what this round asked for. */
static skep_status ask_all(struct beam_state *s, struct skep_error *err)
{
    struct round r;
    skep_status rc = SKEP_OK;

    if (!round_init(s, &r))
        rc = error_no_memory(err, "beam search", s->asked_count * sizeof(*r.texts));
    else if (r.count > 0)
        rc = beam_is_last(s) ? ask_experts(s, &r, err) : ask_prefixes(s, &r, err);
    s->result->lookups += r.count;
    s->asked_count = 0;
    round_fini(&r);
    return rc;
}

/* ---- levels */

/* Fills every sample's beam of this level. */
static skep_status run_level(struct beam_state *s, struct skep_error *err)
{
    size_t open = s->query->samples;
    skep_status rc = SKEP_OK;

    s->place_count = beam_is_last(s) ? s->query->k : s->width;
    s->best_count = s->place_count < BEAM_MAX_BEST ? s->place_count : BEAM_MAX_BEST;
    if (!beam_list_candidates(s))
        return error_no_memory(err, "beam search",
                               s->query->samples * sizeof(struct beam_candidate));
    for (size_t i = 0; i < s->query->samples; i++) {
        /* The beam before has been read; the new one goes to the other half. */
        s->samples[i].beam = s->entries + ((s->level % 2) * s->query->samples + i) * s->width;
        s->samples[i].beam_count = 0;
    }
    for (unsigned round = 0; open > 0 && rc == SKEP_OK; round++) {
        open = 0;
        for (size_t i = 0; i < s->query->samples && !s->no_memory; i++) {
            struct beam_sample *p = &s->samples[i];
            if (!p->full)
                p->full = !advance(s, p, round);
            open += !p->full;
        }
        if (s->asked_count > 0 && !s->no_memory)
            rc = ask_all(s, err);
        if (s->no_memory)
            rc = error_no_memory(err, "beam search", sizeof(struct beam_node));
    }
    return rc;
}

static void next_level(struct beam_state *s)
{
    beam_table_fini(&s->before);
    s->before = s->table;
    s->table = (struct beam_table){0};
}

/* Experts that some sample chose, each once, and the samples' lists of them. */
static bool write_result(struct beam_state *s)
{
    const struct beam_query *q = s->query;
    struct beam_result *r = s->result;

    r->hit_count = mem_calloc(q->samples + 1, sizeof(*r->hit_count));
    r->hits = mem_calloc(q->samples * q->k + 1, sizeof(*r->hits));
    r->experts = mem_calloc(s->before.count + 1, sizeof(*r->experts));
    if (r->hit_count == NULL || r->hits == NULL || r->experts == NULL)
        return false;
    for (size_t i = 0; i < q->samples; i++) {
        const struct beam_sample *p = &s->samples[i];
        for (size_t b = 0; b < p->beam_count; b++) {
            struct beam_node *n = &s->before.nodes[p->beam[b].node];
            if (n->expert == NO_NODE) {
                struct beam_expert *e = &r->experts[r->expert_count];
                n->expert = (uint32_t)r->expert_count++;
                beam_node_text(s, n, e->uid);
                memcpy(e->coords, n->coords, sizeof(e->coords));
                e->providers = n->providers;
                e->provider_count = n->provider_count;
                e->view = n->view;
                e->named_at = n->named_at;
                e->found_at_s = s->now_s;
                n->providers = NULL;
                n->view = NULL;
            }
            r->hits[i * q->k + b] = (struct beam_hit){n->expert, p->beam[b].score};
        }
        r->hit_count[i] = p->beam_count;
    }
    return true;
}

static skep_status check(const struct beam_query *q, size_t *width, struct skep_error *err)
{
    *width = q->width > 0 ? q->width : q->k < BEAM_DEFAULT_WIDTH ? BEAM_DEFAULT_WIDTH : q->k;
    if (q->prefix == NULL || !uid_prefix_is_valid(q->prefix, strnlen(q->prefix, UID_BYTES)))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "beam search: prefix \"%.80s\": expected a name, coordinates and a dot, "
                         "such as \"ffn.\"",
                         q->prefix != NULL ? q->prefix : "");
    if (q->dims == 0 || q->dims > BEAM_MAX_DIMS)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "beam search: %zu dimensions, expected 1 to %d", q->dims, BEAM_MAX_DIMS);
    if (q->k == 0 || q->k > BEAM_MAX_WIDTH)
        return error_set(err, SKEP_INVALID_ARGUMENT, "beam search: k %zu, expected 1 to %d", q->k,
                         BEAM_MAX_WIDTH);
    if (*width < q->k || *width > BEAM_MAX_WIDTH)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "beam search: width %zu, expected k (%zu) to %d", *width, q->k,
                         BEAM_MAX_WIDTH);
    for (size_t d = 0; d < q->dims; d++) {
        if (q->sizes[d] < 1 || q->sizes[d] > BEAM_MAX_GRID)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "beam search: dimension %zu of %" PRId64
                             " coordinates, expected 1 to %d",
                             d, q->sizes[d], BEAM_MAX_GRID);
        size_t size = (size_t)q->sizes[d];
        for (size_t i = 0; i < q->samples * size; i++)
            if (isnan(q->scores[d][i]) || q->scores[d][i] == (double)INFINITY)
                return error_set(err, SKEP_INVALID_ARGUMENT,
                                 "beam search: score %g of sample %zu, dimension %zu, coordinate "
                                 "%zu: expected a finite number or -inf",
                                 q->scores[d][i], i / size, d, i % size);
    }
    return SKEP_OK;
}

skep_status beam_search(struct directory *directory, const struct beam_query *query,
                        struct beam_result *out, struct skep_error *err)
{
    struct beam_state s = {.directory = directory, .query = query, .result = out};

    *out = (struct beam_result){0};
    skep_status rc = check(query, &s.width, err);
    if (rc != SKEP_OK)
        return rc;
    s.now_s = directory->wall_ms() / 1000;
    s.prefix_len = strlen(query->prefix);
    s.samples = mem_calloc(query->samples + 1, sizeof(*s.samples));
    s.entries = mem_calloc(2 * query->samples * s.width + 1, sizeof(*s.entries));
    if (s.samples == NULL || s.entries == NULL)
        rc = error_no_memory(err, "beam search", query->samples * s.width * sizeof(*s.entries));
    for (; s.level < query->dims && rc == SKEP_OK; s.level++) {
        rc = run_level(&s, err);
        next_level(&s);
    }
    s.level = query->dims - 1;
    if (rc == SKEP_OK && !write_result(&s))
        rc = error_no_memory(err, "beam search", query->samples * query->k);
    if (rc != SKEP_OK)
        beam_result_free(out);

    for (size_t i = 0; s.samples != NULL && i < query->samples; i++)
        mem_free(s.samples[i].list);
    mem_free(s.samples);
    mem_free(s.entries);
    mem_free(s.asked);
    beam_table_fini(&s.before);
    beam_table_fini(&s.table);
    return rc;
}

size_t beam_expert_providers(const struct beam_expert *e,
                             struct provider out[static DIRECTORY_MAX_PROVIDERS])
{
    if (e->view != NULL)
        return prefix_view_providers(e->view, e->named_at, e->found_at_s, out,
                                     DIRECTORY_MAX_PROVIDERS);
    memcpy(out, e->providers, e->provider_count * sizeof(*out));
    return e->provider_count;
}

void beam_result_free(struct beam_result *r)
{
    if (r == NULL)
        return;
    for (size_t i = 0; i < r->expert_count; i++) {
        mem_free(r->experts[i].providers);
        prefix_view_unref(r->experts[i].view);
    }
    mem_free(r->experts);
    mem_free(r->hits);
    mem_free(r->hit_count);
    *r = (struct beam_result){0};
}
