/*
 * A client of any tracker that speaks TVM's protocol: one connection, one call after another.
 *
 * The protocol has no ids, and an answer to REQUEST may come at any time; so one call is under way
 * at a time, the others wait, and a call that is given up closes the connection.
 *
 * Thread: the loop's, all of it, callbacks included; tracker_ask() is for any other thread.
 */
#ifndef SKEP_TRACKER_CLIENT_H
#define SKEP_TRACKER_CLIENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <skep/status.h>
#include "base/bytes.h"
#include "base/endpoint.h"
#include "net/loop.h"
#include "tracker/protocol.h"

struct tracker_client;

enum {
    TRACKER_CLIENT_MAX_CALLS = 64,
    TRACKER_CLIENT_MAX_REPLY_BYTES = 256 << 20, /* a SUMMARY of very many servers */
};

struct tracker_client_config {
    struct loop *loop;           /* borrowed until `closed` */
    struct endpoint tracker;     /* a name is resolved, and its addresses are tried in order */
    uint32_t connect_timeout_ms; /* for all of it, until the tracker has greeted */
    /* It has greeted. May be NULL. */
    void (*connected)(void *arg, struct tracker_client *client);
    /* The end, always, exactly once: could not connect (SKEP_UNAVAILABLE,
     * SKEP_DEADLINE_EXCEEDED), what answers is no tracker (SKEP_FAILED_PRECONDITION, "this is not a
     * tracker"), connection lost, or SKEP_CANCELLED after tracker_client_close(). All calls have
     * been told before. The client is freed when it returns. */
    void (*closed)(void *arg, const struct skep_error *why);
    void *arg;
};

/* Starts connecting. @param out  a borrowed handle, valid until `closed`; NULL on failure, and then
 * `closed` never runs. */
SKEP_MUST_CHECK skep_status tracker_client_open(const struct tracker_client_config *config,
                                                struct tracker_client **out,
                                                struct skep_error *err);
/* Gives up; `closed` runs later, from the loop. NULL is allowed. */
void tracker_client_close(struct tracker_client *client);

/* @param reply  borrowed for the call; NULL with an error. */
typedef void (*tracker_reply_fn)(void *arg, const json_t *reply, const struct skep_error *err);
/*
 * Sends one message and waits for its answer. May be called before it is connected.
 * @param message      as tracker_write_put() and the others make it: one whole message. Copied.
 * @param deadline_us  clock_mono_us() units. When it passes, the connection is closed.
 * @param fn           runs exactly once, never inside this call, unless this call failed.
 * @return SKEP_RESOURCE_EXHAUSTED if too many calls wait; SKEP_UNAVAILABLE once it is closing.
 */
SKEP_MUST_CHECK skep_status tracker_client_call(struct tracker_client *client,
                                                const struct bytes *message, uint64_t deadline_us,
                                                tracker_reply_fn fn, void *arg,
                                                struct skep_error *err);

/*
 * Connects, asks one thing, closes; blocks until then. Not on a loop's thread.
 * @param reply  owned: json_decref(). NULL on failure.
 * @return as `closed` and `fn`. The sentence names the tracker's address.
 */
SKEP_MUST_CHECK skep_status tracker_ask(const struct endpoint *tracker, const struct bytes *message,
                                        uint64_t deadline_us, json_t **reply,
                                        struct skep_error *err);
/* Asks a tracker to stop. @return SKEP_PERMISSION_DENIED if the stop key is another. */
SKEP_MUST_CHECK skep_status tracker_ask_to_stop(const struct endpoint *tracker,
                                                const char *stop_key, uint64_t deadline_us,
                                                struct skep_error *err);

#endif
