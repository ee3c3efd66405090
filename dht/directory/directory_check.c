/*
 * Values that arrived for a query: which of them to verify, in which order, and what they tell.
 *
 * Anybody may put anything under a key, and OpenDHT nodes that are not ours store it. A signature
 * costs some 60 us to check, so the cheap questions come first: form, kind, dates, whether a newer
 * record of that peer is known already, and whether there would be room for it. Then peers that
 * were verified before, then by place (peer_memory.h), for a seq is what its writer says; of a peer
 * the newest record, and if that turns out to be forged, the next. The number of signatures checked
 * for one lookup is bounded.
 */
#include "dht/directory/directory_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "dht/record/record_internal.h"

enum {
    REFUSED_LOG_MS = 10 * 1000,
    CLOCK_LOG_MS = 60 * 1000,
};

struct candidate {
    const struct inbox_event *event; /* view */
    uint8_t peer_id[PEER_ID_BYTES];
    enum record_kind kind;
    uint64_t seq;
    int64_t expires_at;
    bool known; /* this peer's records were verified before */
    uint64_t rank;
};

static bool peek(struct candidate *c, const struct inbox_event *event)
{
    struct envelope e;

    if (envelope_parse(&e, event->data, event->len, NULL) != SKEP_OK)
        return false;
    c->event = event;
    memcpy(c->peer_id, e.peer_id, sizeof(c->peer_id));
    c->kind = e.kind;
    c->seq = e.seq;
    c->expires_at = e.expires_at;
    envelope_free(&e);
    return true;
}

static bool dates_are_possible(const struct candidate *c, int64_t now_s)
{
    int64_t ahead = RECORD_MAX_LIFETIME_S + RECORD_CLOCK_TOLERANCE_S;

    return c->expires_at > now_s - RECORD_CLOCK_TOLERANCE_S && c->expires_at <= now_s + ahead &&
           c->seq / 1000 <= (uint64_t)(now_s + ahead);
}

bool directory_misdated(struct directory *d, const uint8_t *keys, size_t count,
                        struct record_misdated *out)
{
    uint64_t now_us = clock_mono_us(), newest_us = 0;

    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < MISDATED_KEPT; i++) {
        const struct misdated_seen *m = &d->misdated[i];
        if (m->seen_us <= newest_us || now_us - m->seen_us > MISDATED_US)
            continue;
        for (size_t k = 0; k < count; k++)
            if (memcmp(m->key, keys + k * RECORD_KEY_BYTES, RECORD_KEY_BYTES) == 0) {
                *out = m->what;
                newest_us = m->seen_us;
            }
    }
    pthread_mutex_unlock(&d->lock);
    return newest_us != 0;
}

const char *directory_describe_misdated(const struct record_misdated *misdated,
                                        char text[static DIRECTORY_MISDATED_BYTES])
{
    char peer[PEER_ID_SHORT_BYTES];
    int64_t by_s = misdated->off_by_s;

    peer_id_short(misdated->peer_id, peer);
    snprintf(
        text, DIRECTORY_MISDATED_BYTES,
        "a record of peer %s is there, but it %s %lld s %s by this machine's clock, and clocks "
        "may differ by %d s: check the clocks of both machines",
        peer, by_s < 0 ? "ended" : "is dated", (long long)(by_s < 0 ? -by_s : by_s),
        by_s < 0 ? "ago" : "ahead", RECORD_CLOCK_TOLERANCE_S);
    return text;
}

void directory_note_misdated(struct directory *d, const uint8_t *key, const char *label,
                             const struct record_misdated *what)
{
    static struct log_limit gate;
    unsigned long suppressed;
    char text[DIRECTORY_MISDATED_BYTES];

    pthread_mutex_lock(&d->lock);
    struct misdated_seen *m = &d->misdated[d->misdated_next++ % MISDATED_KEPT];
    *m = (struct misdated_seen){.what = *what, .seen_us = clock_mono_us()};
    memcpy(m->key, key, sizeof(m->key));
    pthread_mutex_unlock(&d->lock);
    if (log_limit_passes(&gate, CLOCK_LOG_MS, &suppressed))
        log_warn("directory: %s: %s", label, directory_describe_misdated(what, text));
}

