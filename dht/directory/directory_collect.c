/* Lookups of every record of a key, and of what is alive under prefixes. */
#include "dht/directory/directory_collect.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "dht/directory/directory_internal.h"

enum {
    /* How long a view of a prefix is taken from the cache: what appears is seen after that. */
    VIEW_FRESH_US = 10 * 1000 * 1000,
};

/* ---- collections */

struct wanted {
    enum record_kind kind;
    const uint8_t *keys;
    const char *label;
};

/* The query of a key, joined or new; NULL if memory is short. */
static struct query *query_for(struct directory *d, const uint8_t *key, const struct wanted *wanted)
{
    struct query *q = query_find(d, key);

    if (q != NULL)
        return q;
    struct collection *records = collection_new();
    if (records == NULL)
        return NULL;
    q = query_new(d, key, wanted->label);
    if (q == NULL) {
        collection_unref(records);
        return NULL;
    }
    q->collects = true;
    q->record_kind = wanted->kind;
    q->records = records;
    return q;
}

static void collect_all(struct directory *d, struct request *r, const void *what)
{
    const struct wanted *wanted = what;

    for (size_t i = 0; i < r->count; i++) {
        struct query *q = query_for(d, wanted->keys + i * RECORD_KEY_BYTES, wanted);
        if (q == NULL)
            continue; /* SKEP_RESOURCE_EXHAUSTED is there already */
        waiter_attach(&r->waiters[i], q);
        r->remaining++;
    }
    request_enter(d, r);
}

static void set_all(struct collect_result *results, size_t count, skep_status status)
{
    for (size_t i = 0; i < count; i++)
        results[i] = (struct collect_result){.status = status};
}

skep_status directory_collect(struct directory *d, enum record_kind kind, const uint8_t *keys,
                              size_t count, const char *label, uint64_t deadline_us,
                              struct collect_result *results, struct skep_error *err)
{
    const struct wanted wanted = {kind, keys, label};

    set_all(results, count, SKEP_RESOURCE_EXHAUSTED);
    if (count == 0)
        return SKEP_OK;
    struct request *r = request_new(count, deadline_us, err);
    if (r == NULL)
        return SKEP_RESOURCE_EXHAUSTED;
    r->collections = results;
    bool asked = request_wait(d, r, collect_all, &wanted);
    mem_free(r);
    if (asked)
        return SKEP_OK;
    set_all(results, count, SKEP_CANCELLED);
    return request_refuse_closing(err);
}

/* ---- successors */

static bool is_root(const char *prefix)
{
    const char *dot = strchr(prefix, '.');

    return dot != NULL && dot[1] == '\0';
}

/* From the cache; false if the DHT has to be asked. */
static bool answer_from_cache(struct directory *d, const uint8_t *key, struct successors *out)
{
    uint64_t now_us = clock_mono_us();
    bool answered = false;

    pthread_mutex_lock(&d->lock);
    struct cache_entry *e = lookup_cache_find(&d->cache, key);
    if (e != NULL && e->miss_until_us > now_us) {
        out->status = SKEP_NOT_FOUND;
        answered = true;
    } else if (e != NULL && e->view != NULL && e->view_until_us > now_us &&
               prefix_view_last_end(e->view) > d->wall_ms() / 1000) {
        prefix_view_ref(e->view);
        *out = (struct successors){.status = SKEP_OK, .view = e->view};
        d->stats.get_hits++;
        answered = true;
    }
    pthread_mutex_unlock(&d->lock);
    return answered;
}

/* Takes a reference of its own. */
static void remember(struct directory *d, const uint8_t *key, struct prefix_view *view,
                     uint64_t until_us)
{
    size_t alive;
    uint64_t now_us = clock_mono_us();

    prefix_view_coords(view, &alive);
    pthread_mutex_lock(&d->lock);
    struct cache_entry *e = lookup_cache_touch(&d->cache, key);
    if (e != NULL) {
        prefix_view_unref(e->view);
        e->view = NULL;
        e->miss_until_us = alive > 0 ? 0 : now_us + d->miss_ttl_us;
        if (alive > 0) {
            prefix_view_ref(view);
            e->view = view;
            e->view_until_us = until_us;
        }
    }
    pthread_mutex_unlock(&d->lock);
}

