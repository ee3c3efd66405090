/* Lookups that want all answers of some keys. directory_list.h has the rule. */
#include "dht/directory/directory_list.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "dht/directory/directory_internal.h"

enum {
    QUIET_US = 250 * 1000, /* nothing new for so long: whoever is alive has spoken */
    AGAIN_US = 100 * 1000, /* before an empty answer is asked once more */
    MAX_ROUNDS = 2,
    MAX_VALUES = 4096, /* of all keys together; signatures cost some 60 us each */
    MAX_BYTES = 4 << 20,
};

struct value {
    struct value *next;
    size_t key; /* index */
    size_t len;
    uint8_t data[];
};

/* One question. OpenDHT may answer after the asker has gone, so it is counted. */
struct listing {
    pthread_mutex_t lock; /* guards all below but refs and key_args */
    pthread_cond_t changed;
    bool closed; /* nobody listens any more */
    size_t open; /* keys whose "done" is still to come */
    struct value *values;
    size_t value_count, value_bytes;
    uint64_t newest_us; /* when the last value came; 0: none yet */
    atomic_uint refs;   /* the asker's, and one for each key OpenDHT still has */
    struct key_arg {
        struct listing *listing;
        size_t key;
    } key_args[DIRECTORY_MAX_LIST_KEYS];
};

static void unref(struct listing *l)
{
    if (atomic_fetch_sub(&l->refs, 1) != 1)
        return;
    while (l->values != NULL) {
        struct value *v = l->values;
        l->values = v->next;
        mem_free(v);
    }
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    mem_free(l);
}

/* ---- on OpenDHT's thread ---- */

/* With the lock held. Replicas bring one record several times. */
static bool is_known(const struct listing *l, size_t key, const uint8_t *data, size_t len)
{
    for (const struct value *v = l->values; v != NULL; v = v->next)
        if (v->key == key && v->len == len && memcmp(v->data, data, len) == 0)
            return true;
    return false;
}

static bool on_value(void *arg, uint64_t value_id, const uint8_t *data, size_t len)
{
    const struct key_arg *k = arg;
    struct listing *l = k->listing;

    (void)value_id;
    pthread_mutex_lock(&l->lock);
    bool open = !l->closed;
    if (open && len <= RECORD_MAX_BYTES && l->value_count < MAX_VALUES &&
        l->value_bytes + len <= MAX_BYTES && !is_known(l, k->key, data, len)) {
        struct value *v = mem_alloc(sizeof(*v) + len);
        if (v != NULL) {
            *v = (struct value){.next = l->values, .key = k->key, .len = len};
            memcpy(v->data, data, len);
            l->values = v;
            l->value_count++;
            l->value_bytes += len;
            l->newest_us = clock_mono_us();
            pthread_cond_signal(&l->changed);
        }
    }
    pthread_mutex_unlock(&l->lock);
    return open;
}

static void on_done(void *arg, bool ok)
{
    struct listing *l = ((const struct key_arg *)arg)->listing;

    (void)ok;
    pthread_mutex_lock(&l->lock);
    l->open--;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
    unref(l);
}

/* ---- the asker's thread ---- */

/* Asks and waits, as the header says. Values are left in *out. @return SKEP_OK when everybody has
 * spoken or it has become quiet; SKEP_DEADLINE_EXCEEDED. */
static skep_status ask(struct directory *d, const uint8_t *keys, size_t count, uint64_t deadline_us,
                       struct value **out, struct skep_error *err)
{
    struct listing *l = mem_calloc(1, sizeof(*l));
    skep_status rc = SKEP_OK;

