/* See checkpointer.h. */
#include "node/lifecycle/checkpointer.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "experts/workspace.h"

enum {
    STEP_WAIT_MS = 10000,   /* for an optimizer step to end before its expert is copied */
    FAILURE_LOG_MS = 10000, /* a full disk is told once in this time */
    LOST_LOGGED = 32,       /* at the end: experts one by one; more are counted */
};

struct checkpointer {
    struct checkpointer_config config;
    struct thread thread;
    pthread_mutex_t lock; /* guards is_stopping, is_woken, stats */
    pthread_cond_t wake;  /* is_stopping, is_woken */
    bool is_stopping;
    bool is_woken; /* a round is wanted now */
    struct checkpointer_stats stats;
    /* Of the thread that works on a round. */
    bool was_failing;
    struct log_limit failures;
};

/* What went wrong in one round. */
struct round {
    float *copy; /* owned; room for the largest expert */
    size_t failed;
    char uid[UID_BYTES]; /* of the first that failed, and why */
    struct skep_error why;
};

static bool is_changed(const struct local_expert *local)
{
    return !local->is_saved || local->saved_updates != expert_update_count(local->expert);
}

/* The most bytes that a copy takes. */
static size_t copy_room(struct roster *roster)
{
    size_t room = 0;
    struct local_expert *local;

    for (size_t i = 0; (local = roster_hold_at(roster, i)) != NULL; i++) {
        size_t bytes = expert_state_bytes(local->expert);
        room = bytes > room ? bytes : room;
        local_expert_release(local);
    }
    return room;
}

static bool is_stopping(struct checkpointer *cp)
{
    pthread_mutex_lock(&cp->lock);
    bool stopping = cp->is_stopping;
    pthread_mutex_unlock(&cp->lock);
    return stopping;
}

static void count_saved(struct checkpointer *cp)
{
    pthread_mutex_lock(&cp->lock);
    cp->stats.saved++;
    cp->stats.last_unix_s = clock_wall_ms() / 1000;
    pthread_mutex_unlock(&cp->lock);
}

static void count_failed(struct checkpointer *cp, struct round *round, const char *uid,
                         const struct skep_error *why)
{
    if (round->failed++ == 0) {
        memcpy(round->uid, uid, sizeof(round->uid));
        round->why = *why;
    }
    pthread_mutex_lock(&cp->lock);
    cp->stats.failed++;
    pthread_mutex_unlock(&cp->lock);
}

static skep_status save_one(struct checkpointer *cp, struct local_expert *local, float *copy,
                            struct skep_error *err)
{
    struct checkpoint_header header = {
        .uid = local->uid,
        .options = *expert_settings(local->expert),
        .has_training = !expert_owns_state(local->expert),
    };
    skep_status rc = expert_snapshot(local->expert, copy, &header.counters,
                                     clock_deadline_us(STEP_WAIT_MS), err);

    if (rc == SKEP_OK)
        rc =
            checkpoint_dir_save(cp->config.dir, &header, local->expert, copy, cp->config.keep, err);
    if (rc != SKEP_OK)
        return rc;
    local->is_saved = true;
    local->saved_updates = header.counters.updates;
    log_debug("expert %s: checkpoint after %" PRIu64 " update%s saved", local->uid,
              header.counters.updates, text_plural(header.counters.updates));
    return SKEP_OK;
}

/* One expert, with room made for the first that has changed. */
static void visit(struct checkpointer *cp, struct local_expert *local, struct round *round)
{
    struct skep_error err = {0};
    size_t room = copy_room(cp->config.roster);
    skep_status rc = SKEP_OK;

    if (round->copy == NULL) {
        round->copy = floats_new(room / sizeof(float) + 1);
        if (round->copy == NULL)
            rc = error_no_memory(&err, "a copy of its state", room);
        else
            memset(round->copy, 0, room); /* touched here, or an optimizer step may have to */
    }
    if (rc == SKEP_OK)
        rc = save_one(cp, local, round->copy, &err);
    if (rc == SKEP_OK)
        count_saved(cp);
    else
        count_failed(cp, round, local->uid, &err);
}

static void report(struct checkpointer *cp, const struct round *round)
{
    unsigned long suppressed = 0;

    if (round->failed == 0) {
        if (cp->was_failing)
            log_info("checkpoints are saved again");
        cp->was_failing = false;
        return;
    }
    bool is_due = log_limit_passes(&cp->failures, FAILURE_LOG_MS, &suppressed);
    if (is_due || !cp->was_failing)
        log_error("expert %s: checkpoint not saved (an older one, if there is one, stays): %s (%zu "
                  "not saved in this round, tried again with the next)",
                  round->uid, round->why.message, round->failed);
    cp->was_failing = true;
}

/* An untrained expert whose UID may yet turn out to be another node's: its checkpoint would bring
 * the UID back at the next start. */
static bool may_yield(const struct local_expert *local)
{
    struct record_claim claim;

    local_expert_claim(local, &claim);
    return claim.level != RECORD_CLAIM_KEPT;
}

static void run_round(struct checkpointer *cp)
{
    struct round round = {0};
    struct local_expert *local;

    for (size_t i = 0; !is_stopping(cp) && (local = roster_hold_at(cp->config.roster, i)) != NULL;
         i++) {
        if (is_changed(local) && !may_yield(local))
            visit(cp, local, &round);
        local_expert_release(local);
    }
    mem_free(round.copy);
    report(cp, &round);
}

