/* Nodes of a level, and the candidates of each sample in their order: see beam.c. */
#include <string.h>

#include "base/alloc.h"
#include "dht/directory/beam_internal.h"

/* ---- tables of nodes */

void beam_table_fini(struct beam_table *t)
{
    for (size_t i = 0; i < t->count; i++) {
        prefix_view_unref(t->nodes[i].view);
        mem_free(t->nodes[i].providers);
    }
    mem_free(t->nodes);
    mem_free(t->buckets);
    *t = (struct beam_table){0};
}

/* Both numbers are ours: coordinates are within the sizes of the query. */
static uint32_t *bucket_of(const struct beam_table *t, uint32_t parent, int64_t coord)
{
    uint64_t h = ((uint64_t)parent << 32 ^ (uint64_t)coord) * 0x9e3779b97f4a7c15u;

    return &t->buckets[(h >> 32) & (t->bucket_count - 1)];
}

static bool table_grow(struct beam_table *t, size_t level)
{
    size_t cap = t->cap > 0 ? 2 * t->cap : 64;
    struct beam_node *nodes;
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
        struct beam_node *n = &nodes[i];
        uint32_t *bucket = bucket_of(t, n->parent, n->coords[level]);
        n->chain = *bucket;
        *bucket = i;
    }
    return true;
}

/* The node of a candidate, made if there is none; NO_NODE if memory is short. */
static uint32_t node_of(struct beam_state *s, uint32_t parent, int64_t coord)
{
    struct beam_table *t = &s->table;

    if (!table_grow(t, s->level))
        return NO_NODE;
    uint32_t *bucket = bucket_of(t, parent, coord);
    for (uint32_t i = *bucket; i != NO_NODE; i = t->nodes[i].chain)
        if (t->nodes[i].parent == parent && t->nodes[i].coords[s->level] == coord)
            return i;
    struct beam_node *n = &t->nodes[t->count];
    *n = (struct beam_node){.parent = parent, .chain = *bucket, .expert = NO_NODE};
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

bool beam_node_text(const struct beam_state *s, const struct beam_node *n,
                    char out[static UID_BYTES])
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
    if (!beam_is_last(s)) {
        if (end - at < 2)
            return false;
        *at++ = '.';
    }
    *at = '\0';
    return true;
}

/* ---- candidates */

/* Whether a comes before b: by score, then by coordinates. Both still refer to their parents. */
static bool comes_first(const struct beam_state *s, const struct beam_candidate *a,
                        const struct beam_candidate *b)
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

static void sift_down(const struct beam_state *s, struct beam_candidate *heap, size_t count,
                      size_t i)
{
    struct beam_candidate moved = heap[i];

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

/* Moves the best of those that are in no order to their end. Few samples ever need one of them:
 * they become a heap only then. */
static void pop_heap(const struct beam_state *s, struct beam_sample *p)
{
    size_t count = p->left;
    struct beam_candidate best;

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

void beam_pop(struct beam_state *s, struct beam_sample *p)
{
    if (p->best > 0)
        p->best--;
    else
        pop_heap(s, p);
    struct beam_candidate *best = &p->list[--p->left];
    best->ref = node_of(s, best->ref, best->coord);
    if (best->ref == NO_NODE)
        s->no_memory = true;
}

static bool reserve(struct beam_sample *p, size_t count)
{
    if (p->list != NULL && count <= p->cap)
        return true;
    struct beam_candidate *list = mem_realloc(p->list, (count + 1) * sizeof(*list));
    if (list == NULL)
        return false;
    p->list = list;
    p->cap = count;
    return true;
}

/* The best candidates of a sample while it lists them. */
struct best {
    size_t count;
    struct beam_candidate items[BEAM_MAX_BEST]; /* the best one first */
};

/* Most candidates cost one comparison here: those that come after all of the best. */
static void list_candidate(const struct beam_state *s, struct beam_sample *p, struct best *best,
                           struct beam_candidate c)
{
    size_t at = best->count;

    if (at == s->best_count) {
        const struct beam_candidate *last = &best->items[at - 1];
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

static void list_begin(struct beam_sample *p, struct best *best)
{
    p->total = 0;
    best->count = 0;
}

static void list_end(struct beam_sample *p, const struct best *best)
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
static bool list_first(struct beam_state *s, struct beam_sample *p, const double *scores)
{
    size_t n = (size_t)s->query->sizes[0];
    struct best best;

    if (!reserve(p, n))
        return false;
    list_begin(p, &best);
    for (size_t c = 0; c < n; c++)
        list_candidate(s, p, &best, (struct beam_candidate){scores[c], 0, (int32_t)c});
    list_end(p, &best);
    return true;
}

/* What is alive under the prefixes of the sample's beam. */
static bool list_next(struct beam_state *s, struct beam_sample *p, const double *scores)
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
        struct beam_node *parent = &s->before.nodes[p->beam[b].node];
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
                               (struct beam_candidate){p->beam[b].score + scores[coords[i]],
                                                       p->beam[b].node, (int32_t)coords[i]});
        }
    }
    list_end(p, &best);
    return true;
}

bool beam_list_candidates(struct beam_state *s)
{
    size_t size = (size_t)s->query->sizes[s->level];

    for (size_t i = 0; i < s->query->samples; i++) {
        struct beam_sample *p = &s->samples[i];
        const double *scores = s->query->scores[s->level] + i * size;
        if (!(s->level == 0 ? list_first(s, p, scores) : list_next(s, p, scores)))
            return false;
    }
    return true;
}
