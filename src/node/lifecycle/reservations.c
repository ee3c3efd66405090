/* The experts of a pattern: first those that were kept, then UIDs that nobody has. */
#include "node/lifecycle/reservations.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "node/lifecycle/pattern.h"

enum {
    JOIN_WAIT_MS = 10000,   /* before UIDs of a pattern are chosen */
    LOOKUP_WAIT_MS = 10000, /* whether they are taken */
    PART_UIDS = 128,        /* looked up at once: each has room for its providers */
    STOP_LOOK_MS = 100,     /* within both: whether to stop instead */
    /* How old the answer "nobody has it" may get before the UID is published. */
    CHOICE_FRESH_MS = 100,
    CHOICE_ROUNDS = 4, /* looks and new choices before the node opens */
};

/* --- lookups that a stop cuts short -------------------------------------------------------- */

struct look {
    pthread_mutex_t lock; /* guards `ended`, and orders what `seen` did before what follows */
    pthread_cond_t changed;
    bool ended;
    const struct skep_node *node;
    size_t first; /* of the UIDs that this part of the look is about */
    reservation_seen_fn seen;
    void *arg;
};

static void on_found(void *arg, const struct lookup_result *results, size_t count)
{
    struct look *look = arg;
    const uint8_t *own = look->node->settings.identity.peer_id;

    pthread_mutex_lock(&look->lock);
    for (size_t i = 0; i < count; i++) {
        const struct lookup_result *r = &results[i];

        if (r->status == SKEP_NOT_FOUND || r->status == SKEP_UNAVAILABLE)
            continue;
        if (r->status != SKEP_OK)
            look->seen(look->arg, look->first + i, NULL);
        for (size_t k = 0; r->status == SKEP_OK && k < r->provider_count; k++)
            if (memcmp(r->providers[k].peer_id, own, PEER_ID_BYTES) != 0)
                look->seen(look->arg, look->first + i, &r->providers[k]);
    }
    look->ended = true;
    pthread_cond_broadcast(&look->changed);
    pthread_mutex_unlock(&look->lock);
}

static skep_status look_at_part(struct look *look, const char *const *uids, size_t count,
                                uint32_t timeout_ms, struct skep_error *err)
{
    struct directory *directory = swarm_directory(look->node->swarm);

    look->ended = false;
    skep_status rc =
        directory_get(directory, uids, count, DIRECTORY_FRESH | DIRECTORY_ALL | DIRECTORY_OTHERS,
                      clock_deadline_us(timeout_ms), on_found, look, err);
    pthread_mutex_lock(&look->lock);
    while (rc == SKEP_OK && !look->ended) {
        if (cond_wait_until(&look->changed, &look->lock, clock_deadline_us(STOP_LOOK_MS)))
            continue;
        rc = node_check_stop(look->node, err);
        if (rc == SKEP_OK)
            continue;
        pthread_mutex_unlock(&look->lock);
        directory_get_cancel(directory, look);
        pthread_mutex_lock(&look->lock);
        while (!look->ended) /* its callback must not outlive us */
            pthread_cond_wait(&look->changed, &look->lock);
    }
    pthread_mutex_unlock(&look->lock);
    return rc;
}

skep_status node_look(struct skep_node *node, const char *const *uids, size_t count,
                      uint32_t timeout_ms, reservation_seen_fn seen, void *arg,
                      struct skep_error *err)
{
    struct look look = {.node = node, .seen = seen, .arg = arg};
    skep_status rc = SKEP_OK;

    pthread_mutex_init(&look.lock, NULL);
    cond_init(&look.changed);
    for (; look.first < count && rc == SKEP_OK; look.first += PART_UIDS) {
        size_t part = count - look.first < PART_UIDS ? count - look.first : PART_UIDS;

        rc = look_at_part(&look, uids + look.first, part, timeout_ms, err);
    }
    pthread_cond_destroy(&look.changed);
    pthread_mutex_destroy(&look.lock);
    return rc;
}

/* --- choosing ------------------------------------------------------------------------------ */

/* Taken: others serve it, or may: a lookup that got no answer in time does not make a UID free. */
static void note_taken(void *arg, size_t index, const struct provider *provider)
{
    bool *taken = arg;

    (void)provider;
    taken[index] = true;
}

static skep_status find_taken(void *arg, const char *const *uids, size_t count, bool *taken,
                              struct skep_error *err)
{
    struct skep_node *node = arg;
    skep_status rc = node_check_stop(node, err);

