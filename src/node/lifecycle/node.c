/* The life of a node: making, adding experts, waiting, ending. */
#include "node/lifecycle/node_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/text.h"

enum {
    FIRST_PUBLISH_WAIT_MS = 100, /* of readiness for the first publication to end */
};

/* --- making -------------------------------------------------------------------------------- */

skep_status skep_node_new(const struct skep_node_options *options, struct skep_node **out,
                          struct skep_error *err)
{
    struct skep_node *node = mem_calloc(1, sizeof(*node));
    skep_status rc;

    *out = NULL;
    if (node == NULL)
        return error_no_memory(err, "node", sizeof(*node));
    rc = settings_init(&node->settings, options, err);
    if (rc != SKEP_OK) {
        mem_free(node);
        return rc;
    }
    roster_init(&node->roster);
    pthread_mutex_init(&node->parts, NULL);
    pthread_mutex_init(&node->changes, NULL);
    pthread_mutex_init(&node->lock, NULL);
    pthread_mutex_init(&node->joining, NULL);
    cond_init(&node->changed);
    node->own_addresses.fd = -1;
    node->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (node->stop_fd < 0) {
        rc = error_set(err, SKEP_RESOURCE_EXHAUSTED, "node: eventfd: %s", strerror(errno));
        skep_node_free(node);
        return rc;
    }
    node->stop_fd = fd_move_high(node->stop_fd);
    *out = node;
    return SKEP_OK;
}

void skep_node_free(struct skep_node *node)
{
    if (node == NULL)
        return;
    skep_node_stop(node);
    if (node->is_stuck) {
        log_error("node: an expert is still at work; what it uses is not freed");
        return;
    }
    claims_free(node->claims);
    checkpointer_free(node->checkpointer);
    checkpoint_dir_close(&node->checkpoints);
    runtime_free(node->runtime);
    idempotency_free(node->idempotency);
    roster_fini(&node->roster);
    while (node->reservations != NULL) {
        struct uid_reservation *reservation = node->reservations;

        node->reservations = reservation->next;
        mem_free(reservation);
    }
    settings_fini(&node->settings);
    own_addresses_fini(&node->own_addresses);
    if (node->stop_fd >= 0)
        close(node->stop_fd);
    pthread_cond_destroy(&node->changed);
    pthread_mutex_destroy(&node->joining);
    pthread_mutex_destroy(&node->lock);
    pthread_mutex_destroy(&node->changes);
    pthread_mutex_destroy(&node->parts);
    mem_free(node);
}

skep_status node_check_stop(const struct skep_node *node, struct skep_error *err)
{
    return atomic_load(&node->is_stop_asked)
               ? error_set(err, SKEP_CANCELLED, "node: asked to stop before it was up")
               : SKEP_OK;
}

skep_status node_check_new(struct skep_node *node, const char *what, struct skep_error *err)
{
    pthread_mutex_lock(&node->lock);
    bool is_new = node->state == NODE_NEW;
    pthread_mutex_unlock(&node->lock);
    return is_new ? SKEP_OK
                  : error_set(err, SKEP_FAILED_PRECONDITION, "node: %s after it was started", what);
}

skep_status node_keep_local_expert(struct skep_node *node, struct local_expert *local,
                                   struct skep_error *err)
{
    if (roster_lists(&node->roster, local->uid))
        return error_set(err, SKEP_INVALID_ARGUMENT, "expert %s: added twice", local->uid);
    if (node->settings.checkpoint_dir != NULL) {
        skep_status rc = checkpoint_dir_check_uid(local->uid, err);

        if (rc != SKEP_OK)
            return rc;
    }
    return roster_append(&node->roster, local, err);
}

skep_status node_add_local_expert(struct skep_node *node, const char *uid,
                                  const struct skep_expert_options *options,
                                  const struct uid_reservation *reservation, struct skep_error *err)
{
    struct local_expert *local;
    skep_status rc = local_expert_new(uid, options, &local, err);

    if (rc == SKEP_OK)
        local->reservation = reservation;
    if (rc == SKEP_OK)
        rc = node_keep_local_expert(node, local, err);
    if (rc != SKEP_OK)
        local_expert_free(local);
    return rc;
}

