/*
 * Listens. One that was ended stays, without a listener, until OpenDHT lets go of it: it cannot end
 * one that it
 * has not begun yet, and 2.4.12 can never end one of a node with a single address family (the other
 * family's refusal makes it forget the token of the first, and it listens on). So who listens to
 * the same key again gets that one.
 */
#include "dht/opendht/runner_internal.h"

#include <string.h>

#include "base/alloc.h"

enum { MAX_LISTENS = 4096 }; /* keys; OpenDHT sends a few packets a minute for each */

struct runner_listen {
    atomic_uint refs;                  /* ours, and the one of OpenDHT's closure */
    struct runner_listen *next;        /* in runner->idle, guarded by its lock */
    struct opendht_ext_listen *listen; /* owned */
    uint8_t key[RECORD_KEY_BYTES];
    pthread_mutex_t lock;      /* guards the rest; held during notify() */
    void (*notify)(void *arg); /* NULL: ended */
    void (*release)(void *arg);
    void *arg;
};

static void listen_unref(void *arg)
{
    struct runner_listen *l = arg;

    if (atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&l->lock);
    mem_free(l);
}

static void on_notification(void *arg)
{
    struct runner_listen *l = arg;

    pthread_mutex_lock(&l->lock);
    if (l->notify != NULL)
        l->notify(l->arg);
    pthread_mutex_unlock(&l->lock);
}

static void set_listener(struct runner_listen *l, void (*notify)(void *arg),
                         void (*release)(void *arg), void *arg)
{
    pthread_mutex_lock(&l->lock);
    l->notify = notify;
    l->release = release;
    l->arg = arg;
    pthread_mutex_unlock(&l->lock);
}

void runner_end_listens(struct runner *runner)
{
    struct runner_listen *ended = NULL;

    pthread_mutex_lock(&runner->lock);
    for (struct runner_listen **link = &runner->idle; *link != NULL;) {
        struct runner_listen *l = *link;
        if (!opendht_ext_listen_stop(runner->dht, l->listen)) {
            link = &l->next;
            continue;
        }
        *link = l->next;
        l->next = ended;
        ended = l;
        runner->listens--;
    }
    pthread_mutex_unlock(&runner->lock);
    while (ended != NULL) {
        struct runner_listen *l = ended;
        ended = l->next;
        listen_unref(l);
    }
}

void runner_free_listens(struct runner *runner)
{
    while (runner->idle != NULL) {
        struct runner_listen *l = runner->idle;
        runner->idle = l->next;
        opendht_ext_listen_free(l->listen);
        listen_unref(l);
    }
}

/* One that is idle, or room for a new one. False if there are too many. */
static bool take_idle(struct runner *runner, const uint8_t *key, struct runner_listen **out)
{
    bool ok;

    *out = NULL;
    pthread_mutex_lock(&runner->lock);
    struct runner_listen **link = &runner->idle;
    while (*link != NULL && memcmp((*link)->key, key, RECORD_KEY_BYTES) != 0)
        link = &(*link)->next;
    if (*link != NULL) {
        *out = *link;
        *link = (*link)->next;
    }
    ok = *out != NULL || runner->listens < MAX_LISTENS;
    runner->listens += ok && *out == NULL;
    pthread_mutex_unlock(&runner->lock);
    return ok;
}

static struct runner_listen *listen_new(struct runner *runner,
                                        const uint8_t key[static RECORD_KEY_BYTES])
{
    struct runner_listen *l = mem_calloc(1, sizeof(*l));

    if (l != NULL) {
        atomic_init(&l->refs, 2);
        pthread_mutex_init(&l->lock, NULL);
        memcpy(l->key, key, sizeof(l->key));
        l->listen = opendht_ext_listen_start(runner->dht, key, on_notification, listen_unref, l);
    }
    if (l != NULL && l->listen != NULL)
        return l;
    pthread_mutex_lock(&runner->lock);
    runner->listens--;
    pthread_mutex_unlock(&runner->lock);
    if (l != NULL)
        listen_unref(l);
    return NULL;
}

struct runner_listen *runner_listen(struct runner *runner,
                                    const uint8_t key[static RECORD_KEY_BYTES],
                                    void (*notify)(void *arg), void (*release)(void *arg),
                                    void *arg)
{
    struct runner_listen *l;

    runner_end_listens(runner);
    if (take_idle(runner, key, &l) && l == NULL)
        l = listen_new(runner, key);
    if (l == NULL) {
        release(arg);
        return NULL;
    }
    set_listener(l, notify, release, arg);
    return l;
}

void runner_unlisten(struct runner *runner, struct runner_listen *l)
{
    if (l == NULL)
        return;
    void (*release)(void *arg) = l->release;
    void *arg = l->arg;
    set_listener(l, NULL, NULL, NULL);
    release(arg);
    pthread_mutex_lock(&runner->lock);
    l->next = runner->idle;
    runner->idle = l;
    pthread_mutex_unlock(&runner->lock);
    runner_end_listens(runner);
}