    for (size_t i = 0; i < count; i++)
        taken[i] = roster_lists(&node->roster, uids[i]);
    if (rc != SKEP_OK || node->swarm == NULL || swarm_peer_count(node->swarm) == 0)
        return rc;
    return node_look(node, uids, count, LOOKUP_WAIT_MS, note_taken, taken, err);
}

skep_status node_pick(struct skep_node *node, const struct uid_reservation *reservation,
                      size_t wanted, char (*uids)[UID_BYTES], size_t *picked,
                      struct skep_error *err)
{
    return pattern_choose(&reservation->pattern, wanted, find_taken, node, uids, picked, err);
}

/* The same, and whether it is enough. `local` UIDs of the reservation are there already. */
static skep_status pick_enough(struct skep_node *node, const struct uid_reservation *reservation,
                               size_t local, char (*uids)[UID_BYTES], size_t *picked,
                               struct skep_error *err)
{
    size_t wanted = reservation->count - local;
    skep_status rc = node_pick(node, reservation, wanted, uids, picked, err);

    if (rc != SKEP_OK || *picked == wanted)
        return rc;
    if (!node->settings.options.allow_fewer)
        return pattern_refuse(&reservation->pattern, local + *picked, reservation->count, err);
    log_warn("pattern of %s: %zu UIDs are free, %zu were wanted: hosting %zu (--allow-fewer)",
             reservation->pattern.name, local + *picked, reservation->count, local + *picked);
    return SKEP_OK;
}

struct skep_expert_options reservation_options(const struct uid_reservation *reservation,
                                               const char *uid)
{
    struct skep_expert_options options = reservation->settings.options;

    options.seed = skep_expert_seed(options.seed, uid);
    return options;
}

static skep_status add_all(struct skep_node *node, const struct uid_reservation *reservation,
                           char (*uids)[UID_BYTES], size_t count, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < count && rc == SKEP_OK; i++) {
        struct skep_expert_options options = reservation_options(reservation, uids[i]);

        rc = node_add_local_expert(node, uids[i], &options, reservation, err);
    }
    return rc;
}

static void log_saved(const struct skep_node *node, const struct uid_reservation *reservation,
                      size_t saved)
{
    const char *path = node->checkpoints.path;

    if (saved > reservation->count)
        log_warn("%s: holds %zu experts of pattern %s, asked for: %zu; the rest is not hosted",
                 path, saved, reservation->pattern.name, reservation->count);
    else if (saved > 0)
        log_info("%s: pattern %s: of %zu expert%s, %zu go on and %zu start anew", path,
                 reservation->pattern.name, reservation->count, text_plural(reservation->count),
                 saved, reservation->count - saved);
}

static skep_status add_reservation(struct skep_node *node,
                                   const struct uid_reservation *reservation,
                                   struct skep_error *err)
{
    char(*uids)[UID_BYTES] = mem_calloc(reservation->count, UID_BYTES);
    size_t saved = 0, picked = 0;
    skep_status rc = SKEP_OK;

    if (uids == NULL)
        return error_no_memory(err, "pattern", reservation->count);
    if (node->settings.checkpoint_dir != NULL) {
        rc = node_find_saved(node, reservation, uids, &saved, err);
        if (rc == SKEP_OK)
            log_saved(node, reservation, saved);
        saved = saved < reservation->count ? saved : reservation->count;
    }
    if (rc == SKEP_OK)
        rc = add_all(node, reservation, uids, saved, err);
    if (rc == SKEP_OK && saved < reservation->count)
        rc = pick_enough(node, reservation, saved, uids, &picked, err);
    if (rc == SKEP_OK)
        rc = add_all(node, reservation, uids, picked, err);
    mem_free(uids);
    return rc;
}

/* Until there are peers, it is clear that there will be none, or the time is over. */
static skep_status wait_joined(struct skep_node *node, struct skep_error *err)
{
    uint64_t deadline = clock_deadline_us(JOIN_WAIT_MS);
    bool joined = node->swarm == NULL;

    while (!joined && clock_mono_us() < deadline) {
        skep_status rc = node_check_stop(node, err);

        if (rc != SKEP_OK)
            return rc;
        joined = swarm_wait_joined(node->swarm, clock_deadline_us(STOP_LOOK_MS));
    }
    if (!joined)
        log_warn("node: no peer has answered in %d s; UIDs are chosen without asking which are "
                 "taken, and looked at again when the first peer answers",
                 JOIN_WAIT_MS / 1000);
    return SKEP_OK;
}