    *out = NULL;
    if (l == NULL)
        return error_no_memory(err, "directory lookup", sizeof(*l));
    pthread_mutex_init(&l->lock, NULL);
    cond_init(&l->changed);
    atomic_init(&l->refs, (unsigned)count + 1);
    l->open = count;
    for (size_t i = 0; i < count; i++) {
        l->key_args[i] = (struct key_arg){l, i};
        runner_get(d->runner, keys + i * RECORD_KEY_BYTES, on_value, on_done, &l->key_args[i]);
    }
    pthread_mutex_lock(&l->lock);
    while (l->open > 0) {
        uint64_t quiet_us = l->newest_us > 0 ? l->newest_us + QUIET_US : CLOCK_NEVER;
        uint64_t until_us = quiet_us < deadline_us ? quiet_us : deadline_us;
        if (!cond_wait_until(&l->changed, &l->lock, until_us) && l->open > 0 &&
            clock_mono_us() >= until_us) {
            rc = l->newest_us > 0 ? SKEP_OK : SKEP_DEADLINE_EXCEEDED;
            break;
        }
    }
    l->closed = true;
    *out = l->values;
    l->values = NULL;
    pthread_mutex_unlock(&l->lock);
    unref(l);
    return rc;
}

static bool is_offline(const struct record *r)
{
    return (r->kind == RECORD_TRACKER && r->tracker.offline) ||
           (r->kind == RECORD_RESOURCE && r->resource.offline) ||
           (r->kind == RECORD_NODE && strcmp(r->node.state, "offline") == 0);
}

/* Both are of one kind. */
static bool same_subject(const struct record *a, const struct record *b)
{
    return memcmp(a->peer_id, b->peer_id, PEER_ID_BYTES) == 0 &&
           (a->kind != RECORD_RESOURCE || strcmp(a->resource.key, b->resource.key) == 0);
}

/* Takes a record in, unless a newer one of its peer and subject is there. Taken always. */
static void merge(struct record_list *list, struct record *record)
{
    for (size_t i = 0; i < list->count; i++) {
        struct record *known = &list->items[i];
        if (!same_subject(known, record))
            continue;
        if (known->seq < record->seq) {
            record_free(known);
            *known = *record;
        } else {
            record_free(record);
        }
        return;
    }
    if (list->count == DIRECTORY_MAX_LISTED)
        record_free(record);
    else
        list->items[list->count++] = *record;
}

static skep_status verify_all(struct directory *d, enum record_kind kind, const uint8_t *keys,
                              const struct value *values, bool others_only,
                              struct record_list *list, struct skep_error *err)
{
    int64_t now_s = d->wall_ms() / 1000;

    if (list->items == NULL)
        list->items = mem_calloc(DIRECTORY_MAX_LISTED, sizeof(*list->items));
    if (list->items == NULL)
        return error_no_memory(err, "records", DIRECTORY_MAX_LISTED * sizeof(*list->items));
    for (const struct value *v = values; v != NULL; v = v->next) {
        struct record record;
        struct skep_error why = {0};
        skep_status rc = record_decode(&record, v->data, v->len, d->swarm,
                                       keys + v->key * RECORD_KEY_BYTES, now_s, &why);
        struct record_misdated misdated;
        if (rc != SKEP_OK)
            log_debug("directory: record refused: %s", why.message);
        if (rc != SKEP_OK && record_is_misdated(v->data, v->len, d->swarm,
                                                keys + v->key * RECORD_KEY_BYTES, now_s, &misdated))
            directory_note_misdated(d, keys + v->key * RECORD_KEY_BYTES, "lists", &misdated);
        if (rc != SKEP_OK)
            continue;
        if (record.kind != kind ||
            (others_only && memcmp(record.peer_id, d->identity->peer_id, PEER_ID_BYTES) == 0))
            record_free(&record);
        else
            merge(list, &record);
    }
    return SKEP_OK;
}

static int freshest_first(const void *a, const void *b)
{
    const struct record *x = a, *y = b;

    return x->seq > y->seq ? -1 : x->seq < y->seq;
}

