/* Adding experts to a node that serves already, and taking them away. */
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "node/lifecycle/node_internal.h"

enum { IDLE_LOOK_MS = 5 }; /* between two looks whether an expert's last call has ended */

/* Takes node->changes on success, which keeps the node from stopping. */
static skep_status begin_change(struct skep_node *node, const char *uid, struct skep_error *err)
{
    pthread_mutex_lock(&node->changes);
    pthread_mutex_lock(&node->lock);
    bool is_running = node->state == NODE_RUNNING;
    pthread_mutex_unlock(&node->lock);
    if (is_running && !node->is_closed)
        return SKEP_OK;
    pthread_mutex_unlock(&node->changes);
    return error_set(err, SKEP_FAILED_PRECONDITION,
                     "expert %s: the node is not running, or is stopping", uid);
}

static void end_change(struct skep_node *node)
{
    pthread_mutex_unlock(&node->changes);
}

/* --- adding -------------------------------------------------------------------------------- */

static skep_status check_addition(struct skep_node *node, const struct local_expert *local,
                                  struct skep_error *err)
{
    struct local_expert *same = roster_hold(&node->roster, local->uid);

    if (same != NULL) {
        local_expert_release(same);
        return error_set(err, SKEP_INVALID_ARGUMENT, "expert %s: added twice", local->uid);
    }
    if (node->settings.checkpoint_dir != NULL) {
        skep_status rc = checkpoint_dir_check_uid(local->uid, err);

        if (rc != SKEP_OK)
            return rc;
    }
    return node_check_memory(node, local, err);
}

/* Its checkpoint, and somebody who saves it from now on. */
static skep_status restore_and_save(struct skep_node *node, struct local_expert *local,
                                    struct skep_error *err)
{
    if (node->settings.checkpoint_dir == NULL)
        return SKEP_OK;
    skep_status rc = node_open_checkpoints(node, true, err);
    if (rc == SKEP_OK)
        rc = node_restore_expert(node, local, err);
    if (rc == SKEP_OK && node->checkpointer == NULL)
        rc = node_open_checkpointer(node, err);
    return rc;
}

static skep_status publish(struct skep_node *node, const struct local_expert *local,
                           struct skep_error *err)
{
    struct handler_expert published = {.uid = local->uid, .cls = local->settings.cls};
    skep_status rc = SKEP_OK;

    memcpy(published.schema_digest, local->schema_digest, sizeof(published.schema_digest));
    pthread_mutex_lock(&node->parts);
    if (node->handler != NULL)
        rc = handler_add_experts(node->handler, &published, 1, err);
    pthread_mutex_unlock(&node->parts);
    return rc;
}

static skep_status add(struct skep_node *node, struct local_expert *local, struct skep_error *err)
{
    skep_status rc = check_addition(node, local, err);

    if (rc == SKEP_OK)
        rc = local_expert_make(local, err);
    if (rc == SKEP_OK)
        rc = restore_and_save(node, local, err);
    if (rc != SKEP_OK) {
        local_expert_free(local);
        return rc;
    }
    rc = node_open_local_expert(node, local, err);
    if (rc == SKEP_OK)
        rc = roster_insert(&node->roster, local, err);
    if (rc != SKEP_OK) { /* the runtime may have its pools, and keeps them until it ends */
        roster_adopt_retired(&node->roster, local);
        return rc;
    }
    log_info("expert %s: added", local->uid);
    return publish(node, local, err);
}

skep_status node_add_while_running(struct skep_node *node, const char *uid,
                                   const struct skep_expert_options *options,
                                   struct skep_error *err)
{
    struct local_expert *local;
    skep_status rc = local_expert_new(uid, options, &local, err);

    if (rc == SKEP_OK) {
        rc = begin_change(node, uid, err);
        if (rc != SKEP_OK)
            local_expert_free(local);
    }
    if (rc != SKEP_OK)
        return rc;
    rc = add(node, local, err);
    end_change(node);
    return rc;
}

/* --- removing ------------------------------------------------------------------------------ */

static void withdraw(struct skep_node *node)
{
    pthread_mutex_lock(&node->parts);
    if (node->handler != NULL)
        handler_refresh(node->handler); /* it finds the expert gone */
    pthread_mutex_unlock(&node->parts);
}

/* False at the deadline, or when the node is asked to stop, which does not wait for this. */
static bool wait_idle(const struct skep_node *node, const struct local_expert *local,
                      uint64_t deadline_us)
{
    while (!local_expert_is_idle(local)) {
        if (clock_mono_us() >= deadline_us || atomic_load(&node->is_stop_asked))
            return false;
        poll(NULL, 0, IDLE_LOOK_MS);
    }
    return true;
}

static skep_status take_away(struct skep_node *node, struct local_expert *local,
                             uint64_t deadline_us, struct skep_error *err)
{
    bool was_there = roster_retire(&node->roster, local);

    local_expert_release(local);
    if (!was_there) /* another thread has given it up meanwhile */
        return SKEP_OK;
    withdraw(node);
    if (!wait_idle(node, local, deadline_us))
        return error_set(err, SKEP_DEADLINE_EXCEEDED,
                         "expert %s: removed, but a call of it is still under way: its memory "
                         "is freed, and what it learned last is lost, when the node stops",
                         local->uid);
    skep_status rc = checkpointer_save(node->checkpointer, local, err);
    if (rc == SKEP_OK)
        log_info("expert %s: removed", local->uid);
    (void)local_expert_unmake(local);
    return rc;
}

skep_status skep_node_remove_expert(struct skep_node *node, const char *uid, uint32_t timeout_ms,
                                    struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES];
    skep_status rc = error_if_null(node, "node", err);

    if (rc == SKEP_OK)
        rc = error_if_null(uid, "uid", err);
    if (rc == SKEP_OK)
        rc = begin_change(node, uid, err);
    if (rc != SKEP_OK)
        return rc;
    struct local_expert *local = roster_hold(&node->roster, uid);
    if (local == NULL)
        rc = error_set(err, SKEP_NOT_FOUND, "expert %s: the node does not serve it",
                       text_quote(uid, strlen(uid), quoted));
    else
        rc = take_away(node, local, clock_deadline_us(timeout_ms), err);
    end_change(node);
    return rc;
}
