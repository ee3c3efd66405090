/* See claims.h. */
#include "node/lifecycle/claims.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "node/lifecycle/pattern.h"
#include "node/lifecycle/reservations.h"

enum {
    /* From a publication to the look for others: a put takes milliseconds, and nodes that started
     * together have all published by then. */
    PAUSE_MS = 400,
    FIRST_ROUND_MS = 2000, /* for the first publication round, with dead peers about */
    SETTLE_MS = 5000,      /* for all looks and new choices before the node is ready */
    LOOK_MS = 2000,        /* for the answers of one look */
    YOUNG_MS = UID_FRESH_MS,
    YOUNG_UIDS = 256, /* UIDs asked for in each look while the node is young, besides open ones */
    OLD_UIDS = 1,     /* the same afterwards */
    UNMAKE_MS = 5000, /* for calls of an expert that is given up */
    UNMAKE_LOOK_MS = 10,
    REPORTED = 16, /* rivals named in one look; more are counted */
    MAX_FINDINGS = 4096,
    AGE_BYTES = 48,
    DIGEST_BYTES = 2 * 4 + 1,
};

/* One UID of ours in a look. */
struct looked {
    char uid[UID_BYTES];
    uint8_t schema_digest[16];
    struct record_claim claim;
    bool yields;
};

/* Another node with the same UID. */
struct finding {
    size_t index; /* into claims.looked */
    enum uid_decision decision;
    uint8_t peer_id[PEER_ID_BYTES];
    int64_t since_s;
    bool random;
    char cls[32];
    uint8_t schema_digest[16];
};

struct claims {
    struct skep_node *node;
    struct thread thread;

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    bool closing;
    uint64_t rounds; /* of publication, among peers */

    /* Of the thread that settles, then of our own. */
    uint64_t young_until_us; /* 0: there were no peers yet */
    size_t turn;             /* where the next look at UIDs that are kept goes on */
    size_t open_count;       /* UIDs that might still be given up, at the last look */
    struct looked *looked;   /* owned; of one look */
    const char **uids;       /* owned; their texts */
    size_t looked_count, looked_cap;
    struct finding *findings; /* owned; of one look */
    size_t finding_count, finding_cap;
};

/* --- what to look at -------------------------------------------------------------------------- */

static skep_status reserve(struct claims *c, size_t count, struct skep_error *err)
{
    if (count <= c->looked_cap)
        return SKEP_OK;
    struct looked *looked = mem_realloc(c->looked, count * sizeof(*looked));
    if (looked == NULL)
        return error_no_memory(err, "UIDs", count * sizeof(*looked));
    c->looked = looked;
    const char **uids = mem_realloc(c->uids, count * sizeof(*uids));
    if (uids == NULL)
        return error_no_memory(err, "UIDs", count * sizeof(*uids));
    c->uids = uids;
    c->looked_cap = count;
    return SKEP_OK;
}

static void add_looked(struct claims *c, const struct local_expert *local,
                       const struct record_claim *claim)
{
    struct looked *l = &c->looked[c->looked_count];

    *l = (struct looked){.claim = *claim};
    memcpy(l->uid, local->uid, sizeof(l->uid));
    memcpy(l->schema_digest, local->schema_digest, sizeof(l->schema_digest));
    c->uids[c->looked_count++] = l->uid;
}

/* Lists the UIDs of a look: all that are open and, unless `only_open`, some others by turns. */
static skep_status list_looked(struct claims *c, bool only_open, struct skep_error *err)
{
    struct roster *roster = &c->node->roster;
    size_t count = roster_count(roster), open = 0;
    uint64_t now = clock_mono_us();
    size_t others = only_open ? 0 : now < c->young_until_us ? YOUNG_UIDS : OLD_UIDS;
    skep_status rc = reserve(c, count, err);

    c->looked_count = 0;
    for (size_t i = 0; i < count && rc == SKEP_OK; i++) {
        struct local_expert *local = roster_hold_at(roster, (c->turn + i) % count);
        struct record_claim claim;

        if (local == NULL)
            continue;
        if (atomic_load(&local->joined_us) == 0)
            atomic_store(&local->joined_us, now);
        local_expert_claim(local, &claim);
        if (claim.level != RECORD_CLAIM_KEPT) {
            open++;
            add_looked(c, local, &claim);
        } else if (others > 0) {
            others--;
            add_looked(c, local, &claim);
        }
        local_expert_release(local);
    }
    if (!only_open && count > 0)
        c->turn = (c->turn + (now < c->young_until_us ? YOUNG_UIDS : OLD_UIDS)) % count;
    if (open < c->open_count) { /* some are kept from now on: their checkpoints may be saved */
        pthread_mutex_lock(&c->node->parts);
        checkpointer_wake(c->node->checkpointer);
        pthread_mutex_unlock(&c->node->parts);
    }
    c->open_count = open;
    for (size_t i = 0; i < c->looked_count; i++) /* the array may have moved */
        c->uids[i] = c->looked[i].uid;
    return rc;
}