skep_status skep_node_add_expert(struct skep_node *node, const char *uid,
                                 const struct skep_expert_options *options, struct skep_error *err)
{
    pthread_mutex_lock(&node->lock);
    bool is_new = node->state == NODE_NEW;
    pthread_mutex_unlock(&node->lock);
    return is_new ? node_add_local_expert(node, uid, options, NULL, err)
                  : node_add_while_running(node, uid, options, err);
}

skep_status skep_node_add_pattern(struct skep_node *node, const char *pattern, size_t count,
                                  const struct skep_expert_options *options, struct skep_error *err)
{
    struct uid_reservation *reservation = NULL;
    struct uid_reservation **last = &node->reservations;
    skep_status rc = node_check_new(node, "pattern added", err);

    if (rc != SKEP_OK)
        return rc;
    reservation = mem_calloc(1, sizeof(*reservation));
    if (reservation == NULL)
        return error_no_memory(err, pattern, sizeof(*reservation));
    rc = uid_pattern_parse(&reservation->pattern, pattern, err);
    if (rc != SKEP_OK)
        goto fail;
    if (count < 1 || count > uid_pattern_count(&reservation->pattern)) {
        rc = error_set(err, SKEP_INVALID_ARGUMENT,
                       "pattern %s: %zu expert%s asked for, expected 1 to %" PRIu64, pattern, count,
                       text_plural(count), uid_pattern_count(&reservation->pattern));
        goto fail;
    }
    reservation->count = count;
    rc = expert_describe(options, &reservation->description, err);
    if (rc == SKEP_OK)
        rc = expert_settings_init(&reservation->settings, options, err);
    if (rc != SKEP_OK) {
        if (err != NULL)
            error_prefix(err, "pattern %s", pattern);
        goto fail;
    }
    while (*last != NULL)
        last = &(*last)->next;
    *last = reservation;
    return SKEP_OK;

fail:
    mem_free(reservation);
    return rc;
}

uint64_t skep_expert_seed(uint64_t seed, const char *uid)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (const char *p = uid; *p != '\0'; p++)
        h = (h ^ (uint8_t)*p) * 0x100000001b3u; /* FNV-1a */
    h += seed * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u; /* the mixing of splitmix64 */
    h = (h ^ h >> 27) * 0x94d049bb133111ebu;
    return h ^ h >> 31;
}

/* --- the supervisor ------------------------------------------------------------------------ */

static void set_state(struct skep_node *node, enum node_state state)
{
    pthread_mutex_lock(&node->lock);
    node->state = state;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
}

/* Whether a stop was asked for, waiting until then, the time, or news of the machine's addresses.
 */
static bool stop_asked(struct skep_node *node, uint64_t until_us)
{
    struct pollfd fds[] = {
        {.fd = node->stop_fd, .events = POLLIN},
        {.fd = node->own_addresses.fd, .events = POLLIN}, /* poll() skips -1 */
    };
    uint64_t left_ms = until_us == CLOCK_NEVER ? UINT64_MAX : clock_left_ms(until_us);

    poll(fds, sizeof(fds) / sizeof(fds[0]), left_ms > INT_MAX ? -1 : (int)left_ms);
    return atomic_load(&node->is_stop_asked);
}