/* The keys that have to be asked, and for whom. */
struct asking {
    uint8_t *keys; /* owned */
    size_t
        *prefix; /* owned: of each key, the index of its prefix; those of a root stand together */
    size_t count;
};

static void add_keys(struct directory *d, struct asking *a, const char *prefix, size_t index)
{
    static const uint8_t nobody[PEER_ID_BYTES];
    bool root = is_root(prefix);

    for (unsigned shard = 0; shard < (root ? RECORD_SHARDS : 1); shard++) {
        uint8_t *key = a->keys + a->count * RECORD_KEY_BYTES;
        if (root)
            record_key_prefix_root(d->swarm, prefix, shard, key);
        else
            record_key_prefix(d->swarm, prefix, nobody, key);
        a->prefix[a->count++] = index;
    }
}

/* What the shards of one prefix say together: OK if one is, else what they agree on. */
static skep_status joint_status(const struct collect_result *answers, size_t count)
{
    skep_status status = SKEP_NOT_FOUND;

    for (size_t i = 0; i < count; i++) {
        if (answers[i].status == SKEP_OK)
            return SKEP_OK;
        if (answers[i].status != SKEP_NOT_FOUND)
            status = answers[i].status;
    }
    return status;
}

static void conclude(struct directory *d, const struct asking *a, size_t first, size_t count,
                     const struct collect_result *answers, struct successors *out)
{
    struct collection *lists[RECORD_SHARDS];
    size_t alive = 0;

    *out = (struct successors){.status = joint_status(answers, count)};
    if (out->status != SKEP_OK)
        return;
    for (size_t i = 0; i < count; i++)
        lists[i] = answers[i].records;
    out->view = prefix_view_new(lists, count, d->wall_ms() / 1000, NULL, NULL, d->memory);
    if (out->view == NULL) {
        out->status = SKEP_RESOURCE_EXHAUSTED;
        return;
    }
    if (count == 1)
        remember(d, a->keys + first * RECORD_KEY_BYTES, out->view, clock_mono_us() + VIEW_FRESH_US);
    prefix_view_coords(out->view, &alive);
    if (alive == 0) {
        prefix_view_unref(out->view);
        *out = (struct successors){.status = SKEP_NOT_FOUND};
    }
}

static skep_status ask_all(struct directory *d, const struct asking *a, uint64_t deadline_us,
                           struct successors *results, struct skep_error *err)
{
    struct collect_result *answers = mem_calloc(a->count + 1, sizeof(*answers));

    if (answers == NULL)
        return error_no_memory(err, "prefix lookup", a->count * sizeof(*answers));
    skep_status rc =
        directory_collect(d, RECORD_PREFIX, a->keys, a->count, "prefix", deadline_us, answers, err);
    for (size_t first = 0, end; first < a->count; first = end) {
        end = first + 1;
        while (end < a->count && a->prefix[end] == a->prefix[first])
            end++;
        conclude(d, a, first, end - first, &answers[first], &results[a->prefix[first]]);
    }
    for (size_t i = 0; i < a->count; i++)
        collection_unref(answers[i].records);
    mem_free(answers);
    return rc;
}

/* Until when a view that is in the cache counts as fresh; 0: it is not there. */
static uint64_t fresh_until(struct directory *d, const char *prefix, const struct prefix_view *view)
{
    static const uint8_t nobody[PEER_ID_BYTES];
    uint8_t key[RECORD_KEY_BYTES];
    uint64_t until_us = 0;

    record_key_prefix(d->swarm, prefix, nobody, key);
    pthread_mutex_lock(&d->lock);
    const struct cache_entry *e = lookup_cache_find(&d->cache, key);
    if (e != NULL && e->view == view)
        until_us = e->view_until_us;
    pthread_mutex_unlock(&d->lock);
    return until_us;
}