/* One for each lookup, and of its signatures one. */
static void note_misdated(struct directory *d, struct query *q, const struct inbox_event *event,
                          int64_t now_s)
{
    struct record_misdated what;

    if (q->saw_misdated || q->verifications >= MAX_VERIFICATIONS)
        return;
    q->verifications++;
    q->saw_misdated = record_is_misdated(event->data, event->len, d->swarm, q->key, now_s, &what);
    if (q->saw_misdated)
        directory_note_misdated(d, q->key, q->own ? "own records" : q->uid, &what);
}

enum worth { WORTH_NOTHING, WORTH_REFUSING, WORTH_CHECKING };

/* Whether a value is worth checking a signature; fills in the candidate. Who looks for records of
 * our own does not care what others have under the key. */
static enum worth worth_of(struct directory *d, struct query *q, const struct inbox_event *event,
                           int64_t now_s, struct candidate *c)
{
    if (!peek(c, event))
        return q->own ? WORTH_NOTHING : WORTH_REFUSING;
    if (q->own && memcmp(c->peer_id, d->identity->peer_id, PEER_ID_BYTES) != 0)
        return WORTH_NOTHING;
    if (!dates_are_possible(c, now_s)) {
        note_misdated(d, q, event, now_s);
        return WORTH_REFUSING;
    }
    if (q->own)
        return WORTH_CHECKING;
    if (c->kind != (q->collects ? q->record_kind : RECORD_EXPERT))
        return WORTH_REFUSING;
    c->known = !q->collects && provider_set_seq(&q->found, c->peer_id) != 0;
    c->rank = peer_memory_rank(d->memory, c->peer_id, q->order_seed, clock_mono_us());
    return WORTH_CHECKING;
}

static int better_first(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->known != y->known)
        return x->known ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->seq > y->seq ? -1 : x->seq < y->seq;
}

/* Takes a record in; of a query that collects, *record is taken away. */
static void merge(struct directory *d, struct query *q, struct record *record, uint64_t mark,
                  int64_t now_s)
{
    bool own = memcmp(record->peer_id, d->identity->peer_id, PEER_ID_BYTES) == 0;
    const struct ranking ranking = {d->memory, q->order_seed, clock_mono_us()};

    pthread_mutex_lock(&d->lock);
    if (own)
        directory_saw_own(d, record->seq);
    /* What we serve, directory_set_local() says; a record of ours beside it is from an earlier run
     * and would make us dial ourselves. */
    if (q->collects) {
        if (q->records != NULL)
            collection_put(q->records, record, mark);
    } else if (!q->own && !(own && d->locals_set)) {
        if (!provider_set_merge(&q->found, record, now_s, &ranking) &&
            provider_set_seq(&q->found, record->peer_id) == 0 && !record->expert.offline)
            overflow_add(&d->overflow, q->key, record, now_s, &ranking);
        struct cache_entry *e = lookup_cache_touch(&d->cache, q->key);
        if (e != NULL)
            provider_set_merge(&e->found, record, now_s, &ranking);
    }
    for (struct waiter *w = q->own && own ? q->waiters : NULL; w != NULL; w = w->next)
        if (record->seq > w->request->own_sequence)
            w->request->own_sequence = record->seq;
    pthread_mutex_unlock(&d->lock);
}

/* A record by whose dates one of the two clocks is wrong, and which is taken all the same. The
 * publisher is honest about its own clock or harms itself. */
static void compare_clocks(const struct directory *d, const struct candidate *c, int64_t now_s)
{
    static struct log_limit gate;
    unsigned long suppressed;
    char peer[PEER_ID_SHORT_BYTES];
    int64_t by_s = record_off_by_s(c->seq, c->expires_at, now_s);

    if ((by_s < 0 ? -by_s : by_s) <= (int64_t)d->clock_skew_s ||
        memcmp(c->peer_id, d->identity->peer_id, PEER_ID_BYTES) == 0 ||
        !log_limit_passes(&gate, CLOCK_LOG_MS, &suppressed))
        return;
    peer_id_short(c->peer_id, peer);
    log_warn("directory: records of peer %s %s %lld s %s by our clock: check the clocks of both "
             "machines; when clocks differ by more than %d s, records may be refused",
             peer, by_s < 0 ? "ended" : "are dated", (long long)(by_s < 0 ? -by_s : by_s),
             by_s < 0 ? "ago" : "ahead", RECORD_CLOCK_TOLERANCE_S);
}

