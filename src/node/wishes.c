/* The experts of a pattern: first those that were kept, then UIDs that nobody has. */
#include "node/node_internal.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "node/pattern.h"

enum {
    JOIN_WAIT_MS = 10000,   /* before UIDs of a pattern are chosen */
    LOOKUP_WAIT_MS = 10000, /* whether they are taken */
    STOP_LOOK_MS = 100,     /* within both: whether to stop instead */
};

/* --- lookups that a stop cuts short -------------------------------------------------------- */

struct look {
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    bool ended;
    bool *taken; /* borrowed */
};

/* Taken: known to the DHT, or maybe known: a lookup that got no answer in time does not make a UID
 * free. */
static void on_found(void *arg, const struct lookup_result *results, size_t count)
{
    struct look *look = arg;

    pthread_mutex_lock(&look->lock);
    for (size_t i = 0; i < count; i++)
        if (results[i].status != SKEP_NOT_FOUND && results[i].status != SKEP_UNAVAILABLE)
            look->taken[i] = true;
    look->ended = true;
    pthread_cond_broadcast(&look->changed);
    pthread_mutex_unlock(&look->lock);
}

static skep_status ask_directory(struct skep_node *node, const char *const *uids, size_t count,
                                 bool *taken, struct skep_error *err)
{
    struct directory *directory = swarm_directory(node->swarm);
    struct look look = {.taken = taken};
    skep_status rc;

    pthread_mutex_init(&look.lock, NULL);
    cond_init(&look.changed);
    rc = directory_get(directory, uids, count, DIRECTORY_FRESH, clock_deadline_us(LOOKUP_WAIT_MS),
                       on_found, &look, err);
    pthread_mutex_lock(&look.lock);
    while (rc == SKEP_OK && !look.ended) {
        if (cond_wait_until(&look.changed, &look.lock, clock_deadline_us(STOP_LOOK_MS)))
            continue;
        rc = node_check_stop(node, err);
        if (rc == SKEP_OK)
            continue;
        pthread_mutex_unlock(&look.lock);
        directory_get_cancel(directory, &look);
        pthread_mutex_lock(&look.lock);
        while (!look.ended) /* its callback must not outlive us */
            pthread_cond_wait(&look.changed, &look.lock);
    }
    pthread_mutex_unlock(&look.lock);
    pthread_cond_destroy(&look.changed);
    pthread_mutex_destroy(&look.lock);
    return rc;
}

/* --- choosing ------------------------------------------------------------------------------ */

static bool is_added(const struct skep_node *node, const char *uid)
{
    for (size_t i = 0; i < node->expert_count; i++)
        if (strcmp(node->experts[i]->uid, uid) == 0)
            return true;
    return false;
}

static skep_status find_taken(void *arg, const char *const *uids, size_t count, bool *taken,
                              struct skep_error *err)
{
    struct skep_node *node = arg;
    skep_status rc = node_check_stop(node, err);

    for (size_t i = 0; i < count; i++)
        taken[i] = is_added(node, uids[i]);
    if (rc != SKEP_OK || node->swarm == NULL || swarm_peer_count(node->swarm) == 0)
        return rc;
    return ask_directory(node, uids, count, taken, err);
}

static skep_status add_all(struct skep_node *node, const struct pattern_wish *wish,
                           char (*uids)[UID_BYTES], size_t count, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < count && rc == SKEP_OK; i++) {
        struct skep_expert_options options = wish->settings.options;

        options.seed = skep_expert_seed(options.seed, uids[i]);
        rc = node_add_hosted(node, uids[i], &options, err);
    }
    return rc;
}

static void log_saved(const struct skep_node *node, const struct pattern_wish *wish, size_t saved)
{
    const char *path = node->checkpoints.path;

    if (saved > wish->count)
        log_warn("%s: holds %zu experts of pattern %s, asked for: %zu; the rest is not hosted",
                 path, saved, wish->pattern.name, wish->count);
    else if (saved > 0)
        log_info("%s: pattern %s: of %zu expert%s, %zu go on and %zu start anew", path,
                 wish->pattern.name, wish->count, text_plural(wish->count), saved,
                 wish->count - saved);
}

static skep_status add_wish(struct skep_node *node, const struct pattern_wish *wish,
                            struct skep_error *err)
{
    char(*uids)[UID_BYTES] = mem_calloc(wish->count, UID_BYTES);
    size_t saved = 0;
    skep_status rc = SKEP_OK;

    if (uids == NULL)
        return error_no_memory(err, "pattern", wish->count);
    if (node->settings.checkpoint_dir != NULL) {
        rc = node_find_saved(node, wish, uids, &saved, err);
        if (rc == SKEP_OK)
            log_saved(node, wish, saved);
        saved = saved < wish->count ? saved : wish->count;
    }
    if (rc == SKEP_OK)
        rc = add_all(node, wish, uids, saved, err);
    if (rc == SKEP_OK && saved < wish->count)
        rc = pattern_choose(&wish->pattern, wish->count - saved, find_taken, node, uids, err);
    if (rc == SKEP_OK)
        rc = add_all(node, wish, uids, wish->count - saved, err);
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
                 "taken",
                 JOIN_WAIT_MS / 1000);
    return SKEP_OK;
}

skep_status node_add_wishes(struct skep_node *node, struct skep_error *err)
{
    skep_status rc;

    if (node->wishes == NULL)
        return SKEP_OK;
    rc = wait_joined(node, err);
    for (const struct pattern_wish *w = node->wishes; w != NULL && rc == SKEP_OK; w = w->next)
        rc = add_wish(node, w, err);
    return rc;
}