/* From what was said under the prefix before; false if the DHT has to be asked. */
static bool answer_from_parent(struct directory *d, const char *prefix, const uint8_t *key,
                               const struct successors_parent *parent, struct successors *out)
{
    size_t index = parent->view != NULL ? prefix_view_find(parent->view, parent->coord) : SIZE_MAX;
    char before[UID_BYTES];
    size_t len = strlen(prefix) - 1, alive;

    if (index == SIZE_MAX)
        return false;
    struct prefix_view *view =
        prefix_view_below(parent->view, index, d->wall_ms() / 1000, d->memory);
    if (view == NULL)
        return false;
    prefix_view_coords(view, &alive);
    if (alive == 0) {
        prefix_view_unref(view);
        return false;
    }
    while (len > 0 && prefix[len - 1] != '.')
        len--;
    memcpy(before, prefix, len);
    before[len] = '\0';
    uint64_t until_us = fresh_until(d, before, parent->view);
    if (until_us > 0)
        remember(d, key, view, until_us);
    *out = (struct successors){.status = SKEP_OK, .view = view};
    return true;
}

/* False: no live view that is in step covers it. */
static bool answer_from_view(struct directory *d, const char *prefix, struct successors *out)
{
    struct prefix_view *view;

    if (!live_views_find(&d->live_views, prefix, strlen(prefix), &view))
        return false;
    if (view != NULL && prefix_view_last_end(view) > d->wall_ms() / 1000) {
        *out = (struct successors){.status = SKEP_OK, .view = view, .watched = true};
    } else {
        *out = (struct successors){.status = SKEP_NOT_FOUND};
        prefix_view_unref(view);
    }
    return true;
}

/* Answers what is known here; the keys of the rest go to *a. */
static void answer_known(struct directory *d, const struct successors_question *of,
                         struct successors *results, struct asking *a)
{
    uint8_t key[RECORD_KEY_BYTES];
    static const uint8_t nobody[PEER_ID_BYTES];

    for (size_t i = 0; i < of->count; i++)
        if (of->prefixes[i] == NULL ||
            !uid_prefix_is_valid(of->prefixes[i], strnlen(of->prefixes[i], UID_BYTES)))
            results[i].status = SKEP_INVALID_ARGUMENT;
    for (size_t i = 0; i < of->count; i++) {
        const char *prefix = of->prefixes[i];
        if (results[i].status != SKEP_RESOURCE_EXHAUSTED)
            continue;
        if (!(of->flags & DIRECTORY_FRESH)) {
            if (answer_from_view(d, prefix, &results[i]))
                continue;
            record_key_prefix(d->swarm, prefix, nobody, key);
            if (!is_root(prefix) && answer_from_cache(d, key, &results[i]))
                continue;
            if (of->parents != NULL &&
                answer_from_parent(d, prefix, key, &of->parents[i], &results[i]))
                continue;
        }
        add_keys(d, a, prefix, i);
    }
}

skep_status directory_successors(struct directory *d, const struct successors_question *of,
                                 uint64_t deadline_us, struct successors *results,
                                 struct skep_error *err)
{
    struct asking a = {0};
    size_t keys = 0;
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < of->count; i++) {
        results[i] = (struct successors){.status = SKEP_RESOURCE_EXHAUSTED};
        keys += of->prefixes[i] != NULL && is_root(of->prefixes[i]) ? RECORD_SHARDS : 1;
    }
    a.keys = mem_calloc(keys + 1, RECORD_KEY_BYTES);
    a.prefix = mem_calloc(keys + 1, sizeof(*a.prefix));
    if (a.keys == NULL || a.prefix == NULL) {
        rc = error_no_memory(err, "prefix lookup", keys * RECORD_KEY_BYTES);
        goto out;
    }
    answer_known(d, of, results, &a);
    if (a.count > 0)
        rc = ask_all(d, &a, deadline_us, results, err);

out:
    mem_free(a.keys);
    mem_free(a.prefix);
    return rc;
}

void successors_free(struct successors *results, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        prefix_view_unref(results[i].view);
        results[i].view = NULL;
    }
}