/* --- looking ---------------------------------------------------------------------------------- */

/* Room for one more; NULL: memory is short, or there are too many. */
static struct finding *new_finding(struct claims *c)
{
    size_t cap = c->finding_cap == 0 ? 64 : c->finding_cap * 2;

    if (c->finding_count == MAX_FINDINGS)
        return NULL;
    if (c->finding_count == c->finding_cap) {
        struct finding *findings = mem_realloc(c->findings, cap * sizeof(*findings));

        if (findings == NULL)
            return NULL;
        c->findings = findings;
        c->finding_cap = cap;
    }
    return &c->findings[c->finding_count];
}

static void on_seen(void *arg, size_t index, const struct provider *provider)
{
    struct claims *c = arg;
    struct looked *l = &c->looked[index];
    struct finding *f;

    if (provider == NULL) /* no answer: the next look tells */
        return;
    const struct uid_hold mine = {c->node->settings.identity.peer_id, l->schema_digest, l->claim};
    const struct uid_hold theirs = {provider->peer_id, provider->schema_digest, provider->claim};
    enum uid_decision decision = uid_judge(l->uid, &mine, &theirs);

    if (decision == UID_WAIT || (decision == UID_YIELD && l->yields))
        return;
    f = new_finding(c);
    if (f == NULL)
        return;
    l->yields = l->yields || decision == UID_YIELD;
    *f = (struct finding){.index = index,
                          .decision = decision,
                          .since_s = provider->claim.since_s,
                          .random = provider->claim.random};
    memcpy(f->peer_id, provider->peer_id, sizeof(f->peer_id));
    memcpy(f->cls, provider->cls, sizeof(f->cls));
    memcpy(f->schema_digest, provider->schema_digest, sizeof(f->schema_digest));
    c->finding_count++;
}

/* --- reports ---------------------------------------------------------------------------------- */

/* How long the other node has held it, as it says itself. */
static const char *age_text(int64_t since_s, char out[static AGE_BYTES])
{
    int64_t age_s = clock_wall_ms() / 1000 - since_s;

    if (since_s == 0)
        snprintf(out, AGE_BYTES, "for an unknown time");
    else if (age_s < 120)
        snprintf(out, AGE_BYTES, "for %" PRId64 " s", age_s > 0 ? age_s : 0);
    else if (age_s < 7200)
        snprintf(out, AGE_BYTES, "for %" PRId64 " min", age_s / 60);
    else
        snprintf(out, AGE_BYTES, "for %" PRId64 " h", age_s / 3600);
    return out;
}

/* Whether this peer has not been reported yet for this expert; it has been then. */
static bool is_news(struct local_expert *local, const uint8_t *peer_id)
{
    size_t known =
        local->rival_count < LOCAL_EXPERT_RIVALS ? local->rival_count : LOCAL_EXPERT_RIVALS;

    for (size_t i = 0; i < known; i++)
        if (memcmp(local->rivals[i], peer_id, PEER_ID_BYTES) == 0)
            return false;
    memcpy(local->rivals[local->rival_count++ % LOCAL_EXPERT_RIVALS], peer_id, PEER_ID_BYTES);
    return true;
}

/* The beginning of a digest is enough for people to tell two of them apart. */
static const char *digest_text(const uint8_t digest[static 16], char out[static DIGEST_BYTES])
{
    sodium_bin2hex(out, DIGEST_BYTES, digest, (DIGEST_BYTES - 1) / 2);
    return out;
}

static void log_other_schema(const struct local_expert *local, const struct finding *f,
                             const char *peer, const char *age)
{
    char theirs[DIGEST_BYTES], ours[DIGEST_BYTES];

    log_warn("expert %s: peer %s serves the same UID %s with another schema (class %s, schema %s; "
             "ours: class %s, schema %s): clients take both for one expert, and the node whose "
             "shapes a call does not fit refuses it; give one of them another UID",
             local->uid, peer, age, f->cls, digest_text(f->schema_digest, theirs),
             local->settings.cls, digest_text(local->schema_digest, ours));
}