/* Withdrawn records had to be there to outdo older ones of their peer. */
static void tidy(struct record_list *list)
{
    size_t kept = 0;

    for (size_t i = 0; i < list->count; i++) {
        if (is_offline(&list->items[i]))
            record_free(&list->items[i]);
        else
            list->items[kept++] = list->items[i];
    }
    list->count = kept;
    if (kept > 1)
        qsort(list->items, kept, sizeof(*list->items), freshest_first);
}

static void free_values(struct value *v)
{
    while (v != NULL) {
        struct value *next = v->next;
        mem_free(v);
        v = next;
    }
}

static void pause_before_next(uint64_t deadline_us)
{
    uint64_t until = clock_mono_us() + AGAIN_US;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t never;

    cond_init(&never);
    pthread_mutex_lock(&lock);
    while (cond_wait_until(&never, &lock, until < deadline_us ? until : deadline_us))
        continue;
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&never);
}

skep_status directory_list(struct directory *d, const struct list_question *of,
                           uint64_t deadline_us, struct record_list *out, struct skep_error *err)
{
    struct record_list list = {0};
    skep_status rc = SKEP_NOT_FOUND;

    *out = (struct record_list){0};
    if (of->count == 0 || of->count > DIRECTORY_MAX_LIST_KEYS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "directory: %zu keys, expected 1 to %d",
                         of->count, DIRECTORY_MAX_LIST_KEYS);
    for (int round = 0; round < MAX_ROUNDS && rc == SKEP_NOT_FOUND; round++) {
        struct value *values = NULL;

        if (round > 0)
            pause_before_next(deadline_us);
        rc = directory_has_peers(d)
                 ? ask(d, of->keys, of->count, deadline_us, &values, err)
                 : error_set(err, SKEP_UNAVAILABLE, "directory: no DHT peer answers");
        if (rc != SKEP_OK)
            break;
        rc = verify_all(d, of->kind, of->keys, values, of->others_only, &list, err);
        free_values(values);
        if (rc == SKEP_OK && list.count == 0)
            rc = error_set(err, SKEP_NOT_FOUND, "directory: nothing found");
    }
    tidy(&list);
    if (rc == SKEP_OK && list.count == 0)
        rc = error_set(err, SKEP_NOT_FOUND, "directory: nothing found");
    if (rc == SKEP_DEADLINE_EXCEEDED)
        error_set(err, rc, "directory: no answer in time");
    if (rc != SKEP_OK)
        record_list_free(&list);
    else
        *out = list;
    return rc;
}

skep_status directory_find_resource(struct directory *d, const char *key, bool others_only,
                                    uint64_t deadline_us, struct record_list *out,
                                    struct skep_error *err)
{
    uint8_t hash[RECORD_KEY_BYTES];
    size_t len = strlen(key);

    *out = (struct record_list){0};
    if (len == 0 || len >= RECORD_RESOURCE_KEY_BYTES || !text_is_utf8(key, len))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "resource key of %zu bytes: expected 1 to %d of UTF-8", len,
                         RECORD_RESOURCE_KEY_BYTES - 1);
    record_key_resource(d->swarm, key, hash);
    const struct list_question question = {RECORD_RESOURCE, hash, 1, others_only};
    return directory_list(d, &question, deadline_us, out, err);
}

skep_status directory_find_trackers(struct directory *d, bool others_only, uint64_t deadline_us,
                                    struct record_list *out, struct skep_error *err)
{
    uint8_t keys[RECORD_SHARDS * RECORD_KEY_BYTES];

    for (unsigned shard = 0; shard < RECORD_SHARDS; shard++)
        record_key_trackers_shard(d->swarm, shard, keys + (size_t)shard * RECORD_KEY_BYTES);
    const struct list_question question = {RECORD_TRACKER, keys, RECORD_SHARDS, others_only};
    return directory_list(d, &question, deadline_us, out, err);
}

void record_list_free(struct record_list *list)
{
    if (list == NULL)
        return;
    for (size_t i = 0; i < list->count; i++)
        record_free(&list->items[i]);
    mem_free(list->items);
    *list = (struct record_list){0};
}
