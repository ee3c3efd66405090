/* Watching a prefix: what to read when. watch.h has the rule, watch_tree.c the knowledge. */
#include "dht/directory/watch.h"

#include <pthread.h>
#include <sodium.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "dht/directory/directory_internal.h"
#include "dht/directory/watch_tree.h"

enum {
    READ_ROUND = 512, /* keys asked for at once */
    READ_MS = 5000,   /* time limit of a round */
    /* A notification is handled at once and again after this, when the edits that it announced have
     * reached the nodes that store them, then after twice that and after four times: where peers
     * have died, OpenDHT waits for them before it hands the edit to others. */
    NOTIFY_AGAIN_US = 500 * 1000,
    NOTIFY_DOUBLINGS = 2,
    NOTIFY_PAUSE_US = 250 * 1000, /* between readings for notifications, whoever sends them */
    QUIET_US = 15 * 1000 * 1000,  /* between readings of the watched prefix if nothing is there */
    SOON_US = 1000 * 1000,        /* after a failure, and at least between two readings of a key */
    MISS_FIRST_US = 2 * 1000 * 1000, /* a branch that is listed but empty; doubled each time */
    MISS_DOUBLINGS = 5,
    /* Without an answer of the watched prefix for so long, lookups go to the network again. */
    STALE_US = 45 * 1000 * 1000,
    OVERFLOW_LOG_MS = 60 * 1000,
    MAX_LISTENS = RECORD_SHARDS + 1,
};

/* What OpenDHT's thread notifies. It may still do so for a moment after the watch has gone. */
struct notification {
    atomic_uint refs;
    pthread_mutex_t lock;
    pthread_cond_t rung;
    uint64_t count;
    bool closing;
};

struct watch {
    struct live_view live; /* in directory.live_views; of `prefix` */
    struct directory *directory;
    watch_fn changed;
    void *arg;
    size_t prefix_len;
    char prefix[UID_BYTES];
    struct notification *notification;
    struct thread thread;
    /* The thread's alone: */
    struct runner_listen *listens[MAX_LISTENS]; /* owned */
    size_t listen_count;
    uint64_t seen;        /* notifications so far */
    uint64_t again_us;    /* when to read once more after a notification; 0: not */
    unsigned agains;      /* how often that was done since */
    uint64_t top_read_us; /* when the watched prefix was read last */
    bool cut_off;         /* the last reading of it failed */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t became_ready;
    struct watch_tree tree;
    bool ready;
    bool unavailable;     /* nobody could be asked */
    uint64_t answered_us; /* when the watched prefix was answered last */
    uint64_t reads;
};

/* ---- notifications */

static void notification_unref(void *arg)
{
    struct notification *notification = arg;

    if (notification == NULL || atomic_fetch_sub(&notification->refs, 1) != 1)
        return;
    pthread_cond_destroy(&notification->rung);
    pthread_mutex_destroy(&notification->lock);
    mem_free(notification);
}

static void on_notification(void *arg)
{
    struct notification *notification = arg;

    pthread_mutex_lock(&notification->lock);
    notification->count++;
    pthread_cond_signal(&notification->rung);
    pthread_mutex_unlock(&notification->lock);
}

/* Waits for a notification that was not handled yet, the deadline or the end. Returns false at the
 * end. */
static bool wait_notification(struct watch *w, uint64_t until_us)
{
    struct notification *notification = w->notification;

    pthread_mutex_lock(&notification->lock);
    while (!notification->closing && notification->count == w->seen &&
           cond_wait_until(&notification->rung, &notification->lock, until_us))
        continue;
    bool rung = notification->count != w->seen;
    bool closing = notification->closing;
    w->seen = notification->count;
    pthread_mutex_unlock(&notification->lock);
    if (rung) {
        uint64_t now = clock_mono_us(), soonest = w->top_read_us + NOTIFY_PAUSE_US;
        uint64_t at = soonest > now ? soonest : now;
        pthread_mutex_lock(&w->lock);
        if (w->tree.root->due_us > at)
            w->tree.root->due_us = at;
        pthread_mutex_unlock(&w->lock);
        w->again_us = at + NOTIFY_AGAIN_US;
        w->agains = 0;
    }
    return !closing;
}

/* ---- listening */

