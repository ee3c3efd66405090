/*
 * Beam search. beam.h has the rule; this is its machine:
 *
 * Each level has a table of nodes, one for each (parent, coordinate) that some sample got to: a
 * prefix, or at the last level an expert. Each sample has a heap of candidates. Candidates are
 * popped best first and wait until their node is known to be active or empty; then they enter the
 * beam or are dropped, in order. What is unknown is asked for, for all samples together, round
 * after round.
 */
#include "dht/directory/beam.h"

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
    MAX_BEST = 32,     /* candidates kept in order; more are cheaper in a heap */
    NO_NODE = UINT32_MAX,
};

enum node_state {
    NODE_UNKNOWN,
    NODE_ASKED, /* in this round */
    NODE_ACTIVE,
    NODE_EMPTY,
};

struct node {
    int64_t coords[BEAM_MAX_DIMS]; /* up to its level */
    uint32_t parent;               /* in the table of the level before */
    uint32_t chain;                /* in the hash table; NO_NODE: last */
    enum node_state state;
    bool watched;
    bool outside_counted;
    struct prefix_view *view;   /* shared; of an active prefix, or where an expert is named */
    size_t named_at;            /* of an expert: its index in that view */
    struct provider *providers; /* owned; of an expert that was looked up */
    size_t provider_count;
    uint32_t expert; /* its index in the result; NO_NODE: not chosen */
};

struct table {
    struct node *nodes; /* owned */
    size_t count, cap;
    uint32_t *buckets; /* owned */
    size_t bucket_count;
};

struct candidate {
    double score;
    uint32_t ref; /* the parent while in the heap, its own node once popped */
    int32_t coord;
};

struct entry {
    double score;
    uint32_t node;
};

struct sample {
    /* Owned: first those in no order, or a heap of them; then the best, the best one last; then
     * those popped, last one first. */
    struct candidate *list;
    size_t cap; /* of the list */
    size_t total;
    size_t left;        /* not popped yet */
    size_t best;        /* of those left, how many stand in order */
    bool is_heap;       /* the others */
    size_t settled;     /* of those popped, how many have been decided on */
    struct entry *beam; /* view of search.entries */
    size_t beam_count;
    bool full; /* nothing more to do in this level */
};

struct search {
    struct directory *directory;
    const struct beam_query *query;
    size_t width, level, prefix_len;
    size_t place_count; /* in a beam of this level */
    size_t best_count;  /* how many candidates are kept in order while they are listed */
    int64_t now_s;
    struct table before, table; /* of the level before and of this one */
    struct sample *samples;
    struct entry *entries; /* two halves: beams of this level and of the one before */
    uint32_t *asked;       /* nodes of this round */
    size_t asked_count, asked_cap;
    bool no_memory, give_up;
    struct beam_result *result;
};

static bool is_last(const struct search *s)
{
    return s->level + 1 == s->query->dims;
}

/* ---- tables of nodes */

static void table_fini(struct table *t)
{
    for (size_t i = 0; i < t->count; i++) {
        prefix_view_unref(t->nodes[i].view);
        mem_free(t->nodes[i].providers);
    }
    mem_free(t->nodes);
    mem_free(t->buckets);
    *t = (struct table){0};
}

static uint32_t *bucket_of(const struct table *t, uint32_t parent, int64_t coord)
{
    uint64_t h = ((uint64_t)parent << 32 ^ (uint64_t)coord) * 0x9e3779b97f4a7c15u;

    return &t->buckets[(h >> 32) & (t->bucket_count - 1)];
}

static bool table_grow(struct table *t, size_t level)
{
    size_t cap = t->cap > 0 ? 2 * t->cap : 64;
    struct node *nodes;
    uint32_t *buckets;

    if (t->count < t->cap)
        return true;
    buckets = mem_alloc(2 * cap * sizeof(*buckets));
    nodes = cap < NO_NODE && buckets != NULL ? mem_realloc(t->nodes, cap * sizeof(*nodes)) : NULL;
    if (nodes == NULL) {
        mem_free(buckets);
        return false;
    }
    mem_free(t->buckets);
    t->nodes = nodes;
    t->cap = cap;
    t->buckets = buckets;
    t->bucket_count = 2 * cap;
    for (size_t i = 0; i < t->bucket_count; i++)
        buckets[i] = NO_NODE;
    for (uint32_t i = 0; i < t->count; i++) {
        struct node *n = &nodes[i];
        uint32_t *bucket = bucket_of(t, n->parent, n->coords[level]);
        n->chain = *bucket;
        *bucket = i;
    }
    return true;
}