static void log_finding(const struct local_expert *local, const struct finding *f)
{
    const char *who = local->reservation == NULL ? "that node" : f->random ? "each" : "this node";
    char peer[PEER_ID_SHORT_BYTES], age[AGE_BYTES];

    peer_id_short(f->peer_id, peer);
    age_text(f->since_s, age);
    if (f->decision == UID_OTHER_SCHEMA)
        log_other_schema(local, f, peer, age);
    else if (f->decision == UID_DUPLICATE)
        log_warn("expert %s: peer %s serves the same UID %s, and %s picked it at random, so the "
                 "weights differ: clients take both for one expert; give one of them another UID",
                 local->uid, peer, age, who);
    else
        log_info("expert %s: peer %s serves the same UID %s: clients take both for one expert and "
                 "fail over between them",
                 local->uid, peer, age);
}

static void report(struct claims *c)
{
    size_t reported = 0;

    for (size_t i = 0; i < c->finding_count; i++) {
        const struct finding *f = &c->findings[i];
        struct local_expert *local;

        if (f->decision == UID_YIELD)
            continue;
        local = roster_hold(&c->node->roster, c->looked[f->index].uid);
        if (local == NULL)
            continue;
        if (is_news(local, f->peer_id) && reported++ < REPORTED)
            log_finding(local, f);
        local_expert_release(local);
    }
    if (reported > REPORTED)
        log_warn("and %zu more UIDs that other nodes serve, too", reported - REPORTED);
}

/* --- giving up and picking anew --------------------------------------------------------------- */

/* Waits, unless it is to end: then false. */
static bool wait_ms(struct claims *c, uint32_t ms)
{
    uint64_t until = clock_deadline_us(ms);

    pthread_mutex_lock(&c->lock);
    while (!c->closing && cond_wait_until(&c->changed, &c->lock, until))
        continue;
    bool closing = c->closing;
    pthread_mutex_unlock(&c->lock);
    return !closing;
}

/* Nobody finds the expert any more; its memory is given back when the last call of it has ended. */
static void give_up(struct claims *c, struct local_expert *local)
{
    uint64_t deadline = clock_deadline_us(UNMAKE_MS);

    if (!roster_retire(&c->node->roster, local))
        return; /* it was removed */
    while (!local_expert_unmake(local))
        if (clock_mono_us() > deadline || !wait_ms(c, UNMAKE_LOOK_MS))
            return; /* it goes with the node */
}

static skep_status make_one(struct claims *c, const struct uid_reservation *reservation,
                            const char *uid, struct skep_error *err)
{
    struct skep_node *node = c->node;
    struct skep_expert_options options = reservation_options(reservation, uid);
    struct handler_expert published = {.uid = uid, .cls = reservation->settings.cls};
    struct local_expert *local = NULL;
    skep_status rc = node_check_stop(node, err);

    if (rc == SKEP_OK)
        rc = local_expert_new(uid, &options, &local, err);
    if (rc != SKEP_OK)
        return rc;
    local->reservation = reservation;
    atomic_store(&local->joined_us, clock_mono_us());
    memcpy(published.schema_digest, local->schema_digest, sizeof(published.schema_digest));
    rc = node_check_memory(node, local, err);
    if (rc == SKEP_OK)
        rc = local_expert_make(local, err);
    if (rc == SKEP_OK)
        rc = node_open_local_expert(node, local, err);
    if (rc == SKEP_OK)
        rc = roster_insert(&node->roster, local, err);
    if (rc != SKEP_OK) {
        /* The runtime may have its pools already, and keeps them until it ends. */
        roster_adopt_retired(&node->roster, local);
        return rc;
    }
    /* Only the thread that starts and stops the node ends the handler, after ours. */
    return handler_add_experts(node->handler, &published, 1, err);
}

