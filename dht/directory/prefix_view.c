/* Prefix records merged into an index by coordinate. */
#include "dht/directory/prefix_view.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

enum {
    /* Members of all coordinates together: a record of 60 KB may list 60,000, and strangers may
     * write many. Beyond, the longest records are left out: who lists little is not crowded out by
     * a few who list everything. */
    MAX_MEMBERS = 1 << 20,
    LIFETIME_PART = 4, /* refreshed when this part of a record's life is left */
};

/* One record. */
struct source {
    uint8_t peer_id[PEER_ID_BYTES];
    uint64_t seq;
    int64_t expires_at;
    uint32_t features;
    uint32_t depth; /* as in the record */
    struct record_load load;
    uint64_t rank; /* peer_memory.h; 0 where no coordinate can overflow */
    uint8_t endpoint_count;
    uint16_t ports[RECORD_MAX_ENDPOINTS];
    char *hosts; /* owned: endpoint_count texts, each with its NUL */
    /* Of a record that says what is below: its coordinates, then that. Owned; else NULL. */
    int64_t *listed;
    size_t coord_count, below_len;
};

struct prefix_view {
    atomic_uint refs;
    int64_t first_end, last_end, refresh_at;
    size_t source_count, peer_count, coord_count;
    bool mixed_depths;       /* its sources do not all say the same depth */
    struct source *sources;  /* owned, as all below; freshest first */
    struct view_peer *peers; /* sorted by id */
    int64_t *coords;
    uint32_t *first;   /* coord_count + 1: where each coordinate's members begin */
    uint32_t *members; /* indexes of sources */
    bool *bare;        /* of each coordinate: who lists it does not say what is below */
};

void prefix_view_ref(struct prefix_view *v)
{
    /* Relaxed: whoever adds a reference holds one already. */
    atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
}

static void free_view(struct prefix_view *v)
{
    for (size_t i = 0; v->sources != NULL && i < v->source_count; i++) {
        mem_free(v->sources[i].hosts);
        mem_free(v->sources[i].listed);
    }
    mem_free(v->sources);
    mem_free(v->peers);
    mem_free(v->coords);
    mem_free(v->first);
    mem_free(v->members);
    mem_free(v->bare);
    mem_free(v);
}

void prefix_view_unref(struct prefix_view *v)
{
    if (v != NULL && atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) == 1)
        free_view(v);
}

/* ---- building */

struct draft {
    const struct record **records; /* views of the collections, freshest first */
    size_t count;
    size_t members; /* of those that are taken */
    struct pair {
        int64_t coord;
        uint64_t rank; /* of the source, copied for sorting */
        uint32_t source;
    } * pairs;
};

static int by_peer_newest_first(const void *a, const void *b)
{
    const struct record *x = *(const struct record *const *)a;
    const struct record *y = *(const struct record *const *)b;
    int order = memcmp(x->peer_id, y->peer_id, PEER_ID_BYTES);

    if (order != 0)
        return order;
    return x->seq > y->seq ? -1 : x->seq < y->seq;
}

static int newest_first(const void *a, const void *b)
{
    const struct record *x = *(const struct record *const *)a;
    const struct record *y = *(const struct record *const *)b;

    if (x->seq != y->seq)
        return x->seq > y->seq ? -1 : 1;
    return memcmp(x->peer_id, y->peer_id, PEER_ID_BYTES);
}

static int by_coord(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;

    if (x->coord != y->coord)
        return x->coord < y->coord ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->source < y->source ? -1 : x->source > y->source;
}

/* Lists all records that count; those of one peer together. False if memory is short. */
static bool list_records(struct draft *d, struct collection *const *lists, size_t count,
                         prefix_view_counts_fn counts, void *arg)
{
    size_t all = 0;

    for (size_t i = 0; i < count; i++)
        all += lists[i] != NULL ? lists[i]->count : 0;
    d->records = mem_calloc(all + 1, sizeof(*d->records));
    if (d->records == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; lists[i] != NULL && k < lists[i]->count; k++) {
            const struct record *r = &lists[i]->items[k].record;
            if (r->kind == RECORD_PREFIX && (counts == NULL || counts(arg, r)))
                d->records[d->count++] = r;
        }
    if (d->count > 1)
        qsort(d->records, d->count, sizeof(*d->records), by_peer_newest_first);
    return true;
}

static bool same_peer(const struct record *a, const struct record *b)
{
    return memcmp(a->peer_id, b->peer_id, PEER_ID_BYTES) == 0;
}