static void key_of(const struct watch *w, const char *prefix, size_t list, bool is_sharded,
                   uint8_t key[static RECORD_KEY_BYTES])
{
    static const uint8_t nobody[PEER_ID_BYTES];

    if (is_sharded)
        record_key_prefix_root(w->directory->swarm, prefix, (unsigned)list, key);
    else
        record_key_prefix(w->directory->swarm, prefix, nobody, key);
}

static void unlisten(struct watch *w)
{
    for (size_t i = 0; i < w->listen_count; i++)
        runner_unlisten(w->directory->runner, w->listens[i]);
    w->listen_count = 0;
}

static void listen_to(struct watch *w, const char *prefix, size_t lists)
{
    for (size_t i = 0; i < lists; i++) {
        uint8_t key[RECORD_KEY_BYTES];
        key_of(w, prefix, i, lists > 1, key);
        atomic_fetch_add(&w->notification->refs, 1);
        w->listens[w->listen_count++] = runner_listen(w->directory->runner, key, on_notification,
                                                      notification_unref, w->notification);
    }
}

/* Publishers notify under the name alone, whatever has changed below it; under a deeper prefix one
 * hears of those who are new there. */
static void listen_again(struct watch *w)
{
    char name[UID_BYTES];
    size_t len = strcspn(w->prefix, ".") + 1;

    unlisten(w);
    if (len < w->prefix_len)
        listen_to(w, w->prefix, w->tree.root->list_count);
    memcpy(name, w->prefix, len);
    name[len] = '\0';
    listen_to(w, name, RECORD_SHARDS);
}

/* ---- reading */

struct reading {
    uint8_t *keys;            /* owned, as all here */
    struct branch **branches; /* of each key; the tree is changed by this thread alone */
    size_t *lists;
    struct collect_result *answers;
    size_t count;
};

static void reading_fini(struct reading *r)
{
    for (size_t i = 0; r->answers != NULL && i < r->count; i++)
        collection_unref(r->answers[i].records);
    mem_free(r->keys);
    mem_free(r->branches);
    mem_free(r->lists);
    mem_free(r->answers);
}