static void log_given_up(struct claims *c, size_t index, const char *next)
{
    char peer[PEER_ID_SHORT_BYTES] = "";

    for (size_t i = 0; i < c->finding_count; i++)
        if (c->findings[i].index == index && c->findings[i].decision == UID_YIELD)
            peer_id_short(c->findings[i].peer_id, peer);
    if (next != NULL)
        log_info("expert %s: peer %s serves the UID as well and has priority: given up, untrained, "
                 "for %s",
                 c->looked[index].uid, peer, next);
    else
        log_warn(
            "expert %s: peer %s serves the UID as well and has priority: given up, untrained; no "
            "other UID of its pattern is free",
            c->looked[index].uid, peer);
}

/* Finds UIDs for the experts of one reservation that yield: of them as many as are free are
 * replaced. The rest is given up (--allow-fewer), refused, or kept by a node that serves already.
 */
static skep_status replace_reservation(struct claims *c, const struct uid_reservation *reservation,
                                       bool is_serving, struct skep_error *err)
{
    struct roster *roster = &c->node->roster;
    bool fewer = c->node->settings.options.allow_fewer;
    char(*uids)[UID_BYTES] = NULL;
    size_t wanted = 0, picked = 0, used = 0;
    skep_status rc;

    for (size_t i = 0; i < c->looked_count; i++)
        if (c->looked[i].yields) {
            struct local_expert *local = roster_hold(roster, c->looked[i].uid);

            wanted += local != NULL && local->reservation == reservation;
            if (local != NULL)
                local_expert_release(local);
        }
    if (wanted == 0)
        return SKEP_OK;
    uids = mem_calloc(wanted, UID_BYTES);
    if (uids == NULL)
        return error_no_memory(err, "pattern", wanted);
    rc = node_pick(c->node, reservation, wanted, uids, &picked, err);
    if (rc == SKEP_OK && picked < wanted && !fewer && !is_serving)
        rc = pattern_refuse(&reservation->pattern, reservation->count - wanted + picked,
                            reservation->count, err);
    for (size_t i = 0; i < c->looked_count && rc == SKEP_OK; i++) {
        struct local_expert *local =
            c->looked[i].yields ? roster_hold(roster, c->looked[i].uid) : NULL;

        if (local == NULL)
            continue;
        local_expert_release(local); /* only we retire it */
        if (local->reservation != reservation)
            continue;
        if (used == picked && is_serving && !fewer) {
            atomic_store(&local->kept, true); /* the next look warns of it */
            continue;
        }
        log_given_up(c, i, used < picked ? uids[used] : NULL);
        give_up(c, local);
        if (used < picked)
            rc = make_one(c, reservation, uids[used++], err);
    }
    if (rc == SKEP_OK)
        handler_refresh(c->node->handler);
    mem_free(uids);
    return rc;
}

/* Whatever was not contested is settled. Returns whether something was. */
static bool note_settled(struct claims *c)
{
    bool contested = false;

    for (size_t i = 0; i < c->looked_count; i++) {
        struct local_expert *local = NULL;

        contested = contested || c->looked[i].yields;
        if (!c->looked[i].yields && c->looked[i].claim.level == RECORD_CLAIM_NEW)
            local = roster_hold(&c->node->roster, c->looked[i].uid);
        if (local == NULL)
            continue;
        atomic_store(&local->settled, true);
        local_expert_release(local);
    }
    return contested;
}

/* One look and what follows from it. */
static skep_status look(struct claims *c, bool is_serving, bool *contested, struct skep_error *err)
{
    skep_status rc = list_looked(c, !is_serving, err);

    *contested = false;
    c->finding_count = 0;
    if (rc == SKEP_OK)
        rc = node_look(c->node, c->uids, c->looked_count, LOOK_MS, on_seen, c, err);
    if (rc != SKEP_OK)
        return rc;
    report(c);
    *contested = note_settled(c);
    for (const struct uid_reservation *w = c->node->reservations;
         w != NULL && *contested && rc == SKEP_OK; w = w->next)
        rc = replace_reservation(c, w, is_serving, err);
    return rc;
}

/* --- before the node is ready ------------------------------------------------------------------
 */

static bool has_open(struct claims *c)
{
    bool open = false;
    struct local_expert *local;

    for (size_t i = 0; !open && (local = roster_hold_at(&c->node->roster, i)) != NULL; i++) {
        struct record_claim claim;

        local_expert_claim(local, &claim);
        open = claim.level != RECORD_CLAIM_KEPT;
        local_expert_release(local);
    }
    return open;
}