/* Notes the peers, and drops parts that are left from when a peer spoke in more of them. */
static bool note_peers(struct prefix_view *v, struct draft *d)
{
    const struct record *newest = NULL;
    bool lists_something = false;
    size_t kept = 0;

    v->peers = mem_calloc(d->count + 1, sizeof(*v->peers));
    if (v->peers == NULL)
        return false;
    for (size_t i = 0; i < d->count; i++) {
        const struct record *r = d->records[i];
        if (newest == NULL || !same_peer(newest, r)) {
            newest = r;
            lists_something = false;
            memcpy(v->peers[v->peer_count].peer_id, r->peer_id, PEER_ID_BYTES);
            v->peers[v->peer_count++].seq = r->seq;
        }
        if (!lists_something && r->prefix.coord_count > 0) {
            lists_something = true; /* an empty part beside it, a notification, says nothing */
            v->peers[v->peer_count - 1].seq = r->seq;
        }
        if (r->prefix.part < newest->prefix.parts)
            d->records[kept++] = r;
    }
    d->count = kept;
    return true;
}

static bool pack_source(struct source *s, const struct record *r)
{
    const struct record_prefix *p = &r->prefix;
    size_t bytes = 0;

    for (size_t i = 0; i < p->endpoint_count; i++)
        bytes += strlen(p->endpoints[i].host) + 1;
    *s = (struct source){.seq = r->seq,
                         .expires_at = r->expires_at,
                         .features = p->features,
                         .depth = p->depth,
                         .load = p->load};
    memcpy(s->peer_id, r->peer_id, sizeof(s->peer_id));
    s->hosts = mem_alloc(bytes + 1);
    if (s->hosts == NULL)
        return false;
    char *at = s->hosts;
    for (size_t i = 0; i < p->endpoint_count; i++) {
        size_t n = strlen(p->endpoints[i].host) + 1;
        memcpy(at, p->endpoints[i].host, n);
        s->ports[i] = p->endpoints[i].port;
        at += n;
    }
    s->endpoint_count = (uint8_t)p->endpoint_count;
    if (p->below_len == 0)
        return true;
    s->listed = mem_alloc((p->coord_count + p->below_len) * sizeof(*s->listed));
    if (s->listed == NULL) {
        mem_free(s->hosts);
        s->hosts = NULL;
        return false;
    }
    memcpy(s->listed, p->coords, p->coord_count * sizeof(*s->listed));
    memcpy(s->listed + p->coord_count, p->below, p->below_len * sizeof(*s->listed));
    s->coord_count = p->coord_count;
    s->below_len = p->below_len;
    return true;
}

static void note_times(struct prefix_view *v, const struct record *r)
{
    int64_t since = (int64_t)(r->seq / 1000);
    int64_t lifetime = r->expires_at > since ? r->expires_at - since : 0;
    int64_t refresh_at = r->expires_at - lifetime / LIFETIME_PART;

    if (r->expires_at < v->first_end)
        v->first_end = r->expires_at;
    if (r->expires_at > v->last_end)
        v->last_end = r->expires_at;
    if (refresh_at < v->refresh_at)
        v->refresh_at = refresh_at;
}

static int shortest_first(const void *a, const void *b)
{
    const struct record *x = *(const struct record *const *)a;
    const struct record *y = *(const struct record *const *)b;

    return x->prefix.coord_count < y->prefix.coord_count
               ? -1
               : x->prefix.coord_count > y->prefix.coord_count;
}

/* Drops what has ended or lists nothing, and what there is no room for; freshest first after. */
static void select_records(struct draft *d, int64_t now_s)
{
    size_t kept = 0;

    for (size_t i = 0; i < d->count; i++) {
        const struct record *r = d->records[i];
        if (r->expires_at <= now_s || r->prefix.coord_count == 0)
            continue;
        d->records[kept++] = r;
        d->members += r->prefix.coord_count;
    }
    d->count = kept;
    if (d->members > MAX_MEMBERS) {
        qsort(d->records, d->count, sizeof(*d->records), shortest_first);
        while (d->members > MAX_MEMBERS)
            d->members -= d->records[--d->count]->prefix.coord_count;
    }
    if (d->count > 1)
        qsort(d->records, d->count, sizeof(*d->records), newest_first);
}

/* Sources and (coordinate, source) pairs of what is left. */
static bool take_records(struct prefix_view *v, struct draft *d, int64_t now_s,
                         struct peer_memory *memory)
{
    uint64_t now_us = clock_mono_us();
    size_t n = 0;