/* The branches that are due, as many as fit. False if memory is short. */
static bool reading_init(struct watch *w, struct reading *r, uint64_t now_us)
{
    *r = (struct reading){
        .keys = mem_alloc(READ_ROUND * RECORD_KEY_BYTES),
        .branches = mem_alloc(READ_ROUND * sizeof(struct branch *)),
        .lists = mem_alloc(READ_ROUND * sizeof(*r->lists)),
        .answers = mem_calloc(READ_ROUND, sizeof(*r->answers)),
    };
    if (r->keys == NULL || r->branches == NULL || r->lists == NULL || r->answers == NULL)
        return false;
    pthread_mutex_lock(&w->lock);
    for (struct branch *b = w->tree.root; b != NULL; b = watch_tree_next(&w->tree, b)) {
        if (b->due_us > now_us || r->count + b->list_count > READ_ROUND)
            continue;
        for (size_t i = 0; i < b->list_count; i++) {
            key_of(w, b->prefix, i, b->list_count > 1, r->keys + r->count * RECORD_KEY_BYTES);
            r->branches[r->count] = b;
            r->lists[r->count++] = i;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return true;
}

/* When to read a branch again. */
static uint64_t next_due(const struct watch *w, struct branch *b, bool answered, uint64_t now_us,
                         int64_t now_s)
{
    size_t alive = 0;

    if (!answered)
        return now_us + SOON_US;
    if (b->view != NULL)
        prefix_view_coords(b->view, &alive);
    if (alive > 0) {
        int64_t left_s = prefix_view_refresh_at(b->view) - now_s;
        uint64_t pause = left_s > 0 ? (uint64_t)left_s * 1000000 : 0;
        b->misses = 0;
        if (pause < SOON_US)
            pause = SOON_US;
        /* A tenth earlier for some, so that what was published together is not read together. */
        return now_us + pause - randombytes_uniform((uint32_t)(pause / 10 / 1000) + 1) * 1000ull;
    }
    if (b == w->tree.root)
        return now_us + QUIET_US;
    uint64_t pause = (uint64_t)MISS_FIRST_US << b->misses;
    b->misses += b->misses < MISS_DOUBLINGS;
    return now_us + pause;
}

static bool is_answer(skep_status status)
{
    return status == SKEP_OK || status == SKEP_NOT_FOUND;
}

/* With the lock held: takes the answers of one branch, first to `end`. */
static void take_branch(struct watch *w, struct reading *r, size_t first, size_t end,
                        uint64_t now_us, int64_t now_s)
{
    struct branch *b = r->branches[first];
    size_t answered = 0;

    for (size_t i = first; i < end; i++) {
        if (!is_answer(r->answers[i].status))
            continue;
        answered++;
        watch_tree_take(&w->tree, b, r->lists[i], r->answers[i].records, now_us, now_s);
    }
    if (b == w->tree.root) {
        w->unavailable = answered == 0;
        if (answered > 0)
            w->answered_us = now_us;
    }
    b->due_us = CLOCK_NEVER; /* children that are made now are due, and may be freed again */
    if (answered > 0)
        watch_tree_rebuild(&w->tree, b, now_us, now_s);
    uint64_t due = next_due(w, b, answered == end - first, now_us, now_s);
    if (b->again && due > now_us + NOTIFY_AGAIN_US)
        due = now_us + NOTIFY_AGAIN_US;
    b->again = false;
    if (due < b->due_us)
        b->due_us = due;
}

/* A branch that was read may have gone since, with its parent's new view. */
static bool still_there(const struct watch *w, const struct branch *b, const char *prefix)
{
    return watch_tree_find(&w->tree, prefix, strlen(prefix)) == b;
}

static void log_overflow(const struct watch *w)
{
    static struct log_limit gate;
    unsigned long suppressed;

    if (w->tree.overflow && log_limit_passes(&gate, OVERFLOW_LOG_MS, &suppressed))
        log_warn("watch %s: more than %d prefixes are listed under it; the rest is left out",
                 w->prefix, WATCH_MAX_BRANCHES);
}

static void take_all(struct watch *w, struct reading *r)
{
    uint64_t now_us = clock_mono_us();
    int64_t now_s = w->directory->wall_ms() / 1000;
    char(*prefixes)[UID_BYTES] = mem_alloc((r->count + 1) * sizeof(*prefixes));

    if (prefixes == NULL)
        return; /* memory is short: all of it is still due */
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < r->count; i++)
        memcpy(prefixes[i], r->branches[i]->prefix, strlen(r->branches[i]->prefix) + 1);
    for (size_t first = 0, end; first < r->count; first = end) {
        end = first + 1;
        while (end < r->count && r->branches[end] == r->branches[first])
            end++;
        if (still_there(w, r->branches[first], prefixes[first]))
            take_branch(w, r, first, end, now_us, now_s);
    }
    w->reads += r->count;
    if (!w->ready && w->tree.unread == 0 && w->answered_us != 0) {
        w->ready = true;
        pthread_cond_broadcast(&w->became_ready);
    }
    log_overflow(w);
    pthread_mutex_unlock(&w->lock);
    mem_free(prefixes);
}

/* Runs the callbacks of what has changed; without the lock. */
static void tell(struct watch *w)
{
    struct provider providers[DIRECTORY_MAX_PROVIDERS];

    pthread_mutex_lock(&w->lock);
    struct watch_change *changes = watch_tree_take_changes(&w->tree);
    pthread_mutex_unlock(&w->lock);
    int64_t now_s = w->directory->wall_ms() / 1000;
    for (struct watch_change *c = changes; c != NULL && w->changed != NULL; c = c->next) {
        struct watch_event event = {.kind = c->kind, .uid = c->uid, .providers = providers};
        if (c->view != NULL)
            event.provider_count =
                prefix_view_providers(c->view, c->index, now_s, providers, DIRECTORY_MAX_PROVIDERS);
        w->changed(w->arg, &event);
    }
    watch_changes_free(changes);
}

/* Reads what is due. Returns whether there may be more. */
static bool read_due(struct watch *w)
{
    struct reading r;
    uint64_t now_us = clock_mono_us();
    bool more = false;

    if (reading_init(w, &r, now_us) && r.count > 0) {
        bool top = r.branches[0] == w->tree.root;
        if (top)
            w->top_read_us = now_us;
        if (directory_collect(w->directory, RECORD_PREFIX, r.keys, r.count, "watched prefix",
                              clock_deadline_us(READ_MS), r.answers, NULL) != SKEP_OK)
            log_debug("watch %s: reading failed", w->prefix);
        if (top) {
            bool ok = is_answer(r.answers[0].status);
            if (ok && w->cut_off)
                listen_again(w); /* OpenDHT may have given ours up */
            w->cut_off = !ok;
        }
        take_all(w, &r);
        more = true;
    }
    reading_fini(&r);
    return more;
}

/* Drops what has ended. */
static void expire(struct watch *w)
{
    uint64_t now_us = clock_mono_us();
    int64_t now_s = w->directory->wall_ms() / 1000;

    pthread_mutex_lock(&w->lock);
    for (struct branch *b = w->tree.root; b != NULL; b = watch_tree_next(&w->tree, b))
        if (b->view != NULL && prefix_view_first_end(b->view) <= now_s)
            watch_tree_rebuild(&w->tree, b, now_us, now_s);
    pthread_mutex_unlock(&w->lock);
}

/* When something is to be done next. */
static uint64_t next_us(struct watch *w)
{
    uint64_t now_us = clock_mono_us(), next = now_us + QUIET_US;
    int64_t now_ms = w->directory->wall_ms();

    if (w->again_us != 0 && w->again_us < next)
        next = w->again_us;
    pthread_mutex_lock(&w->lock);
    for (struct branch *b = w->tree.root; b != NULL; b = watch_tree_next(&w->tree, b)) {
        int64_t end = b->view != NULL ? prefix_view_first_end(b->view) : INT64_MAX;
        if (b->due_us < next)
            next = b->due_us;
        if (end != INT64_MAX) {
            int64_t left_ms = end * 1000 - now_ms;
            uint64_t at = now_us + (left_ms > 0 ? (uint64_t)left_ms * 1000 : 0);
            next = at < next ? at : next;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return next;
}

/* After a notification: its edits may have come by now. */
static void read_again(struct watch *w)
{
    uint64_t now_us = clock_mono_us();

    if (w->again_us == 0 || w->again_us > now_us)
        return;
    w->agains++;
    w->again_us =
        w->agains <= NOTIFY_DOUBLINGS ? now_us + ((uint64_t)NOTIFY_AGAIN_US << w->agains) : 0;
    pthread_mutex_lock(&w->lock);
    w->tree.root->due_us = 0;
    pthread_mutex_unlock(&w->lock);
}

static void run(void *arg)
{
    struct watch *w = arg;

    listen_again(w);
    while (wait_notification(w, next_us(w))) {
        read_again(w);
        expire(w);
        read_due(w);
        tell(w);
    }
    unlisten(w);
}

/* ---- answering lookups */

/* With the lock held. */
static bool is_in_step(const struct watch *w, uint64_t now_us)
{
    return w->ready && w->answered_us + STALE_US > now_us;
}

/* As live_view.find. */
static bool find_view(struct live_view *live, const char *prefix, size_t len,
                      struct prefix_view **view)
{
    struct watch *w = (struct watch *)((char *)live - offsetof(struct watch, live));

    pthread_mutex_lock(&w->lock);
    bool covered = is_in_step(w, clock_mono_us());
    struct branch *b = covered ? watch_tree_find(&w->tree, prefix, len) : NULL;
    if (b != NULL && b->view == NULL)
        covered = false; /* has just appeared, and was not read yet */
    else if (b != NULL)
        prefix_view_ref(*view = b->view);
    pthread_mutex_unlock(&w->lock);
    return covered;
}

/* ---- life */

static struct notification *notification_new(void)
{
    struct notification *notification = mem_calloc(1, sizeof(*notification));

    if (notification == NULL)
        return NULL;
    atomic_init(&notification->refs, 1);
    pthread_mutex_init(&notification->lock, NULL);
    cond_init(&notification->rung);
    return notification;
}

skep_status watch_new(struct directory *directory, const struct watch_config *config,
                      struct watch **out, struct skep_error *err)
{
    const char *prefix = config->prefix != NULL ? config->prefix : "";
    size_t len = strnlen(prefix, UID_BYTES);

    *out = NULL;
    if (!uid_prefix_is_valid(prefix, len))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "watch: prefix \"%.80s\": expected a name, coordinates and a dot, such as "
                         "\"ffn.\"",
                         prefix);
    struct watch *w = mem_calloc(1, sizeof(*w));
    if (w == NULL)
        return error_no_memory(err, "watch", sizeof(*w));
    w->directory = directory;
    w->changed = config->changed;
    w->arg = config->arg;
    w->prefix_len = len;
    memcpy(w->prefix, prefix, len);
    pthread_mutex_init(&w->lock, NULL);
    cond_init(&w->became_ready);
    w->notification = notification_new();
    skep_status rc = w->notification != NULL
                         ? watch_tree_init(&w->tree, w->prefix, err)
                         : error_no_memory(err, "watch", sizeof(*w->notification));
    w->tree.memory = directory->memory;
    if (rc == SKEP_OK)
        rc = thread_start(&w->thread, "skep-watch", run, w, err);
    if (rc != SKEP_OK) {
        watch_free(w);
        return rc;
    }
    w->live = (struct live_view){.prefix = w->prefix, .prefix_len = len, .find = find_view};
    live_views_add(&directory->live_views, &w->live);
    *out = w;
    return SKEP_OK;
}

void watch_free(struct watch *w)
{
    if (w == NULL)
        return;
    live_views_remove(&w->directory->live_views, &w->live);
    if (w->notification != NULL) {
        pthread_mutex_lock(&w->notification->lock);
        w->notification->closing = true;
        pthread_cond_signal(&w->notification->rung);
        pthread_mutex_unlock(&w->notification->lock);
    }
    thread_join(&w->thread);
    watch_tree_fini(&w->tree);
    notification_unref(w->notification);
    pthread_cond_destroy(&w->became_ready);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
}

skep_status watch_wait_ready(struct watch *w, uint64_t deadline_us)
{
    pthread_mutex_lock(&w->lock);
    while (!w->ready && cond_wait_until(&w->became_ready, &w->lock, deadline_us))
        continue;
    skep_status status = w->ready         ? SKEP_OK
                         : w->unavailable ? SKEP_UNAVAILABLE
                                          : SKEP_DEADLINE_EXCEEDED;
    pthread_mutex_unlock(&w->lock);
    return status;
}

bool watch_is_in_step(struct watch *w)
{
    pthread_mutex_lock(&w->lock);
    bool in_step = is_in_step(w, clock_mono_us());
    pthread_mutex_unlock(&w->lock);
    return in_step;
}

void watch_stats(struct watch *w, struct watch_stats *out)
{
    pthread_mutex_lock(&w->notification->lock);
    uint64_t notifications = w->notification->count;
    pthread_mutex_unlock(&w->notification->lock);
    pthread_mutex_lock(&w->lock);
    *out = (struct watch_stats){w->tree.experts, w->tree.table.count, w->reads, notifications};
    pthread_mutex_unlock(&w->lock);
}

/* ---- reading it */

static void each_of_branch(const struct branch *b, int64_t now_s,
                           void (*each)(void *arg, const char *uid,
                                        const struct provider *providers, size_t count),
                           void *arg)
{
    struct provider providers[DIRECTORY_MAX_PROVIDERS];
    char uid[UID_BYTES];
    size_t count;
    const int64_t *coords = prefix_view_coords(b->view, &count);

    for (size_t i = 0; i < count; i++) {
        size_t n = prefix_view_providers(b->view, i, now_s, providers, DIRECTORY_MAX_PROVIDERS);
        int len = snprintf(uid, sizeof(uid), "%s%lld", b->prefix, (long long)coords[i]);
        if (n > 0 && len > 0 && (size_t)len < sizeof(uid))
            each(arg, uid, providers, n);
    }
}

void watch_each(struct watch *w,
                void (*each)(void *arg, const char *uid, const struct provider *providers,
                             size_t count),
                void *arg)
{
    int64_t now_s = w->directory->wall_ms() / 1000;

    pthread_mutex_lock(&w->lock);
    for (struct branch *b = w->tree.root; b != NULL; b = watch_tree_next(&w->tree, b))
        if (b->view != NULL)
            each_of_branch(b, now_s, each, arg);
    pthread_mutex_unlock(&w->lock);
}
