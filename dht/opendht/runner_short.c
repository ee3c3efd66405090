/* Gets of short values: a query, and a plain get besides where that does not show everything. */
#include "dht/opendht/runner_internal.h"

#include <string.h>

#include "base/alloc.h"

/* One get. It is made of operations, each of which holds a count; the last one to end ends it. */
struct short_get {
    struct runner *runner; /* borrowed: its operations end before it does */
    uint8_t key[RECORD_KEY_BYTES];
    runner_value_fn value;
    runner_reply_fn reply;
    runner_done_fn done;
    void *arg;
    atomic_uint parts;
    atomic_bool ok; /* one of them went well */
    /* Of OpenDHT's thread: */
    bool is_partial; /* there is more than the query shows */
    bool has_plain;  /* the plain get has been started */
    bool stopped;    /* the caller wants no more */
};

static void on_done(void *arg, bool ok)
{
    struct short_get *g = arg;

    if (ok)
        atomic_store(&g->ok, true);
    if (atomic_fetch_sub_explicit(&g->parts, 1, memory_order_acq_rel) != 1)
        return;
    g->done(g->arg, atomic_load(&g->ok));
    mem_free(g);
}

static bool on_value(void *arg, uint64_t value_id, const uint8_t *data, size_t len)
{
    struct short_get *g = arg;

    if (!g->stopped)
        g->stopped = !g->value(g->arg, value_id, data, len);
    return !g->stopped;
}

static bool on_reply(void *arg)
{
    struct short_get *g = arg;

    if (!g->stopped && g->reply != NULL)
        g->stopped = !g->reply(g->arg);
    return !g->stopped;
}

static bool on_shown(void *arg, uint64_t value_id, const uint8_t *data, size_t len)
{
    struct short_get *g = arg;

    if (len > 0)
        return on_value(g, value_id, data, len);
    g->is_partial = true;
    return !g->stopped;
}

static bool on_shown_reply(void *arg)
{
    struct short_get *g = arg;

    if (g->is_partial && !g->has_plain && !g->stopped) {
        g->has_plain = true;
        atomic_fetch_add_explicit(&g->parts, 1, memory_order_relaxed);
        runner_get_replies(g->runner, g->key, on_value, on_reply, on_done, g);
    }
    return on_reply(g);
}

void runner_get_short(struct runner *runner, const uint8_t key[static RECORD_KEY_BYTES],
                      runner_value_fn value, runner_reply_fn reply, runner_done_fn done, void *arg)
{
    struct short_get *g;

    if (!opendht_ext_can_query()) {
        runner_get_replies(runner, key, value, reply, done, arg);
        return;
    }
    g = mem_calloc(1, sizeof(*g));
    if (g == NULL) {
        done(arg, false);
        return;
    }
    *g = (struct short_get){
        .runner = runner, .value = value, .reply = reply, .done = done, .arg = arg};
    memcpy(g->key, key, sizeof(g->key));
    atomic_init(&g->parts, 1);
    atomic_init(&g->ok, false);
    runner_query(runner, key, on_shown, on_shown_reply, on_done, g);
}