    select_records(d, now_s);
    v->sources = mem_calloc(d->count + 1, sizeof(*v->sources));
    d->pairs = mem_calloc(d->members + 1, sizeof(*d->pairs));
    if (v->sources == NULL || d->pairs == NULL)
        return false;
    for (size_t i = 0; i < d->count; i++) {
        const struct record *r = d->records[i];
        struct source *s = &v->sources[v->source_count];
        if (!pack_source(s, r))
            return false;
        if (d->count > DIRECTORY_MAX_PROVIDERS)
            s->rank = peer_memory_rank(memory, r->peer_id, 0, now_us);
        for (size_t k = 0; k < r->prefix.coord_count; k++)
            d->pairs[n++] = (struct pair){r->prefix.coords[k], s->rank, (uint32_t)v->source_count};
        v->mixed_depths = v->mixed_depths || s->depth != v->sources[0].depth;
        v->source_count++;
        note_times(v, r);
    }
    return true;
}

/* A peer that lists a coordinate in two parts serves it once, unless they are of different depth.
 */
static bool has_member(const struct prefix_view *v, uint32_t first, uint32_t end, uint32_t source)
{
    for (uint32_t i = first; i < end; i++)
        if (v->sources[v->members[i]].depth == v->sources[source].depth &&
            memcmp(v->sources[v->members[i]].peer_id, v->sources[source].peer_id, PEER_ID_BYTES) ==
                0)
            return true;
    return false;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* Members are chosen by place, and stand freshest first all the same. */
static void close_coord(struct prefix_view *v, uint32_t n)
{
    uint32_t first = v->coord_count > 0 ? v->first[v->coord_count - 1] : 0;

    if (n - first > 1)
        qsort(&v->members[first], n - first, sizeof(*v->members), by_number);
}

static bool index_pairs(struct prefix_view *v, struct draft *d)
{
    uint32_t n = 0;

    v->coords = mem_calloc(d->members + 1, sizeof(*v->coords));
    v->first = mem_calloc(d->members + 1, sizeof(*v->first));
    v->members = mem_calloc(d->members + 1, sizeof(*v->members));
    v->bare = mem_calloc(d->members + 1, sizeof(*v->bare));
    if (v->coords == NULL || v->first == NULL || v->members == NULL || v->bare == NULL)
        return false;
    if (d->members > 1)
        qsort(d->pairs, d->members, sizeof(*d->pairs), by_coord);
    for (size_t i = 0; i < d->members; i++) {
        const struct pair *p = &d->pairs[i];
        if (v->coord_count == 0 || v->coords[v->coord_count - 1] != p->coord) {
            close_coord(v, n);
            v->first[v->coord_count] = n;
            v->coords[v->coord_count++] = p->coord;
        }
        uint32_t first = v->first[v->coord_count - 1];
        if (v->sources[p->source].depth != 1 && v->sources[p->source].below_len == 0)
            v->bare[v->coord_count - 1] = true;
        /* Of one coordinate more providers than can be answered are of no use. */
        if (n - first < DIRECTORY_MAX_PROVIDERS && !has_member(v, first, n, p->source))
            v->members[n++] = p->source;
    }
    close_coord(v, n);
    v->first[v->coord_count] = n;
    return true;
}

struct prefix_view *prefix_view_new(struct collection *const *lists, size_t count, int64_t now_s,
                                    prefix_view_counts_fn counts, void *arg,
                                    struct peer_memory *memory)
{
    struct prefix_view *v = mem_calloc(1, sizeof(*v));
    struct draft d = {0};
    bool ok = false;

    if (v == NULL)
        return NULL;
    atomic_init(&v->refs, 1);
    v->first_end = v->refresh_at = INT64_MAX;
    ok = list_records(&d, lists, count, counts, arg) && note_peers(v, &d);
    ok = ok && take_records(v, &d, now_s, memory) && index_pairs(v, &d);
    mem_free(d.pairs);
    mem_free(d.records);
    if (ok)
        return v;
    free_view(v);
    return NULL;
}

/* ---- one level further down */

static void unpack_endpoints(const struct source *s, struct endpoint *out)
{
    const char *host = s->hosts;

    for (size_t i = 0; i < s->endpoint_count; i++) {
        size_t n = strlen(host) + 1;
        memcpy(out[i].host, host, n);
        out[i].port = s->ports[i];
        host += n;
    }
}

/* The coordinates that a source lists below one of its own; NULL if it does not list that. */
static const int64_t *listed_below(const struct source *s, int64_t coord, size_t *count)
{
    const int64_t *at = s->listed + s->coord_count;

    for (size_t i = 0; s->below_len > 0 && i < s->coord_count && s->listed[i] <= coord; i++) {
        *count = (size_t)at[0];
        if (s->listed[i] == coord)
            return at + 1;
        at += 1 + *count;
    }
    return NULL;
}

/* The record that a source would put under the longer prefix. False if memory is short. */
static bool put_below(struct collection *out, const struct source *s, const int64_t *coords,
                      size_t count, unsigned part, unsigned parts)
{
    struct record r = {
        .kind = RECORD_PREFIX,
        .seq = s->seq,
        .expires_at = s->expires_at,
        .prefix = {.endpoint_count = s->endpoint_count,
                   .features = s->features,
                   .part = part,
                   .parts = parts,
                   .depth = s->depth - 1,
                   .coord_count = count,
                   .load = s->load},
    };

    memcpy(r.peer_id, s->peer_id, sizeof(r.peer_id));
    unpack_endpoints(s, r.prefix.endpoints);
    r.prefix.coords = mem_alloc(count * sizeof(*coords));
    if (r.prefix.coords == NULL)
        return false;
    memcpy(r.prefix.coords, coords, count * sizeof(*coords));
    collection_put(out, &r, 0);
    return true;
}

struct prefix_view *prefix_view_below(const struct prefix_view *v, size_t index, int64_t now_s,
                                      struct peer_memory *memory)
{
    struct prefix_view *below = NULL;
    bool ok = true;

    if (v->bare[index])
        return NULL;
    struct collection *records = collection_new();
    if (records == NULL)
        return NULL;
    for (size_t i = 0; i < v->source_count && ok; i++) {
        const struct source *s = &v->sources[i];
        size_t count;
        const int64_t *coords = listed_below(s, v->coords[index], &count);
        if (coords != NULL && s->expires_at > now_s)
            ok = put_below(records, s, coords, count, (unsigned)i, (unsigned)v->source_count);
    }
    if (ok)
        below = prefix_view_new(&records, 1, now_s, NULL, NULL, memory);
    collection_unref(records);
    return below;
}

/* ---- reading */

const int64_t *prefix_view_coords(const struct prefix_view *v, size_t *count)
{
    *count = v->coord_count;
    return v->coords;
}

size_t prefix_view_find(const struct prefix_view *v, int64_t coord)
{
    size_t first = 0, end = v->coord_count;

    while (first < end) {
        size_t middle = first + (end - first) / 2;
        if (v->coords[middle] == coord)
            return middle;
        if (v->coords[middle] > coord)
            end = middle;
        else
            first = middle + 1;
    }
    return SIZE_MAX;
}

static const struct source *member(const struct prefix_view *v, uint32_t i)
{
    return &v->sources[v->members[i]];
}

bool prefix_view_is_alive(const struct prefix_view *v, size_t index, uint32_t depth, int64_t now_s)
{
    for (uint32_t i = v->first[index]; i < v->first[index + 1]; i++) {
        const struct source *s = member(v, i);
        if (s->expires_at > now_s && (depth == 0 || s->depth == 0 || s->depth == depth))
            return true;
    }
    return false;
}

bool prefix_view_all_alive(const struct prefix_view *v, uint32_t depth, int64_t now_s)
{
    uint32_t said = v->source_count > 0 ? v->sources[0].depth : 0;

    return v->first_end > now_s && !v->mixed_depths && (depth == 0 || said == 0 || said == depth);
}

static bool is_leaf(const struct source *s)
{
    return s->depth <= 1;
}

bool prefix_view_is_leaf(const struct prefix_view *v, size_t index)
{
    /* Who has no view has no index either: see compare() in watch_tree.c, which cppcheck misreads.
     */
    /* cppcheck-suppress ctunullpointer */
    for (uint32_t i = v->first[index]; i < v->first[index + 1]; i++)
        if (is_leaf(member(v, i)))
            return true;
    return false;
}

bool prefix_view_is_branch(const struct prefix_view *v, size_t index)
{
    for (uint32_t i = v->first[index]; i < v->first[index + 1]; i++)
        if (member(v, i)->depth != 1)
            return true;
    return false;
}

int64_t prefix_view_first_end(const struct prefix_view *v)
{
    return v->first_end;
}

int64_t prefix_view_last_end(const struct prefix_view *v)
{
    return v->last_end;
}

int64_t prefix_view_refresh_at(const struct prefix_view *v)
{
    return v->refresh_at;
}

static void unpack_source(const struct source *s, struct provider *out)
{
    memset(out, 0, sizeof(*out));
    memcpy(out->peer_id, s->peer_id, sizeof(out->peer_id));
    out->seq = s->seq;
    out->expires_at = s->expires_at;
    out->features = s->features;
    out->load = s->load;
    out->endpoint_count = s->endpoint_count;
    unpack_endpoints(s, out->endpoints);
}

size_t prefix_view_providers(const struct prefix_view *v, size_t index, int64_t now_s,
                             struct provider *out, size_t cap)
{
    size_t n = 0;

    for (uint32_t i = v->first[index]; i < v->first[index + 1] && n < cap; i++) {
        const struct source *s = member(v, i);
        bool again = false; /* one peer may speak of a coordinate with and without a depth */
        for (size_t k = 0; k < n && !again; k++)
            again = memcmp(out[k].peer_id, s->peer_id, PEER_ID_BYTES) == 0;
        if (s->expires_at > now_s && is_leaf(s) && !again)
            unpack_source(s, &out[n++]);
    }
    return n;
}

static bool same_endpoints(const struct source *a, const struct source *b)
{
    const char *x = a->hosts, *y = b->hosts;

    if (a->endpoint_count != b->endpoint_count)
        return false;
    for (size_t i = 0; i < a->endpoint_count; i++) {
        if (a->ports[i] != b->ports[i] || strcmp(x, y) != 0)
            return false;
        x += strlen(x) + 1;
        y += strlen(y) + 1;
    }
    return true;
}

/* Whether every leaf source of `a` has its like in `b`. */
static bool is_covered(const struct prefix_view *a, size_t index_a, const struct prefix_view *b,
                       size_t index_b)
{
    for (uint32_t i = a->first[index_a]; i < a->first[index_a + 1]; i++) {
        const struct source *s = member(a, i);
        bool found = !is_leaf(s);
        for (uint32_t k = b->first[index_b]; k < b->first[index_b + 1] && !found; k++)
            found = is_leaf(member(b, k)) &&
                    memcmp(member(b, k)->peer_id, s->peer_id, PEER_ID_BYTES) == 0 &&
                    same_endpoints(member(b, k), s);
        if (!found)
            return false;
    }
    return true;
}

bool prefix_view_same(const struct prefix_view *a, size_t index_a, const struct prefix_view *b,
                      size_t index_b)
{
    return is_covered(a, index_a, b, index_b) && is_covered(b, index_b, a, index_a);
}

bool prefix_view_lists(const struct prefix_view *v, size_t index,
                       const uint8_t peer_id[static PEER_ID_BYTES])
{
    for (uint32_t i = v->first[index]; i < v->first[index + 1]; i++)
        if (memcmp(member(v, i)->peer_id, peer_id, PEER_ID_BYTES) == 0)
            return true;
    return false;
}

bool prefix_view_gained(const struct prefix_view *before, const struct prefix_view *now,
                        int64_t coord)
{
    size_t i = prefix_view_find(now, coord), k = prefix_view_find(before, coord);

    if (i == SIZE_MAX || k == SIZE_MAX)
        return i != SIZE_MAX;
    for (uint32_t m = now->first[i]; m < now->first[i + 1]; m++)
        if (!prefix_view_lists(before, k, member(now, m)->peer_id))
            return true;
    return false;
}

/* Whether whoever lists something in `a` lists it in `b`. */
static bool is_within(const struct prefix_view *a, const struct prefix_view *b)
{
    for (size_t i = 0; i < a->coord_count; i++)
        if (prefix_view_gained(b, a, a->coords[i]))
            return false;
    return true;
}

bool prefix_view_agrees(const struct prefix_view *a, const struct prefix_view *b)
{
    return is_within(a, b) && is_within(b, a);
}

static int compare_peer(const void *key, const void *peer)
{
    return memcmp(key, ((const struct view_peer *)peer)->peer_id, PEER_ID_BYTES);
}

const struct view_peer *prefix_view_find_peer(const struct prefix_view *v,
                                              const uint8_t peer_id[static PEER_ID_BYTES])
{
    if (v->peer_count == 0)
        return NULL;
    return bsearch(peer_id, v->peers, v->peer_count, sizeof(*v->peers), compare_peer);
}
