/* See publisher.h. */
#include "dht/publish/publisher.h"

#include <pthread.h>
#include <sodium.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"

enum {
    MIN_LIFETIME_S = 60,
    RETRY_FIRST_MS = 1000,
    /* After the first round among peers: while a network forms, some puts land on nodes that are
     * not the closest to their key (1% of them, all at once among 128 new peers), and nobody finds
     * them before the next round. */
    SECOND_ROUND_MS = 5 * 1000,
    LOOK_FOR_PEERS_MS = 200, /* while there are none */
};

/* A round under way, or ended and not noted yet. */
struct flight {
    struct flight *next;
    struct publisher *publisher;
    bool ended; /* guarded by publisher.lock */
    struct publisher_round round;
};

/* Lock order: publisher.lock, then what is_due() takes, and bootstrap.lock. */
struct publisher {
    struct publisher_config config;
    struct thread thread;
    struct flight *flights; /* the thread's, owned */
    unsigned flight_count;  /* the same */
    bool had_peers;         /* the same */
    unsigned among_peers;   /* the same: full rounds since there are peers, up to 2 */
    bool failed;            /* the same: some record, since the last round began */
    unsigned failures;      /* the same: rounds with failed records in a row */
    uint64_t full_us;       /* the same: when the next full round is due */
    uint64_t retry_us;      /* the same: when what failed is tried again */
    uint64_t pause_us;      /* the same: no round of changes before */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool closing;
    uint64_t closing_deadline_us;
    bool refresh;
    bool urgent;
};

/* ---- one round ---- */

