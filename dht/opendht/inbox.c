/* The queue between OpenDHT's thread and the directory's. */
#include "dht/opendht/inbox.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"

skep_status inbox_new(struct inbox **out, struct skep_error *err)
{
    struct inbox *inbox = mem_calloc(1, sizeof(*inbox));

    *out = NULL;
    if (inbox == NULL)
        return error_no_memory(err, "directory inbox", sizeof(*inbox));
    pthread_mutex_init(&inbox->lock, NULL);
    cond_init(&inbox->arrived);
    inbox->last = &inbox->first;
    atomic_init(&inbox->refs, 1);
    *out = inbox;
    return SKEP_OK;
}

void inbox_unref(struct inbox *inbox)
{
    if (inbox == NULL || atomic_fetch_sub(&inbox->refs, 1) != 1)
        return;
    pthread_cond_destroy(&inbox->arrived);
    pthread_mutex_destroy(&inbox->lock);
    mem_free(inbox);
}

struct dht_request *dht_request_new(struct inbox *inbox)
{
    struct dht_request *request = mem_calloc(1, sizeof(*request));
    struct inbox_event *done = mem_calloc(1, sizeof(*done));

    if (request == NULL || done == NULL) {
        mem_free(request);
        mem_free(done);
        return NULL;
    }
    done->request = request;
    done->done = true;
    request->done_event = done;
    atomic_init(&request->refs, 2);
    atomic_fetch_add(&inbox->refs, 1);
    request->inbox = inbox;
    return request;
}

void dht_request_unref(struct dht_request *request)
{
    if (request == NULL || atomic_fetch_sub(&request->refs, 1) != 1)
        return;
    inbox_unref(request->inbox);
    mem_free(request->done_event); /* NULL once it was queued */
    mem_free(request);
}

void inbox_event_free(struct inbox_event *event)
{
    struct dht_request *request = event->request;

    mem_free(event);
    dht_request_unref(request);
}

static void free_list(struct inbox_event *event)
{
    while (event != NULL) {
        struct inbox_event *next = event->next;
        inbox_event_free(event);
        event = next;
    }
}

void inbox_close(struct inbox *inbox)
{
    pthread_mutex_lock(&inbox->lock);
    inbox->closed = true;
    struct inbox_event *left = inbox->first;
    inbox->first = NULL;
    inbox->last = &inbox->first;
    inbox->bytes = 0;
    pthread_mutex_unlock(&inbox->lock);
    free_list(left);
}

/* With the lock held. */
static void append(struct inbox *inbox, struct inbox_event *event)
{
    event->next = NULL;
    *inbox->last = event;
    inbox->last = &event->next;
    inbox->bytes += event->len;
}

/* Calls somebody for the work, with the lock held. */
static void wake(struct inbox *inbox)
{
    inbox->woken = true;
    pthread_cond_signal(inbox->helpers != NULL ? &inbox->helpers->called : &inbox->arrived);
}

/* Counts a value against the limits; with the lock held. */
static bool admit(struct inbox *inbox, struct dht_request *request, size_t len)
{
    bool is_long = len > RECORD_MAX_BYTES;
    size_t *bytes = is_long ? &request->long_bytes : &request->bytes;
    size_t limit = is_long ? INBOX_MAX_ASK_LONG_BYTES : INBOX_MAX_ASK_BYTES;
    bool is_possible = len <= (request->takes_long ? RECORD_MAX_PREFIX_BYTES : RECORD_MAX_BYTES);

    if (!is_possible || request->values >= INBOX_MAX_ASK_VALUES || *bytes + len > limit ||
        inbox->bytes + len > INBOX_MAX_BYTES) {
        inbox->dropped++;
        if (is_possible)
            atomic_store(&request->full, true);
        return false;
    }
    request->values++;
    *bytes += len;
    return true;
}

bool inbox_on_value(void *arg, uint64_t value_id, const uint8_t *data, size_t len)
{
    struct dht_request *request = arg;
    struct inbox *inbox = request->inbox;

    pthread_mutex_lock(&inbox->lock);
    bool open = !inbox->closed;
    if (open && admit(inbox, request, len)) {
        struct inbox_event *event = mem_calloc(1, sizeof(*event) + len);
        if (event != NULL) {
            if (len > 0) /* OpenDHT has no bytes at all for an empty value */
                memcpy(event->data, data, len);
            event->len = len;
            event->value_id = value_id;
            event->request = request;
            atomic_fetch_add(&request->refs, 1);
            append(inbox, event);
        }
    }
    pthread_mutex_unlock(&inbox->lock);
    return open;
}