/* Until a publication round after the `seen`th has ended, and the pause; or the deadline. */
static skep_status wait_published(struct claims *c, uint64_t *seen, uint64_t deadline_us,
                                  struct skep_error *err)
{
    uint64_t pause_us = 0;
    skep_status rc = SKEP_OK;

    pthread_mutex_lock(&c->lock);
    while (rc == SKEP_OK) {
        uint64_t now = clock_mono_us();

        if (pause_us == 0 && (c->rounds > *seen || now >= deadline_us))
            pause_us = now + PAUSE_MS * (uint64_t)1000;
        if (pause_us > 0 && now >= pause_us)
            break;
        /* A stop is only noticed by looking. */
        cond_wait_until(&c->changed, &c->lock, now + 50 * 1000);
        rc = node_check_stop(c->node, err);
    }
    *seen = c->rounds;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

skep_status claims_settle(struct claims *c, struct skep_error *err)
{
    uint64_t deadline = clock_deadline_us(SETTLE_MS), seen = 0;
    bool contested = true;
    skep_status rc = SKEP_OK;

    if (c == NULL || !has_open(c))
        return SKEP_OK;
    if (swarm_peer_count(c->node->swarm) == 0 || c->node->announced_count == 0) {
        log_info("node: %s: the UIDs that it picked at random are compared with those of other "
                 "nodes later",
                 c->node->announced_count == 0 ? "publishes nothing yet" : "has no DHT peer yet");
        return SKEP_OK;
    }
    rc = wait_published(c, &seen, clock_deadline_us(FIRST_ROUND_MS), err);
    while (rc == SKEP_OK && contested && clock_mono_us() < deadline) {
        rc = look(c, false, &contested, err);
        if (rc == SKEP_OK && contested)
            rc = wait_published(c, &seen, deadline, err);
    }
    if (rc == SKEP_OK && contested)
        log_warn("node: other nodes pick UIDs of the same pattern at the same time; the node "
                 "serves now and goes on comparing");
    return rc;
}

/* --- the thread --------------------------------------------------------------------------------
 */

/* Waits for a publication round that it has not seen, and the pause. False: it is to end. */
static bool wait_turn(struct claims *c, uint64_t *seen)
{
    pthread_mutex_lock(&c->lock);
    while (!c->closing && c->rounds == *seen)
        pthread_cond_wait(&c->changed, &c->lock);
    bool closing = c->closing;
    *seen = c->rounds;
    pthread_mutex_unlock(&c->lock);
    return !closing && wait_ms(c, PAUSE_MS);
}

static void run(void *arg)
{
    struct claims *c = arg;
    uint64_t seen = 0;

    while (wait_turn(c, &seen)) {
        struct skep_error err = {0};
        bool contested;

        if (c->young_until_us == 0)
            c->young_until_us = clock_deadline_us(YOUNG_MS);
        skep_status rc = look(c, true, &contested, &err);
        if (rc != SKEP_OK && rc != SKEP_CANCELLED)
            log_error("node: comparing UIDs with other nodes: %s", err.message);
    }
}

/* --- life --------------------------------------------------------------------------------------
 */

skep_status claims_new(struct skep_node *node, struct claims **out, struct skep_error *err)
{
    struct claims *c = mem_calloc(1, sizeof(*c));

    *out = c;
    if (c == NULL)
        return error_no_memory(err, "claims", sizeof(*c));
    c->node = node;
    pthread_mutex_init(&c->lock, NULL);
    cond_init(&c->changed);
    /* Who starts alone has its UIDs before those who join through it. */
    if (node->swarm == NULL || swarm_peer_count(node->swarm) == 0)
        for (size_t i = 0; i < node->roster.count; i++)
            atomic_store(&node->roster.items[i]->settled, true);
    if (node->swarm == NULL)
        for (size_t i = 0; i < node->roster.count; i++)
            atomic_store(&node->roster.items[i]->kept, true);
    return SKEP_OK;
}

skep_status claims_start(struct claims *c, struct skep_error *err)
{
    if (c->node->handler == NULL || c->node->roster.count == 0)
        return SKEP_OK;
    return thread_start(&c->thread, "skep-claims", run, c, err);
}

void claims_published(struct claims *c)
{
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    c->rounds++;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

void claims_stop(struct claims *c)
{
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    thread_join(&c->thread);
}

void claims_free(struct claims *c)
{
    if (c == NULL)
        return;
    claims_stop(c);
    mem_free(c->looked);
    mem_free(c->uids);
    mem_free(c->findings);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}
