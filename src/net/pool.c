/* The pool's life, and what other threads ask it. */
#include "net/pool_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

struct start {
    struct pool *pool;
    skep_status rc;
    struct skep_error *err;
};

static void start_on_loop(void *arg)
{
    struct start *start = arg;
    struct pool *pool = start->pool;

    start->rc = conn_group_init(&pool->group, pool->loop, start->err);
    if (start->rc != SKEP_OK)
        return;
    uv_timer_init(loop_uv(pool->loop), &pool->timer);
    pool->timer.data = pool;
    pool->has_timer = true;
}

static skep_status check_config(const struct pool_config *config, struct skep_error *err)
{
    size_t room = sizeof(((struct pool *)NULL)->swarm);

    if (config->max_connections < 1)
        return error_set(err, SKEP_INVALID_ARGUMENT, "max_connections: 0, expected at least 1");
    if (strlen(config->swarm) >= room)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "swarm name: %zu characters, expected at most %zu", strlen(config->swarm),
                         room - 1);
    return SKEP_OK;
}

static skep_status make_buckets(struct pool *pool, struct skep_error *err)
{
    size_t count = 16;

    while (count < pool->config.max_connections && count < 65536)
        count *= 2;
    pool->bucket_mask = count - 1;
    pool->buckets = mem_calloc(count, sizeof(struct peer *));
    if (pool->buckets == NULL)
        return error_no_memory(err, "table of peers", count * sizeof(struct peer *));
    return SKEP_OK;
}

skep_status pool_new(const struct pool_config *config, struct pool **out, struct skep_error *err)
{
    *out = NULL;
    skep_status rc = check_config(config, err);
    if (rc != SKEP_OK)
        return rc;
    struct pool *pool = mem_calloc(1, sizeof(*pool));
    if (pool == NULL)
        return error_no_memory(err, "connection pool", sizeof(*pool));
    pthread_mutex_init(&pool->lock, NULL);
    pool->config = *config;
    snprintf(pool->swarm, sizeof(pool->swarm), "%s", config->swarm);
    pool->config.swarm = pool->swarm;
    pool->armed_us = UINT64_MAX;

    rc = make_buckets(pool, err);
    if (rc == SKEP_OK)
        rc = loop_new("skep-pool", &pool->loop, err);
    if (rc == SKEP_OK) {
        struct start start = {.pool = pool, .err = err};
        loop_call(pool->loop, start_on_loop, &start);
        rc = start.rc;
    }
    if (rc != SKEP_OK) {
        pool_free(pool);
        return rc;
    }
    *out = pool;
    return SKEP_OK;
}

static void end_peer(struct peer *peer)
{
    struct skep_error why;

    error_set(&why, SKEP_CANCELLED, "the client is shutting down");
    pool_dial_abandon(peer);
    pool_peer_fail_waiting(peer, &why);
}

static void stop_on_loop(void *arg)
{
    struct pool *pool = arg;
    struct skep_error why;

    error_set(&why, SKEP_CANCELLED, "the client is shutting down");
    while (pool->links.first != NULL)
        pool_link_close(LIST_HOLDER(pool->links.first, struct link, in_links), &why);
    pool_for_each_peer(pool, end_peer);
    pool_decode_abandon_all(pool, &why);
    if (pool->has_timer)
        uv_close((uv_handle_t *)&pool->timer, NULL);
    pool->has_timer = false;
    conn_group_fini(&pool->group);
}

void pool_free(struct pool *pool)
{
    if (pool == NULL)
        return;
    if (pool->loop != NULL) {
        atomic_store(&pool->stopping, true);
        loop_call(pool->loop, stop_on_loop, pool);
        offload_free(pool->offload); /* it posts to the loop */
        loop_free(pool->loop);       /* calls posted meanwhile end too: they see `stopping` */
    }
    deadline_heap_fini(&pool->deadlines);
    deadline_heap_fini(&pool->alarms);
    deadline_heap_fini(&pool->lookups);
    mem_free(pool->buckets);
    pthread_mutex_destroy(&pool->lock);
    mem_free(pool);
}
