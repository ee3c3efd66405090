/* Watches for users: the directory's, in the words of the public API. */
#include <skep/watch.h>

#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "client/client_internal.h"
#include "dht/directory/watch.h"

struct skep_watch {
    struct skep_client *client;
    struct watch *watch; /* owned */
    skep_watch_fn changed;
    void *arg;
    char prefix[UID_BYTES];
};

static size_t convert(const struct provider *providers, size_t count,
                      struct skep_provider out[static DIRECTORY_MAX_PROVIDERS])
{
    size_t n = count < DIRECTORY_MAX_PROVIDERS ? count : DIRECTORY_MAX_PROVIDERS;

    for (size_t i = 0; i < n; i++)
        provider_publish(&providers[i], &out[i]);
    return n;
}

static void on_event(void *arg, const struct watch_event *event)
{
    struct skep_watch *w = arg;
    struct skep_provider providers[DIRECTORY_MAX_PROVIDERS];
    static const enum skep_watch_event kinds[] = {[WATCH_APPEARED] = SKEP_WATCH_APPEARED,
                                                  [WATCH_CHANGED] = SKEP_WATCH_CHANGED,
                                                  [WATCH_GONE] = SKEP_WATCH_GONE};

    w->changed(w->arg, kinds[event->kind], event->uid, providers,
               convert(event->providers, event->provider_count, providers));
}

skep_status skep_watch_new(struct skep_client *client, const char *prefix, skep_watch_fn changed,
                           void *arg, struct skep_watch **out, struct skep_error *err)
{
    *out = NULL;
    if (client->swarm == NULL)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "client: started without the DHT, so nothing can be watched");
    struct skep_watch *w = mem_calloc(1, sizeof(*w));
    if (w == NULL)
        return error_no_memory(err, "watch", sizeof(*w));
    w->client = client;
    w->changed = changed;
    w->arg = arg;
    snprintf(w->prefix, sizeof(w->prefix), "%s", prefix != NULL ? prefix : "");
    const struct watch_config config = {
        .prefix = prefix, .changed = changed != NULL ? on_event : NULL, .arg = w};
    skep_status rc = watch_new(swarm_directory(client->swarm), &config, &w->watch, err);
    if (rc == SKEP_OK)
        *out = w;
    else
        mem_free(w);
    return rc;
}

void skep_watch_free(struct skep_watch *w)
{
    if (w == NULL)
        return;
    watch_free(w->watch);
    mem_free(w);
}

skep_status skep_watch_wait_ready(struct skep_watch *w, uint32_t timeout_ms, struct skep_error *err)
{
    uint32_t ms = timeout_ms != 0 ? timeout_ms : w->client->timeout_ms;
    skep_status status = watch_wait_ready(w->watch, clock_deadline_us(ms));

    if (status == SKEP_OK)
        return status;
    return error_set(err, status, "watch %s: not read within %u ms%s; still trying", w->prefix, ms,
                     status == SKEP_UNAVAILABLE ? ": no DHT peer answers" : "");
}

bool skep_watch_in_step(struct skep_watch *w)
{
    return watch_is_in_step(w->watch);
}

size_t skep_watch_count(struct skep_watch *w)
{
    struct watch_stats stats;

    watch_stats(w->watch, &stats);
    return stats.experts;
}

struct each {
    void (*each)(void *arg, const char *uid, const struct skep_provider *providers, size_t count);
    void *arg;
};

static void on_each(void *arg, const char *uid, const struct provider *providers, size_t count)
{
    const struct each *e = arg;
    struct skep_provider converted[DIRECTORY_MAX_PROVIDERS];

    e->each(e->arg, uid, converted, convert(providers, count, converted));
}

void skep_watch_each(struct skep_watch *w,
                     void (*each)(void *arg, const char *uid, const struct skep_provider *providers,
                                  size_t count),
                     void *arg)
{
    struct each e = {each, arg};

    watch_each(w->watch, on_each, &e);
}