/* Verifies one candidate and takes it in. False: refused. */
static bool verify(struct directory *d, struct query *q, const struct candidate *c, int64_t now_s)
{
    struct record record = {0};
    struct skep_error err = {0};

    q->verifications++;
    skep_status rc =
        record_decode(&record, c->event->data, c->event->len, d->swarm, q->key, now_s, &err);
    if (rc == SKEP_OK && q->collects && record.kind != q->record_kind) {
        rc = SKEP_DATA_LOSS;
    } else if (rc == SKEP_OK && !q->own && !q->collects &&
               (record.kind != RECORD_EXPERT || strcmp(record.expert.uid, q->uid) != 0)) {
        log_debug("directory: %s: record for %s refused", q->uid,
                  record.kind == RECORD_EXPERT ? record.expert.uid : "another kind");
        rc = SKEP_DATA_LOSS;
    } else if (rc != SKEP_OK) {
        log_debug("directory: %s: record refused: %s", q->own ? "own" : q->uid, err.message);
    }
    if (rc == SKEP_OK) {
        compare_clocks(d, c, now_s);
        merge(d, q, &record, collection_mark(c->event->data, c->event->len), now_s);
    }
    record_free(&record);
    return rc == SKEP_OK;
}

static void log_refused(const struct query *q, size_t refused)
{
    static struct log_limit gate;
    unsigned long suppressed;

    if (refused > 0 && log_limit_passes(&gate, REFUSED_LOG_MS, &suppressed))
        log_info("directory: %s: %zu record%s refused (forged, malformed or expired)",
                 q->own ? "own records" : q->uid, refused, text_plural(refused));
}

static bool was_collected(struct directory *d, struct query *q, const struct candidate *c)
{
    pthread_mutex_lock(&d->lock);
    bool collected = q->records == NULL ||
                     collection_has(q->records, collection_mark(c->event->data, c->event->len)) ||
                     collection_has_newer(q->records, c->event->value_id, c->peer_id, c->seq);
    pthread_mutex_unlock(&d->lock);
    return collected;
}

/* Whether there is room for one that was not heard of yet, in the answer or for the next one. */
static bool has_place(struct directory *d, struct query *q, const struct candidate *c,
                      const struct ranking *ranking)
{
    if (provider_set_has_room(&q->found, c->peer_id, ranking))
        return true;
    pthread_mutex_lock(&d->lock);
    bool has = !peer_memory_is_failed(c->rank) &&
               overflow_has_room(&d->overflow, q->key, c->peer_id, ranking);
    pthread_mutex_unlock(&d->lock);
    return has;
}

static size_t check_all(struct directory *d, struct query *q, struct candidate *list, size_t count,
                        int64_t now_s)
{
    const struct ranking ranking = {d->memory, q->order_seed, clock_mono_us()};
    size_t refused = 0;

    qsort(list, count, sizeof(*list), better_first);
    for (size_t i = 0; i < count; i++) {
        if (!q->own && !q->collects && provider_set_seq(&q->found, list[i].peer_id) >= list[i].seq)
            continue; /* an older statement of a peer that has been heard */
        if (!q->own && !q->collects && !list[i].known && !has_place(d, q, &list[i], &ranking))
            continue; /* one of the overflow, whose turn has not come */
        if (q->collects && was_collected(d, q, &list[i]))
            continue; /* a replica of one that has been read, or older; or nobody waits any more */
        if (q->verifications >= MAX_VERIFICATIONS || !verify(d, q, &list[i], now_s))
            refused++;
    }
    return refused;
}

void query_check_candidates(struct directory *d, struct query *q)
{
    int64_t now_s = d->wall_ms() / 1000;
    struct candidate *list = mem_calloc(q->candidate_count, sizeof(*list));
    size_t count = 0, refused = 0;

    for (const struct inbox_event *e = q->candidates; e != NULL && list != NULL; e = e->next) {
        enum worth worth = worth_of(d, q, e, now_s, &list[count]);
        count += worth == WORTH_CHECKING;
        refused += worth == WORTH_REFUSING;
    }
    if (list != NULL)
        refused += check_all(d, q, list, count, now_s);
    mem_free(list);

    while (q->candidates != NULL) {
        struct inbox_event *e = q->candidates;
        q->candidates = e->next;
        inbox_event_free(e);
    }
    q->candidate_count = 0;
    log_refused(q, refused);
    if (refused > 0) {
        pthread_mutex_lock(&d->lock);
        d->stats.records_refused += refused;
        pthread_mutex_unlock(&d->lock);
    }
}
