/* One question to a tracker, on a loop of its own, for callers that can wait. */
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "tracker/client.h"

struct dht_request {
    struct tracker_client_config config;
    const struct bytes *message;
    uint64_t deadline_us;
    struct tracker_client *client; /* the loop's thread only */
    json_t *reply;
    struct skep_error failure;
    skep_status rc;
    bool never_called;

    pthread_mutex_t lock; /* guards done */
    pthread_cond_t ended;
    bool done;
};

static void finish(struct dht_request *ask)
{
    pthread_mutex_lock(&ask->lock);
    ask->done = true;
    pthread_cond_signal(&ask->ended);
    pthread_mutex_unlock(&ask->lock);
}

static void on_closed(void *arg, const struct skep_error *why)
{
    struct dht_request *ask = arg;

    if (ask->never_called) {
        ask->failure = *why;
        ask->rc = why->status;
    }
    finish(ask);
}

static void on_reply(void *arg, const json_t *reply, const struct skep_error *err)
{
    struct dht_request *ask = arg;

    if (reply != NULL) {
        ask->reply = json_deep_copy(reply);
        if (ask->reply == NULL)
            ask->rc = error_set(&ask->failure, SKEP_RESOURCE_EXHAUSTED, "answer: out of memory");
    } else {
        ask->failure = *err;
        ask->rc = err->status;
    }
    tracker_client_close(ask->client); /* nothing happens if it is closing */
}

static void begin(void *arg)
{
    struct dht_request *ask = arg;

    ask->rc = tracker_client_open(&ask->config, &ask->client, &ask->failure);
    if (ask->rc != SKEP_OK) {
        finish(ask);
        return;
    }
    /* It fails at once if connecting has failed already: `closed` says why. */
    ask->never_called = tracker_client_call(ask->client, ask->message, ask->deadline_us, on_reply,
                                            ask, &ask->failure) != SKEP_OK;
    if (ask->never_called)
        tracker_client_close(ask->client);
}

skep_status tracker_ask(const struct endpoint *tracker, const struct bytes *message,
                        uint64_t deadline_us, json_t **reply, struct skep_error *err)
{
    struct dht_request ask = {.message = message, .deadline_us = deadline_us};
    uint64_t left = clock_left_ms(deadline_us);
    struct loop *loop;

    *reply = NULL;
    skep_status rc = loop_new("skep-ask", &loop, err);
    if (rc != SKEP_OK)
        return rc;
    ask.config = (struct tracker_client_config){
        .loop = loop,
        .tracker = *tracker,
        .connect_timeout_ms = left > UINT32_MAX ? UINT32_MAX : (uint32_t)left,
        .closed = on_closed,
        .arg = &ask,
    };
    pthread_mutex_init(&ask.lock, NULL);
    cond_init(&ask.ended);
    loop_call(loop, begin, &ask);
    pthread_mutex_lock(&ask.lock);
    while (!ask.done)
        pthread_cond_wait(&ask.ended, &ask.lock);
    pthread_mutex_unlock(&ask.lock);
    loop_free(loop);
    pthread_cond_destroy(&ask.ended);
    pthread_mutex_destroy(&ask.lock);
    *reply = ask.reply;
    if (ask.rc != SKEP_OK && err != NULL)
        *err = ask.failure;
    return ask.rc;
}

skep_status tracker_ask_to_stop(const struct endpoint *tracker, const char *stop_key,
                                uint64_t deadline_us, struct skep_error *err)
{
    struct bytes message = {0};
    json_t *reply = NULL;
    skep_status rc = SKEP_OK;

    if (!tracker_write_stop(&message, tracker_text(stop_key)))
        return error_no_memory(err, "STOP", strlen(stop_key));
    rc = tracker_ask(tracker, &message, deadline_us, &reply, err);
    if (rc == SKEP_OK && (!json_is_integer(reply) || json_integer_value(reply) != TRACKER_SUCCESS))
        rc = error_set(err, SKEP_PERMISSION_DENIED, "the tracker refuses to stop: wrong stop key");
    json_decref(reply);
    bytes_free(&message);
    return rc;
}