/* The node of a candidate, made if there is none; NO_NODE if memory is short. */
static uint32_t node_of(struct search *s, uint32_t parent, int64_t coord)
{
    struct table *t = &s->table;

    if (!table_grow(t, s->level))
        return NO_NODE;
    uint32_t *bucket = bucket_of(t, parent, coord);
    for (uint32_t i = *bucket; i != NO_NODE; i = t->nodes[i].chain)
        if (t->nodes[i].parent == parent && t->nodes[i].coords[s->level] == coord)
            return i;
    struct node *n = &t->nodes[t->count];
    *n = (struct node){.parent = parent, .chain = *bucket, .expert = NO_NODE};
    if (s->level > 0)
        memcpy(n->coords, s->before.nodes[parent].coords, s->level * sizeof(n->coords[0]));
    n->coords[s->level] = coord;
    *bucket = (uint32_t)t->count;
    return (uint32_t)t->count++;
}

/* Appends a number that is not negative; NULL if there is no room for it and a NUL. snprintf() took
 * a tenth of a watched search. */
static char *append_number(char *at, const char *end, int64_t number)
{
    char digits[20];
    size_t n = 0;

    do
        digits[n++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    if ((size_t)(end - at) <= n)
        return NULL;
    while (n > 0)
        *at++ = digits[--n];
    return at;
}

/* Prefix or UID of a node; false if it is too long for one, so that nobody can serve it. */
static bool node_text(const struct search *s, const struct node *n, char out[static UID_BYTES])
{
    size_t len = s->prefix_len;
    char *at = out + len;
    const char *end = out + UID_BYTES;

    if (len >= UID_BYTES)
        return false;
    memcpy(out, s->query->prefix, len);
    for (size_t i = 0; i <= s->level; i++) {
        if (i > 0)
            *at++ = '.'; /* there is room: append_number() left some for the NUL */
        at = append_number(at, end, n->coords[i]);
        if (at == NULL)
            return false;
    }
    if (!is_last(s)) {
        if (end - at < 2)
            return false;
        *at++ = '.';
    }
    *at = '\0';
    return true;
}

/* Whether the caller takes an expert from (only) these nodes. */
static bool is_usable(const struct search *s, const struct node *n,
                      const struct provider *providers, size_t count)
{
    char uid[UID_BYTES];

    return s->query->usable == NULL ||
           (node_text(s, n, uid) && s->query->usable(s->query->arg, uid, providers, count));
}

/* ---- candidates */

/* Whether a comes before b: by score, then by coordinates. Both still refer to their parents. */
static bool comes_first(const struct search *s, const struct candidate *a,
                        const struct candidate *b)
{
    if (a->score != b->score)
        return a->score > b->score;
    if (a->ref != b->ref) {
        const int64_t *x = s->before.nodes[a->ref].coords, *y = s->before.nodes[b->ref].coords;
        for (size_t i = 0; i < s->level; i++)
            if (x[i] != y[i])
                return x[i] < y[i];
    }
    return a->coord < b->coord;
}

static void sift_down(const struct search *s, struct candidate *heap, size_t count, size_t i)
{
    struct candidate moved = heap[i];

    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= count)
            break;
        if (child + 1 < count && comes_first(s, &heap[child + 1], &heap[child]))
            child++;
        if (!comes_first(s, &heap[child], &moved))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moved;
}

/* Number i of those popped. */
static struct candidate *popped(const struct sample *p, size_t i)
{
    return &p->list[p->total - 1 - i];
}

/* Moves the best of those that are in no order to their end. Few samples ever need one of them:
 * they become a heap only then. */
static void pop_heap(const struct search *s, struct sample *p)
{
    size_t count = p->left;
    struct candidate best;

    if (!p->is_heap)
        for (size_t i = count / 2; i-- > 0;)
            sift_down(s, p->list, count, i);
    p->is_heap = true;
    best = p->list[0];
    p->list[0] = p->list[count - 1];
    if (count > 1)
        sift_down(s, p->list, count - 1, 0);
    p->list[count - 1] = best;
}

static void pop(struct search *s, struct sample *p)
{
    if (p->best > 0)
        p->best--;
    else
        pop_heap(s, p);
    struct candidate *best = &p->list[--p->left];
    best->ref = node_of(s, best->ref, best->coord);
    if (best->ref == NO_NODE)
        s->no_memory = true;
}

static bool reserve(struct sample *p, size_t count)
{
    if (p->list != NULL && count <= p->cap)
        return true;
    struct candidate *list = mem_realloc(p->list, (count + 1) * sizeof(*list));
    if (list == NULL)
        return false;
    p->list = list;
    p->cap = count;
    return true;
}

/* The best candidates of a sample while it lists them. */
struct best {
    size_t count;
    struct candidate items[MAX_BEST]; /* the best one first */
};