skep_status node_add_reservations(struct skep_node *node, struct skep_error *err)
{
    skep_status rc;

    if (node->reservations == NULL)
        return SKEP_OK;
    rc = wait_joined(node, err);
    for (const struct uid_reservation *w = node->reservations; w != NULL && rc == SKEP_OK;
         w = w->next)
        rc = add_reservation(node, w, err);
    node->chosen_us = clock_mono_us();
    return rc;
}

/* --- once more before the node opens --------------------------------------------------------- */

/* The experts whose UIDs may still be changed, and which of them others have by now. */
struct choices {
    struct local_expert **experts; /* owned */
    const char **uids;             /* owned */
    bool *taken;                   /* owned */
    size_t count;
};

static void free_choices(struct choices *c)
{
    mem_free(c->experts);
    mem_free(c->uids);
    mem_free(c->taken);
}

static skep_status list_choices(const struct skep_node *node, struct choices *c,
                                struct skep_error *err)
{
    *c = (struct choices){
        .experts = mem_calloc(node->roster.count, sizeof(struct local_expert *)),
        .uids = mem_calloc(node->roster.count, sizeof(char *)),
        .taken = mem_calloc(node->roster.count, sizeof(bool)),
    };
    if (c->experts == NULL || c->uids == NULL || c->taken == NULL)
        return error_no_memory(err, "experts", node->roster.count * sizeof(struct local_expert *));
    for (size_t i = 0; i < node->roster.count; i++) {
        struct local_expert *local = node->roster.items[i];

        if (local->reservation == NULL || atomic_load(&local->kept))
            continue;
        c->experts[c->count] = local;
        c->uids[c->count++] = local->uid;
    }
    return SKEP_OK;
}

static size_t count_of_reservation(const struct skep_node *node,
                                   const struct uid_reservation *reservation)
{
    size_t count = 0;

    for (size_t i = 0; i < node->roster.count; i++)
        count += node->roster.items[i]->reservation == reservation;
    return count;
}

/* Picks and makes what a reservation lacks. */
static skep_status fill_reservation(struct skep_node *node,
                                    const struct uid_reservation *reservation,
                                    struct skep_error *err)
{
    size_t local = count_of_reservation(node, reservation), picked = 0;
    char(*uids)[UID_BYTES] = NULL;
    skep_status rc;

    if (local >= reservation->count)
        return SKEP_OK;
    uids = mem_calloc(reservation->count - local, UID_BYTES);
    if (uids == NULL)
        return error_no_memory(err, "pattern", reservation->count - local);
    rc = pick_enough(node, reservation, local, uids, &picked, err);
    if (rc == SKEP_OK)
        rc = add_all(node, reservation, uids, picked, err);
    mem_free(uids);
    return rc;
}

/* One look; *changed: others had taken some, which were replaced. */
static skep_status look_again(struct skep_node *node, bool *changed, struct skep_error *err)
{
    struct choices c = {0};
    skep_status rc = list_choices(node, &c, err);

    *changed = false;
    if (rc == SKEP_OK && c.count > 0)
        rc = node_look(node, c.uids, c.count, LOOKUP_WAIT_MS, note_taken, c.taken, err);
    for (size_t i = 0; i < c.count && rc == SKEP_OK; i++) {
        if (!c.taken[i])
            continue;
        log_info("expert %s: another node has taken the UID meanwhile; picking another",
                 c.experts[i]->uid);
        roster_drop(&node->roster, c.experts[i]);
        *changed = true;
    }
    for (const struct uid_reservation *w = node->reservations;
         *changed && w != NULL && rc == SKEP_OK; w = w->next)
        rc = fill_reservation(node, w, err);
    node->chosen_us = clock_mono_us();
    free_choices(&c);
    return rc;
}

skep_status node_check_choice(struct skep_node *node, bool *changed, struct skep_error *err)
{
    *changed = false;
    if (node->reservations == NULL || node->swarm == NULL || swarm_peer_count(node->swarm) == 0 ||
        node->choice_rounds >= CHOICE_ROUNDS ||
        clock_mono_us() < node->chosen_us + CHOICE_FRESH_MS * (uint64_t)1000)
        return SKEP_OK;
    node->choice_rounds++;
    return look_again(node, changed, err);
}