bool inbox_on_reply(void *arg)
{
    struct inbox *inbox = ((struct dht_request *)arg)->inbox;

    pthread_mutex_lock(&inbox->lock);
    bool open = !inbox->closed;
    if (inbox->first != NULL)
        wake(inbox);
    pthread_mutex_unlock(&inbox->lock);
    return open;
}

void inbox_on_done(void *arg, bool ok)
{
    struct dht_request *request = arg;
    struct inbox *inbox = request->inbox;

    pthread_mutex_lock(&inbox->lock);
    bool open = !inbox->closed;
    if (open) {
        struct inbox_event *event = request->done_event;
        request->done_event = NULL;
        event->ok = ok;
        append(inbox, event);
        wake(inbox);
    }
    pthread_mutex_unlock(&inbox->lock);
    if (!open)
        dht_request_unref(request);
}

void inbox_wake(struct inbox *inbox)
{
    pthread_mutex_lock(&inbox->lock);
    inbox->owner_woken = true;
    pthread_cond_signal(&inbox->arrived);
    pthread_mutex_unlock(&inbox->lock);
}

void inbox_wait(struct inbox *inbox, uint64_t deadline_us)
{
    pthread_mutex_lock(&inbox->lock);
    /* While there are helpers, what arrives is theirs. */
    while (!inbox->owner_woken && !(inbox->woken && inbox->helpers == NULL))
        if (!cond_wait_until(&inbox->arrived, &inbox->lock, deadline_us))
            break;
    inbox->owner_woken = false;
    pthread_mutex_unlock(&inbox->lock);
}

struct inbox_event *inbox_take(struct inbox *inbox)
{
    pthread_mutex_lock(&inbox->lock);
    inbox->woken = false;
    struct inbox_event *list = inbox->first;
    inbox->first = NULL;
    inbox->last = &inbox->first;
    inbox->bytes = 0;
    pthread_mutex_unlock(&inbox->lock);
    return list;
}

void inbox_help_begin(struct inbox *inbox, struct inbox_worker *helper)
{
    helper->finished = false;
    cond_init(&helper->called);
    pthread_mutex_lock(&inbox->lock);
    helper->next = inbox->helpers;
    helper->link = &inbox->helpers;
    if (helper->next != NULL)
        helper->next->link = &helper->next;
    inbox->helpers = helper;
    pthread_mutex_unlock(&inbox->lock);
}

enum inbox_call inbox_help_wait(struct inbox *inbox, struct inbox_worker *helper,
                                uint64_t deadline_us)
{
    enum inbox_call call = INBOX_WORK;

    pthread_mutex_lock(&inbox->lock);
    while (!helper->finished && !inbox->woken && call == INBOX_WORK)
        if (!cond_wait_until(&helper->called, &inbox->lock, deadline_us))
            call = INBOX_TIMED_OUT;
    if (helper->finished)
        call = INBOX_FINISHED;
    else if (inbox->woken)
        call = INBOX_WORK;
    pthread_mutex_unlock(&inbox->lock);
    return call;
}

void inbox_help_finish(struct inbox *inbox, struct inbox_worker *helper)
{
    pthread_mutex_lock(&inbox->lock);
    helper->finished = true;
    pthread_cond_signal(&helper->called);
    pthread_mutex_unlock(&inbox->lock);
}

void inbox_help_end(struct inbox *inbox, struct inbox_worker *helper)
{
    pthread_mutex_lock(&inbox->lock);
    *helper->link = helper->next;
    if (helper->next != NULL)
        helper->next->link = helper->link;
    if (inbox->woken)
        wake(inbox);
    pthread_mutex_unlock(&inbox->lock);
    pthread_cond_destroy(&helper->called);
}

uint64_t inbox_dropped(struct inbox *inbox)
{
    pthread_mutex_lock(&inbox->lock);
    uint64_t n = inbox->dropped;
    pthread_mutex_unlock(&inbox->lock);
    return n;
}
