/* What is known of each key, copied for other threads. */
#include "tracker/key_stats.h"

#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"

_Static_assert((int)SKEP_TRACKER_WAIT_BUCKETS == (int)SCHEDULER_WAIT_BUCKETS, "the same histogram");

struct key_stats {
    struct tracker_server *server;
    struct scheduler_key_counters *counters; /* owned; of their keys only the lengths count */
    size_t count, cap;
    struct bytes text; /* of all keys, a NUL behind each */
    bool ok;
};

static bool copy_key(void *arg, const struct scheduler_key_counters *counters)
{
    struct key_stats *keys = arg;

    if (keys->count == keys->cap) {
        size_t cap = keys->cap > 0 ? 2 * keys->cap : 64;
        struct scheduler_key_counters *more = mem_realloc(keys->counters, cap * sizeof(*more));
        keys->ok = more != NULL;
        if (!keys->ok)
            return false;
        keys->counters = more;
        keys->cap = cap;
    }
    keys->counters[keys->count++] = *counters;
    keys->ok = bytes_append(&keys->text, counters->key.data, counters->key.len) &&
               bytes_append(&keys->text, "", 1);
    return keys->ok;
}

static void copy_keys(void *arg)
{
    struct key_stats *keys = arg;

    keys->ok = true;
    scheduler_each_key(tracker_server_scheduler(keys->server), copy_key, keys);
}

skep_status key_stats_take(struct tracker_server *server, struct key_stats **out,
                           struct skep_error *err)
{
    struct key_stats *keys = mem_calloc(1, sizeof(*keys));

    *out = NULL;
    if (keys == NULL)
        return error_no_memory(err, "keys of the tracker", sizeof(*keys));
    keys->server = server;
    loop_call(tracker_server_loop(server), copy_keys, keys);
    if (!keys->ok) {
        size_t bytes = keys->text.len + keys->cap * sizeof(*keys->counters);
        key_stats_free(keys);
        return error_no_memory(err, "keys of the tracker", bytes);
    }
    *out = keys;
    return SKEP_OK;
}

static void fill(const struct scheduler_key_counters *counters, const char *key,
                 struct skep_tracker_key_stats *out)
{
    *out = (struct skep_tracker_key_stats){
        .key = key,
        .key_bytes = counters->key.len,
        .servers = counters->servers,
        .free = counters->free,
        .pending = counters->pending,
        .puts = counters->puts,
        .requests = counters->requests,
        .requests_served = counters->served + counters->answered,
        .wait_us_sum = counters->wait_us_sum,
        .wait_us_max = counters->wait_us_max,
    };
    memcpy(out->waits, counters->waits, sizeof(out->waits));
}

void key_stats_walk(const struct key_stats *keys, skep_tracker_key_fn fn, void *arg)
{
    const char *key = (const char *)keys->text.data;
    bool more = true;

    for (size_t i = 0; more && i < keys->count; i++) {
        struct skep_tracker_key_stats stats;
        fill(&keys->counters[i], key, &stats);
        more = fn(arg, &stats);
        key += stats.key_bytes + 1;
    }
}

void key_stats_free(struct key_stats *keys)
{
    if (keys == NULL)
        return;
    mem_free(keys->counters);
    bytes_free(&keys->text);
    mem_free(keys);
}