static void become_ready(struct skep_node *node)
{
    /* Only this thread ends the handler, so it may be used without `parts`. */
    if (node->handler != NULL && node->announced_count > 0)
        handler_wait_first_round(node->handler,
                                 node->started_us + FIRST_PUBLISH_WAIT_MS * (uint64_t)1000);
    pthread_mutex_lock(&node->lock);
    node->is_ready = true;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Looks after what changes by itself: the address others see, and reports. */
static void supervise(struct skep_node *node)
{
    uint64_t report_us = (uint64_t)node->settings.options.stats_report_interval_s * 1000000u;
    uint64_t next_report = report_us > 0 ? clock_mono_us() + report_us : CLOCK_NEVER;
    uint64_t next_announce = node->handler != NULL ? clock_mono_us() : CLOCK_NEVER;

    while (!stop_asked(node, earlier(next_report, next_announce))) {
        uint64_t now = clock_mono_us();

        if ((node_addresses_changed(node) && node->handler != NULL) || now >= next_announce)
            next_announce = node_announce(node);
        if (now >= next_report) {
            node_log_stats(node);
            next_report += report_us;
        }
    }
}

static void supervisor_main(void *arg)
{
    struct skep_node *node = arg;

    become_ready(node);
    supervise(node);
    node_shut_down(node);
    set_state(node, NODE_STOPPED);
}

/* --- starting and stopping ----------------------------------------------------------------- */

skep_status skep_node_start(struct skep_node *node, struct skep_error *err)
{
    skep_status rc;

    pthread_mutex_lock(&node->lock);
    bool is_new = node->state == NODE_NEW;
    if (is_new)
        node->state = NODE_STARTING;
    pthread_mutex_unlock(&node->lock);
    if (!is_new)
        return error_set(err, SKEP_FAILED_PRECONDITION, "node: started before");

    rc = node_bring_up(node, err);
    if (rc == SKEP_OK) {
        node_log_info(node);
        set_state(node, NODE_RUNNING);
        rc = thread_start(&node->supervisor, "skep-node", supervisor_main, node, err);
    }
    if (rc != SKEP_OK) {
        node_shut_down(node);
        set_state(node, NODE_STOPPED);
    }
    return rc;
}

skep_status skep_node_wait_ready(struct skep_node *node, uint32_t timeout_ms,
                                 struct skep_error *err)
{
    uint64_t deadline = clock_deadline_us(timeout_ms);
    skep_status rc = SKEP_OK;

    pthread_mutex_lock(&node->lock);
    while (node->state == NODE_RUNNING && !node->is_ready && rc == SKEP_OK)
        if (!cond_wait_until(&node->changed, &node->lock, deadline) && !node->is_ready)
            rc = error_set(err, SKEP_DEADLINE_EXCEEDED, "node: not ready after %" PRIu32 " ms",
                           timeout_ms);
    if (node->state != NODE_RUNNING)
        rc = error_set(err, SKEP_FAILED_PRECONDITION, "node: not running");
    pthread_mutex_unlock(&node->lock);
    return rc;
}

void skep_node_request_stop(struct skep_node *node)
{
    atomic_store(&node->is_stop_asked, true);
    eventfd_write(node->stop_fd, 1);
}

static void join_supervisor(struct skep_node *node)
{
    pthread_mutex_lock(&node->joining);
    thread_join(&node->supervisor);
    pthread_mutex_unlock(&node->joining);
}

bool skep_node_wait(struct skep_node *node, uint32_t timeout_ms)
{
    uint64_t deadline = timeout_ms == UINT32_MAX ? CLOCK_NEVER : clock_deadline_us(timeout_ms);
    bool stopped;

    pthread_mutex_lock(&node->lock);
    while (node->state != NODE_STOPPED && cond_wait_until(&node->changed, &node->lock, deadline))
        continue;
    stopped = node->state == NODE_STOPPED;
    pthread_mutex_unlock(&node->lock);
    if (stopped)
        join_supervisor(node);
    return stopped;
}

void skep_node_stop(struct skep_node *node)
{
    pthread_mutex_lock(&node->lock);
    bool runs = node->state == NODE_RUNNING || node->state == NODE_STARTING;
    pthread_mutex_unlock(&node->lock);
    if (runs) {
        skep_node_request_stop(node);
        skep_node_wait(node, UINT32_MAX);
    }
    join_supervisor(node);
}

static skep_status check_saved(struct skep_node *node, struct skep_error *err)
{
    pthread_mutex_lock(&node->parts);
    uint64_t lost = node->last.experts_lost;
    pthread_mutex_unlock(&node->parts);
    return lost == 0 ? SKEP_OK
                     : error_set(err, SKEP_DATA_LOSS,
                                 "node: %" PRIu64 " expert%s could not be saved at the stop", lost,
                                 text_plural(lost));
}

skep_status skep_node_run(struct skep_node *node, struct skep_error *err)
{
    pthread_mutex_lock(&node->lock);
    bool is_new = node->state == NODE_NEW;
    pthread_mutex_unlock(&node->lock);
    skep_status rc = is_new ? skep_node_start(node, err) : SKEP_OK;

    if (rc == SKEP_CANCELLED) /* it has stopped, as was asked */
        return SKEP_OK;
    if (rc != SKEP_OK)
        return rc;
    skep_node_wait(node, UINT32_MAX);
    return check_saved(node, err);
}
