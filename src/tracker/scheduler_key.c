/* The keys of a scheduler: found by text, listed in order, forgotten when idle for long. */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "crypto/keyed_hash.h"
#include "tracker/scheduler_internal.h"

bool scheduler_reserve(struct scheduler *s, size_t bytes)
{
    if (bytes > s->limits.max_bytes - s->totals.bytes)
        return false;
    s->totals.bytes += bytes;
    return true;
}

void scheduler_release(struct scheduler *s, size_t bytes)
{
    s->totals.bytes -= bytes;
}

size_t scheduler_key_written(struct tracker_text text)
{
    return tracker_text_written(text) + SCHEDULER_KEY_WRITTEN;
}

void scheduler_key_charge(struct scheduler_owner *owner, const struct scheduler_key *key)
{
    owner->key_bytes += key->written;
    if (owner->account != NULL)
        owner->account->key_bytes += key->written;
}

void scheduler_key_discharge(struct scheduler_owner *owner, const struct scheduler_key *key)
{
    owner->key_bytes -= key->written;
    if (owner->account != NULL)
        owner->account->key_bytes -= key->written;
}

static size_t key_bytes(const struct scheduler_key *key)
{
    return sizeof(*key) + key->counters.key.len + key->heap_cap * sizeof(key->heap[0]);
}

static struct scheduler_key *key_of(struct hash_node *node)
{
    return HASH_HOLDER(node, struct scheduler_key, by_text);
}

static struct scheduler_key *listed(struct list_link *link)
{
    return LIST_HOLDER(link, struct scheduler_key, of_all);
}

struct scheduler_key *scheduler_key_find(const struct scheduler *s, struct tracker_text text)
{
    uint64_t hash = keyed_hash(text.data, text.len);

    for (struct hash_node *n = hash_table_first(&s->keys, hash); n != NULL; n = hash_table_next(n))
        if (tracker_text_equal(key_of(n)->counters.key, text))
            return key_of(n);
    return NULL;
}

static void idle_add(struct scheduler *s, struct scheduler_key *key)
{
    key->idle = true;
    list_append(&s->idle, &key->of_idle);
    s->idle_count++;
    s->idle_bytes += sizeof(*key) + key->counters.key.len;
}

static void idle_remove(struct scheduler *s, struct scheduler_key *key)
{
    key->idle = false;
    list_remove(&s->idle, &key->of_idle);
    s->idle_count--;
    s->idle_bytes -= sizeof(*key) + key->counters.key.len;
}

struct scheduler_key *scheduler_key_get(struct scheduler *s, struct tracker_text text)
{
    struct scheduler_key *key = scheduler_key_find(s, text);
    size_t bytes = sizeof(*key) + text.len;

    if (key != NULL)
        return key;
    size_t written = scheduler_key_written(text);
    if (written > s->limits.max_key_bytes - s->totals.key_bytes || !scheduler_reserve(s, bytes))
        return NULL;
    key = mem_calloc(1, bytes);
    if (key == NULL) {
        scheduler_release(s, bytes);
        return NULL;
    }
    if (text.len > 0)
        memcpy(key->text, text.data, text.len);
    key->counters.key = (struct tracker_text){.data = key->text, .len = text.len};
    key->written = written;
    s->totals.key_bytes += written;
    hash_table_add(&s->keys, &key->by_text, keyed_hash(text.data, text.len));
    list_append(&s->all, &key->of_all);
    s->totals.keys++;
    return key;
}

static void forget(struct scheduler *s, struct scheduler_key *key)
{
    if (key->idle)
        idle_remove(s, key);
    hash_table_remove(&s->keys, &key->by_text);
    list_remove(&s->all, &key->of_all);
    scheduler_release(s, key_bytes(key));
    s->totals.key_bytes -= key->written;
    s->totals.keys--;
    mem_free(key->heap);
    mem_free(key);
}

/* A change must be told of before its key may go; that is soon. */
static void forget_longest_idle(struct scheduler *s)
{
    struct list_link *link = s->idle.first;
    size_t max_bytes = s->limits.max_bytes / 4;

    if (max_bytes > SCHEDULER_MAX_IDLE_BYTES)
        max_bytes = SCHEDULER_MAX_IDLE_BYTES;
    while (link != NULL && (s->idle_count > SCHEDULER_MAX_IDLE_KEYS || s->idle_bytes > max_bytes)) {
        struct scheduler_key *key = LIST_HOLDER(link, struct scheduler_key, of_idle);
        link = link->next;
        if (!key->changed)
            forget(s, key);
    }
}

static bool is_in_use(const struct scheduler_key *key)
{
    return key->item_count > 0 || key->counters.pending > 0 || key->counters.servers > 0;
}

void scheduler_key_touch(struct scheduler *s, struct scheduler_key *key)
{
    if (!key->changed) {
        key->changed = true;
        key->changed_next = s->changed;
        s->changed = key;
    }
    if (is_in_use(key) && key->idle)
        idle_remove(s, key);
    else if (!is_in_use(key) && !key->idle)
        idle_add(s, key);
}

void scheduler_changes(struct scheduler *s,
                       void (*fn)(void *arg, const struct scheduler_key_counters *counters),
                       void *arg)
{
    if (s->changed == NULL)
        return;
    while (s->changed != NULL) {
        struct scheduler_key *key = s->changed;
        s->changed = key->changed_next;
        key->changed = false;
        if (fn != NULL)
            fn(arg, &key->counters);
    }
    forget_longest_idle(s);
}

void scheduler_keys_free(struct scheduler *s)
{
    while (s->all.first != NULL) {
        struct scheduler_key *key = listed(s->all.first);
        assert(!is_in_use(key)); /* an owner is still there */
        forget(s, key);
    }
}

bool scheduler_counters(const struct scheduler *s, struct tracker_text key,
                        struct scheduler_key_counters *out)
{
    const struct scheduler_key *found = scheduler_key_find(s, key);

    if (found == NULL)
        return false;
    *out = found->counters;
    return true;
}

void scheduler_each_key(const struct scheduler *s,
                        bool (*fn)(void *arg, const struct scheduler_key_counters *counters),
                        void *arg)
{
    for (const struct scheduler_key *key = listed(s->all.first); key != NULL;
         key = listed(key->of_all.next))
        if (key->counters.puts + key->counters.requests > 0 && !fn(arg, &key->counters))
            return;
}