/* Most candidates cost one comparison here: those that come after all of the best. */
static void list_candidate(const struct search *s, struct sample *p, struct best *best,
                           struct candidate c)
{
    size_t at = best->count;

    if (at == s->best_count) {
        const struct candidate *last = &best->items[at - 1];
        if (c.score < last->score || !comes_first(s, &c, last)) {
            p->list[p->total++] = c;
            return;
        }
        p->list[p->total++] = *last;
        at--;
    } else {
        best->count++;
    }
    for (; at > 0 && comes_first(s, &c, &best->items[at - 1]); at--)
        best->items[at] = best->items[at - 1];
    best->items[at] = c;
}

static void list_begin(struct sample *p, struct best *best)
{
    p->total = 0;
    best->count = 0;
}

static void list_end(struct sample *p, const struct best *best)
{
    for (size_t i = best->count; i-- > 0;)
        p->list[p->total++] = best->items[i];
    p->left = p->total;
    p->best = best->count;
    p->is_heap = false;
    p->settled = 0;
    p->full = false;
}

/* Every first coordinate. */
static bool list_first(struct search *s, struct sample *p, const double *scores)
{
    size_t n = (size_t)s->query->sizes[0];
    struct best best;

    if (!reserve(p, n))
        return false;
    list_begin(p, &best);
    for (size_t c = 0; c < n; c++)
        list_candidate(s, p, &best, (struct candidate){scores[c], 0, (int32_t)c});
    list_end(p, &best);
    return true;
}

/* What is alive under the prefixes of the sample's beam. */
static bool list_next(struct search *s, struct sample *p, const double *scores)
{
    int64_t size = s->query->sizes[s->level];
    uint32_t depth = (uint32_t)(s->query->dims - s->level);
    struct best best;
    size_t all = 0;

    for (size_t b = 0; b < p->beam_count; b++) {
        size_t n;
        prefix_view_coords(s->before.nodes[p->beam[b].node].view, &n);
        all += n;
    }
    if (!reserve(p, all))
        return false;
    list_begin(p, &best);
    for (size_t b = 0; b < p->beam_count; b++) {
        struct node *parent = &s->before.nodes[p->beam[b].node];
        const struct prefix_view *view = parent->view;
        size_t n;
        const int64_t *coords = prefix_view_coords(view, &n);
        size_t inside = n;
        bool all_alive = prefix_view_all_alive(view, depth, s->now_s);
        while (inside > 0 && coords[inside - 1] >= size)
            inside--;
        if (!parent->outside_counted) /* samples share prefixes */
            s->result->outside += n - inside;
        parent->outside_counted = true;
        for (size_t i = 0; i < inside; i++) {
            if (all_alive || prefix_view_is_alive(view, i, depth, s->now_s))
                list_candidate(s, p, &best,
                               (struct candidate){p->beam[b].score + scores[coords[i]],
                                                  p->beam[b].node, (int32_t)coords[i]});
        }
    }
    list_end(p, &best);
    return true;
}

static bool list_candidates(struct search *s)
{
    size_t size = (size_t)s->query->sizes[s->level];

    for (size_t i = 0; i < s->query->samples; i++) {
        struct sample *p = &s->samples[i];
        const double *scores = s->query->scores[s->level] + i * size;
        if (!(s->level == 0 ? list_first(s, p, scores) : list_next(s, p, scores)))
            return false;
    }
    return true;
}

/* ---- rounds */