/* Of one expert, at the end. */
static void tell_lost(const struct local_expert *local, const char *why)
{
    uint64_t updates = expert_update_count(local->expert);

    if (local->is_saved)
        updates -= local->saved_updates;
    if (local->is_saved)
        log_error("expert %s: lost: %" PRIu64
                  " update%s since its last checkpoint, which could not "
                  "be saved at the stop: %s",
                  local->uid, updates, text_plural(updates), why);
    else
        log_error("expert %s: lost, with %" PRIu64 " update%s: it has no checkpoint, and could not "
                  "be saved at the stop: %s",
                  local->uid, updates, text_plural(updates), why);
}

/* Waits until the time; true if it is to end. */
static bool wait_until(struct checkpointer *cp, uint64_t until_us)
{
    pthread_mutex_lock(&cp->lock);
    while (!cp->is_stopping && !cp->is_woken && cond_wait_until(&cp->wake, &cp->lock, until_us))
        continue;
    bool stopping = cp->is_stopping;
    cp->is_woken = false;
    pthread_mutex_unlock(&cp->lock);
    return stopping;
}

static void thread_main(void *arg)
{
    struct checkpointer *cp = arg;
    uint64_t next;

    do {
        next = clock_deadline_us(cp->config.period_ms);
        run_round(cp);
    } while (!wait_until(cp, next));
}

skep_status checkpointer_new(const struct checkpointer_config *config, struct checkpointer **out,
                             struct skep_error *err)
{
    struct checkpointer *cp = mem_calloc(1, sizeof(*cp));
    skep_status rc;

    *out = NULL;
    if (cp == NULL)
        return error_no_memory(err, "checkpoints", sizeof(*cp));
    cp->config = *config;
    pthread_mutex_init(&cp->lock, NULL);
    cond_init(&cp->wake);
    rc = thread_start(&cp->thread, "skep-checkpoint", thread_main, cp, err);
    if (rc != SKEP_OK) {
        checkpointer_free(cp);
        return rc;
    }
    *out = cp;
    return SKEP_OK;
}

void checkpointer_stop(struct checkpointer *cp)
{
    if (cp == NULL)
        return;
    pthread_mutex_lock(&cp->lock);
    cp->is_stopping = true;
    pthread_cond_broadcast(&cp->wake);
    pthread_mutex_unlock(&cp->lock);
    thread_join(&cp->thread);
}

void checkpointer_wake(struct checkpointer *cp)
{
    if (cp == NULL)
        return;
    pthread_mutex_lock(&cp->lock);
    cp->is_woken = true;
    pthread_cond_broadcast(&cp->wake);
    pthread_mutex_unlock(&cp->lock);
}

skep_status checkpointer_save(struct checkpointer *cp, struct local_expert *local,
                              struct skep_error *err)
{
    struct skep_error why = {0};

    if (cp == NULL || !is_changed(local))
        return SKEP_OK;
    size_t room = expert_state_bytes(local->expert);
    float *copy = floats_new(room / sizeof(float) + 1);
    skep_status rc = copy == NULL ? error_no_memory(&why, "a copy of its state", room)
                                  : save_one(cp, local, copy, &why);
    if (rc == SKEP_OK)
        count_saved(cp);
    else
        tell_lost(local, why.message);
    mem_free(copy);
    return rc == SKEP_OK ? rc
                         : error_set(err, rc, "expert %s: not saved: %s", local->uid, why.message);
}

size_t checkpointer_finish(struct checkpointer *cp)
{
    struct round round = {0};
    size_t changed = 0, lost = 0;
    struct local_expert *local;

    for (size_t i = 0; (local = roster_hold_at(cp->config.roster, i)) != NULL; i++) {
        changed += is_changed(local);
        local_expert_release(local);
    }
    if (changed == 0)
        return 0;
    log_info("node: saving %zu expert%s", changed, changed == 1 ? "" : "s");
    for (size_t i = 0; (local = roster_hold_at(cp->config.roster, i)) != NULL; i++) {
        round.failed = 0; /* `why` is of this one then */
        if (is_changed(local))
            visit(cp, local, &round);
        if (round.failed > 0 && lost++ < LOST_LOGGED)
            tell_lost(local, round.why.message);
        local_expert_release(local);
    }
    mem_free(round.copy);
    if (lost > LOST_LOGGED)
        log_error("and %zu more lost what they learned last", lost - LOST_LOGGED);
    return lost;
}

void checkpointer_stats(struct checkpointer *cp, struct checkpointer_stats *out)
{
    struct local_expert *local;

    pthread_mutex_lock(&cp->lock);
    *out = cp->stats;
    pthread_mutex_unlock(&cp->lock);
    for (size_t i = 0; (local = roster_hold_at(cp->config.roster, i)) != NULL; i++) {
        uint64_t wait = expert_snapshot_wait_us(local->expert);
        out->longest_wait_us = wait > out->longest_wait_us ? wait : out->longest_wait_us;
        local_expert_release(local);
    }
}

void checkpointer_free(struct checkpointer *cp)
{
    if (cp == NULL)
        return;
    checkpointer_stop(cp);
    pthread_cond_destroy(&cp->wake);
    pthread_mutex_destroy(&cp->lock);
    mem_free(cp);
}
