/* See bench_bare.h. */
#include "cli/bench_bare.h"

#include <pthread.h>

#include "base/thread.h"
#include "cli/bench_stats.h"
#include "dht/runner.h"

struct bare {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    bool found, done;
};

static bool on_value(void *arg, uint64_t value_id, const uint8_t *data, size_t len)
{
    struct bare *b = arg;

    (void)value_id;
    (void)data;
    (void)len;
    pthread_mutex_lock(&b->lock);
    b->found = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return true; /* goes on, as the directory's does */
}

static void on_done(void *arg, bool ok)
{
    struct bare *b = arg;

    (void)ok;
    pthread_mutex_lock(&b->lock);
    b->done = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

bool bench_bare_get(struct swarm *swarm, const uint8_t *key, bool to_end, uint64_t *elapsed_ns)
{
    struct bare b = {.lock = PTHREAD_MUTEX_INITIALIZER};
    uint64_t start_ns = bench_now_ns();

    cond_init(&b.changed);
    runner_get(swarm_runner(swarm), key, on_value, on_done, &b);
    pthread_mutex_lock(&b.lock);
    while (!b.done && (to_end || !b.found))
        pthread_cond_wait(&b.changed, &b.lock);
    *elapsed_ns = bench_now_ns() - start_ns;
    while (!b.done) /* b must outlive it */
        pthread_cond_wait(&b.changed, &b.lock);
    bool found = b.found;
    pthread_mutex_unlock(&b.lock);
    pthread_cond_destroy(&b.changed);
    return found;
}