/* An expert is active if some of these may be asked for it. */
static void take_providers(struct search *s, struct node *n, const struct provider *items,
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
static size_t list_named(const struct search *s, const struct node *n,
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
static void take_prefix_word(struct search *s, struct node *n)
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
static void take_found(struct search *s, struct node *n, const struct lookup_result *answer)
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
static void ask(struct search *s, uint32_t index)
{
    struct node *n = &s->table.nodes[index];

    if (is_last(s) && s->level > 0 &&
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
static bool advance(struct search *s, struct sample *p, unsigned round)
{
    size_t ahead;

    for (;;) {
        size_t waiting = p->total - p->left - p->settled;
        if (waiting > 0) {
            const struct candidate *c = popped(p, p->settled);
            enum node_state state = s->table.nodes[c->ref].state;
            if (state == NODE_ACTIVE)
                p->beam[p->beam_count++] = (struct entry){c->score, c->ref};
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
        pop(s, p);
        if (s->no_memory)
            return false;
        uint32_t node = popped(p, p->total - p->left - 1)->ref;
        if (s->table.nodes[node].state == NODE_UNKNOWN)
            ask(s, node);
        if (s->no_memory)
            return false;
    }
}

/* A lookup that was not answered: what it was about counts as empty, and the result as partial. */
static void note_failure(struct search *s, skep_status status)
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

static bool round_init(struct search *s, struct round *r)
{
    *r = (struct round){
        .texts = mem_alloc((s->asked_count + 1) * sizeof(*r->texts)),
        .pointers = mem_alloc((s->asked_count + 1) * sizeof(*r->pointers)),
        .nodes = mem_alloc((s->asked_count + 1) * sizeof(*r->nodes)),
    };
    if (r->texts == NULL || r->pointers == NULL || r->nodes == NULL)
        return false;
    for (size_t i = 0; i < s->asked_count; i++) {
        struct node *n = &s->table.nodes[s->asked[i]];
        if (!node_text(s, n, r->texts[r->count])) {
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

static skep_status ask_prefixes(struct search *s, const struct round *r, struct skep_error *err)
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
        const struct node *n = &s->table.nodes[r->nodes[i]];
        parents[i].view = s->before.nodes[n->parent].view;
        parents[i].coord = n->coords[s->level];
    }
    const struct successors_question question = {r->pointers, parents, r->count, 0};
    skep_status rc =
        directory_successors(s->directory, &question, s->query->deadline_us, answers, err);
    mem_free(parents);
    for (size_t i = 0; i < r->count; i++) {
        struct node *n = &s->table.nodes[r->nodes[i]];
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

static void take_expert(struct search *s, struct node *n, const struct lookup_result *answer)
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

static skep_status ask_experts(struct search *s, const struct round *r, struct skep_error *err)
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
static skep_status ask_all(struct search *s, struct skep_error *err)
{
    struct round r;
    skep_status rc = SKEP_OK;

    if (!round_init(s, &r))
        rc = error_no_memory(err, "beam search", s->asked_count * sizeof(*r.texts));
    else if (r.count > 0)
        rc = is_last(s) ? ask_experts(s, &r, err) : ask_prefixes(s, &r, err);
    s->result->lookups += r.count;
    s->asked_count = 0;
    round_fini(&r);
    return rc;
}

/* ---- levels */

/* Fills every sample's beam of this level. */
static skep_status run_level(struct search *s, struct skep_error *err)
{
    size_t open = s->query->samples;
    skep_status rc = SKEP_OK;

    s->place_count = is_last(s) ? s->query->k : s->width;
    s->best_count = s->place_count < MAX_BEST ? s->place_count : MAX_BEST;
    if (!list_candidates(s))
        return error_no_memory(err, "beam search", s->query->samples * sizeof(struct candidate));
    for (size_t i = 0; i < s->query->samples; i++) {
        /* The beam before has been read; the new one goes to the other half. */
        s->samples[i].beam = s->entries + ((s->level % 2) * s->query->samples + i) * s->width;
        s->samples[i].beam_count = 0;
    }
    for (unsigned round = 0; open > 0 && rc == SKEP_OK; round++) {
        open = 0;
        for (size_t i = 0; i < s->query->samples && !s->no_memory; i++) {
            struct sample *p = &s->samples[i];
            if (!p->full)
                p->full = !advance(s, p, round);
            open += !p->full;
        }
        if (s->asked_count > 0 && !s->no_memory)
            rc = ask_all(s, err);
        if (s->no_memory)
            rc = error_no_memory(err, "beam search", sizeof(struct node));
    }
    return rc;
}

static void next_level(struct search *s)
{
    table_fini(&s->before);
    s->before = s->table;
    s->table = (struct table){0};
}

/* Experts that some sample chose, each once, and the samples' lists of them. */
static bool write_result(struct search *s)
{
    const struct beam_query *q = s->query;
    struct beam_result *r = s->result;

    r->hit_count = mem_calloc(q->samples + 1, sizeof(*r->hit_count));
    r->hits = mem_calloc(q->samples * q->k + 1, sizeof(*r->hits));
    r->experts = mem_calloc(s->before.count + 1, sizeof(*r->experts));
    if (r->hit_count == NULL || r->hits == NULL || r->experts == NULL)
        return false;
    for (size_t i = 0; i < q->samples; i++) {
        const struct sample *p = &s->samples[i];
        for (size_t b = 0; b < p->beam_count; b++) {
            struct node *n = &s->before.nodes[p->beam[b].node];
            if (n->expert == NO_NODE) {
                struct beam_expert *e = &r->experts[r->expert_count];
                n->expert = (uint32_t)r->expert_count++;
                node_text(s, n, e->uid);
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
    struct search s = {.directory = directory, .query = query, .result = out};

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
    table_fini(&s.before);
    table_fini(&s.table);
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