/* On the directory's thread, or ours if nothing could be declared. */
static void on_declared(void *arg, struct declaration *declarations, size_t count)
{
    struct flight *f = arg;
    struct publisher *p = f->publisher;

    (void)declarations;
    (void)count;
    pthread_mutex_lock(&p->lock);
    f->ended = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static uint32_t lifetime_s(const struct publisher *p)
{
    uint32_t lifetime = 2 * p->config.update_period_s;

    return lifetime > MIN_LIFETIME_S ? lifetime : MIN_LIFETIME_S;
}

static uint64_t period_ms(const struct publisher *p)
{
    return p->config.update_period_s * UINT64_C(1000);
}

static void declare(struct publisher *p, struct flight *f, uint64_t deadline_us)
{
    struct publisher_round *round = &f->round;
    struct skep_error err = {0};

    if (round->count > 0 &&
        directory_declare(swarm_directory(p->config.swarm), round->declarations, round->count,
                          deadline_us, on_declared, f, &err) == SKEP_OK)
        return;
    if (round->count > 0)
        log_warn("%s: %s", p->config.log_name, err.message);
    for (size_t i = 0; i < round->count; i++)
        round->declarations[i].outcome = err.status;
    on_declared(f, round->declarations, round->count);
}

/* False if memory is short: the next round tries again. */
static bool begin(struct publisher *p, enum publisher_scope scope, uint64_t deadline_us)
{
    struct flight *f = mem_calloc(1, sizeof(*f));

    if (f == NULL)
        return false;
    f->publisher = p;
    f->round = (struct publisher_round){
        .scope = scope,
        .now_s = directory_now_ms(swarm_directory(p->config.swarm)) / 1000,
        .lifetime_s = lifetime_s(p),
        .clock_skew_s = swarm_record(p->config.swarm)->clock_skew_s,
        .among_peers = swarm_peer_count(p->config.swarm) > 0,
    };
    p->failed = false;
    p->config.fill(p->config.arg, &f->round);
    f->next = p->flights;
    p->flights = f;
    p->flight_count++;
    declare(p, f, deadline_us);
    return true;
}

static struct flight *take_ended(struct publisher *p)
{
    struct flight **link = &p->flights;

    while (*link != NULL && !(*link)->ended)
        link = &(*link)->next;
    struct flight *f = *link;
    if (f != NULL) {
        *link = f->next;
        p->flight_count--;
    }
    return f;
}

/* Up to the period: 1 s, 2 s, 4 s... */
static uint64_t next_retry_us(const struct publisher *p)
{
    uint64_t ms = (uint64_t)RETRY_FIRST_MS << (p->failures < 16 ? p->failures : 16);

    return clock_deadline_us(ms < period_ms(p) ? ms : period_ms(p));
}

/* Hands over what has ended. The lock is held; it is given up meanwhile. */
static void note_ended(struct publisher *p)
{
    for (struct flight *f; (f = take_ended(p)) != NULL;) {
        f->round.is_cut = p->closing;
        f->round.failures = p->failures;
        pthread_mutex_unlock(&p->lock);
        p->config.ended(p->config.arg, &f->round);
        p->failed = p->failed || f->round.failed > 0;
        if (f->round.failed > 0) {
            p->retry_us = next_retry_us(p);
            p->failures++;
        } else {
            p->failures = 0;
        }
        publisher_round_fini(&f->round);
        mem_free(f);
        pthread_mutex_lock(&p->lock);
    }
}

/* Waits for the rounds that are under way; `cut` ends them now. */
static void wait_flights(struct publisher *p, bool cut)
{
    for (const struct flight *f = p->flights; cut && f != NULL; f = f->next)
        if (f->round.count > 0)
            directory_declare_cancel(swarm_directory(p->config.swarm), f->round.declarations);
    pthread_mutex_lock(&p->lock);
    for (note_ended(p); p->flights != NULL; note_ended(p))
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* ---- the thread ---- */

/* Up to a tenth less, so that nodes started together do not publish together. */
static uint64_t next_full_us(struct publisher *p)
{
    uint32_t ms = (uint32_t)period_ms(p);

    if (!p->had_peers)
        p->among_peers = 0;
    else if (p->among_peers < 2 && ++p->among_peers == 1 && ms > SECOND_ROUND_MS)
        ms = SECOND_ROUND_MS;
    return clock_deadline_us(ms - randombytes_uniform(ms / 10 + 1));
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Until when there is nothing to do, unless something changes. The lock is held. */
static uint64_t sleep_until(const struct publisher *p, bool has_room, uint64_t now)
{
    uint64_t until = has_room ? p->full_us : CLOCK_NEVER;

    if (p->urgent && has_room)
        until = earlier(until, p->pause_us);
    if (p->failed && p->had_peers && has_room)
        until = earlier(until, p->retry_us > p->pause_us ? p->retry_us : p->pause_us);
    if (!p->had_peers)
        until = earlier(until, now + LOOK_FOR_PEERS_MS * 1000u);
    return until;
}

/* Waits for the next round. False: it is over. */
static bool wait_turn(struct publisher *p, enum publisher_scope *scope)
{
    pthread_mutex_lock(&p->lock);
    for (;;) {
        note_ended(p);
        if (p->closing)
            break;
        uint64_t now = clock_mono_us();
        bool has_peers = swarm_peer_count(p->config.swarm) > 0;
        bool has_room = p->flight_count < p->config.max_rounds;
        p->refresh =
            p->refresh || (has_peers && !p->had_peers) ||
            (p->config.is_due != NULL && p->flight_count == 0 && p->config.is_due(p->config.arg));
        p->had_peers = has_peers;
        *scope = p->refresh || now >= p->full_us ? PUBLISH_ALL : PUBLISH_CHANGED;
        if (has_room && *scope == PUBLISH_ALL)
            break;
        if (has_room && now >= p->pause_us &&
            (p->urgent || (p->failed && has_peers && now >= p->retry_us)))
            break;
        cond_wait_until(&p->changed, &p->lock, sleep_until(p, has_room, now));
    }
    if (*scope == PUBLISH_ALL)
        p->refresh = false;
    p->urgent = false;
    bool go_on = !p->closing;
    pthread_mutex_unlock(&p->lock);
    return go_on;
}

static void run(void *arg)
{
    struct publisher *p = arg;
    enum publisher_scope scope = PUBLISH_ALL;

    do {
        if (scope == PUBLISH_ALL) {
            p->had_peers = swarm_peer_count(p->config.swarm) > 0;
            p->full_us = next_full_us(p);
        }
        p->pause_us = clock_deadline_us(p->config.change_pause_ms);
        (void)begin(p, scope, clock_deadline_us(p->config.round_ms));
    } while (wait_turn(p, &scope));
    wait_flights(p, true);
    (void)begin(p, PUBLISH_OFFLINE, p->closing_deadline_us);
    wait_flights(p, false);
}

/* ---- life ---- */

skep_status publisher_new(const struct publisher_config *config, struct publisher **out,
                          struct skep_error *err)
{
    struct publisher *p = mem_calloc(1, sizeof(*p));

    *out = NULL;
    if (p == NULL)
        return error_no_memory(err, config->log_name, sizeof(*p));
    p->config = *config;
    pthread_mutex_init(&p->lock, NULL);
    cond_init(&p->changed);
    *out = p;
    skep_status rc = thread_start(&p->thread, config->thread_name, run, p, err);
    if (rc != SKEP_OK) {
        *out = NULL;
        publisher_free(p);
    }
    return rc;
}

void publisher_stop(struct publisher *p, uint64_t deadline_us)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    p->closing_deadline_us = deadline_us;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    thread_join(&p->thread);
}

void publisher_free(struct publisher *p)
{
    if (p == NULL)
        return;
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

static void signal_flag(struct publisher *p, bool *flag)
{
    pthread_mutex_lock(&p->lock);
    *flag = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void publisher_refresh(struct publisher *p)
{
    signal_flag(p, &p->refresh);
}

void publisher_changed(struct publisher *p)
{
    signal_flag(p, &p->urgent);
}

void publisher_wake(struct publisher *p)
{
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}
