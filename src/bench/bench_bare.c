/* See bench_bare.h. */
#include "bench/bench_bare.h"

#include <pthread.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"
#include "bench/bench_stats.h"
#include "dht/opendht/runner.h"

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

/* ---- many ---- */

enum { WAITING_AT_ONCE = 64, UNENDED_AT_ONCE = 16 * WAITING_AT_ONCE }; /* as a directory's */

struct many {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    size_t waiting, unended, found;
};

struct one_of_many {
    struct many *many;
    bool answered; /* guarded by its lock */
};

/* The lock is held. */
static void answered(struct one_of_many *one)
{
    if (!one->answered)
        one->many->waiting--;
    one->answered = true;
    pthread_cond_signal(&one->many->changed);
}

static bool on_value_of_many(void *arg, uint64_t value_id, const uint8_t *data, size_t len)
{
    struct one_of_many *one = arg;

    (void)value_id;
    (void)data;
    (void)len;
    pthread_mutex_lock(&one->many->lock);
    one->many->found += !one->answered;
    answered(one);
    pthread_mutex_unlock(&one->many->lock);
    return true; /* goes on, as the directory's does */
}

static void on_done_of_many(void *arg, bool ok)
{
    struct one_of_many *one = arg;
    struct many *many = one->many; /* `one` may be freed once the last has ended */

    (void)ok;
    pthread_mutex_lock(&many->lock);
    many->unended--;
    answered(one); /* rings */
    pthread_mutex_unlock(&many->lock);
}

skep_status bench_bare_get_many(struct swarm *swarm, const uint8_t *keys, size_t count,
                                uint64_t *elapsed_ns, size_t *found, struct skep_error *err)
{
    struct many many = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct one_of_many *ones = mem_calloc(count, sizeof(*ones));
    uint64_t start_ns = bench_now_ns();

    if (ones == NULL)
        return error_no_memory(err, "bare gets", count * sizeof(*ones));
    cond_init(&many.changed);
    for (size_t i = 0; i < count; i++) {
        ones[i].many = &many;
        pthread_mutex_lock(&many.lock);
        while (many.waiting >= WAITING_AT_ONCE || many.unended >= UNENDED_AT_ONCE)
            pthread_cond_wait(&many.changed, &many.lock);
        many.waiting++;
        many.unended++;
        pthread_mutex_unlock(&many.lock);
        runner_get(swarm_runner(swarm), keys + i * RECORD_KEY_BYTES, on_value_of_many,
                   on_done_of_many, &ones[i]);
    }
    pthread_mutex_lock(&many.lock);
    while (many.waiting > 0)
        pthread_cond_wait(&many.changed, &many.lock);
    *elapsed_ns = bench_now_ns() - start_ns;
    while (many.unended > 0) /* `ones` must outlive them */
        pthread_cond_wait(&many.changed, &many.lock);
    *found = many.found;
    pthread_mutex_unlock(&many.lock);
    pthread_cond_destroy(&many.changed);
    mem_free(ones);
    return SKEP_OK;
}
