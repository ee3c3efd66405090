/*
 * Batches of records to declare: encoded at once, handed to OpenDHT a few at a time, each with its
 * own outcome and time limit. A put whose "done" comes late holds up neither the others nor the
 * next batch.
 */
#include "dht/directory/directory_internal.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

static void link_batch(struct put_batch ***last, struct put_batch *b)
{
    b->next = NULL;
    b->link = *last;
    **last = b;
    *last = &b->next;
}

static void unlink_batch(struct directory *d, struct put_batch *b)
{
    *b->link = b->next;
    if (b->next != NULL)
        b->next->link = b->link;
    else
        d->batches_last = b->link;
}

static void release_slot(struct directory *d, struct put_item *item)
{
    if (item->holds_slot)
        d->puts_in_flight--;
    item->holds_slot = false;
}

/* One record has its outcome. */
static void finish(struct directory *d, struct put_batch *b, size_t i, skep_status outcome)
{
    struct put_item *item = &b->items[i];

    if (item->state == PUT_DONE)
        return;
    release_slot(d, item);
    if (item->ask != NULL)
        item->ask->owner = NULL; /* what comes later concerns nobody */
    item->ask = NULL;
    item->state = PUT_DONE;
    bytes_free(&item->data);
    b->declarations[i].outcome = outcome;
    if (outcome != SKEP_OK)
        d->stats.put_failures++;
    if (--b->remaining > 0)
        return;
    unlink_batch(d, b);
    b->next = d->batches_done;
    d->batches_done = b;
}

/* Hands one record to OpenDHT. Returns the ask; NULL if memory is short. */
static struct dht_request *put(struct directory *d, struct put_batch *b, size_t i, uint64_t now_us)
{
    struct put_item *item = &b->items[i];
    struct dht_request *ask = directory_ask(d, b, i, now_us);

    if (ask == NULL)
        return NULL;
    d->stats.puts++;
    const struct runner_value value = {item->value_id, item->type, item->data.data, item->data.len};
    runner_put(d->runner, b->declarations[i].key, &value, inbox_on_done, ask);
    return ask;
}

static void start_one(struct directory *d, struct put_batch *b, size_t i, uint64_t now_us)
{
    struct put_item *item = &b->items[i];

    item->ask = put(d, b, i, now_us);
    if (item->ask == NULL) {
        finish(d, b, i, SKEP_RESOURCE_EXHAUSTED);
        return;
    }
    item->state = PUT_ASKED;
    item->started_us = now_us;
    item->push_us = now_us + PUSH_US;
    item->holds_slot = true;
    d->puts_in_flight++;
    directory_due(d, item->push_us);
}

void batches_start(struct directory *d, uint64_t now_us)
{
    for (struct put_batch *b = d->batches, *next; b != NULL; b = next) {
        next = b->next;
        /* The last one to finish may take the batch off the list. */
        for (size_t i = b->started; i < b->count; i++) {
            if (d->puts_in_flight >= d->max_in_flight || !directory_may_ask(d))
                return;
            b->started = i + 1;
            if (b->items[i].state == PUT_WAITING)
                start_one(d, b, i, now_us);
        }
    }
}

void batch_done(struct directory *d, struct dht_request *ask, bool ok)
{
    struct put_batch *b = ask->owner;

    b->items[ask->index].ask = NULL;
    finish(d, b, ask->index, ok ? SKEP_OK : SKEP_UNAVAILABLE);
}

static void end_batch(struct directory *d, struct put_batch *b, skep_status outcome)
{
    for (size_t i = 0, left = b->remaining; i < b->count && left > 0; i++)
        if (b->items[i].state != PUT_DONE) {
            left--;
            finish(d, b, i, outcome);
        }
}

/* Notes that a put has to be pushed, if it is time for that and there is room. */
static void push_if_due(struct directory *d, const uint8_t *key, struct put_item *item,
                        uint64_t now_us)
{
    if (item->pushes < MAX_PUSHES && item->push_us <= now_us && d->push_count < PUSH_KEYS) {
        memcpy(d->pushes[d->push_count++], key, RECORD_KEY_BYTES);
        item->pushes++;
        item->push_us += (uint64_t)PUSH_US << item->pushes;
    }
    if (item->pushes < MAX_PUSHES)
        directory_due(d, item->push_us);
}

void batches_push(struct directory *d)
{
    uint8_t keys[PUSH_KEYS][RECORD_KEY_BYTES];

    pthread_mutex_lock(&d->lock);
    size_t count = d->push_count;
    memcpy(keys, d->pushes, count * RECORD_KEY_BYTES);
    d->push_count = 0;
    pthread_mutex_unlock(&d->lock);
    for (size_t i = 0; i < count; i++)
        runner_push(d->runner, keys[i]);
}

static void item_timers(struct directory *d, struct put_batch *b, size_t i, uint64_t now_us)
{
    struct put_item *item = &b->items[i];

    if (item->state != PUT_ASKED)
        return;
    if (item->holds_slot && item->started_us + SLOT_HOLD_US <= now_us)
        release_slot(d, item);
    if (item->started_us + PUT_US <= now_us)
        finish(d, b, i, SKEP_DEADLINE_EXCEEDED);
    else
        directory_due(d, item->started_us + (item->holds_slot ? SLOT_HOLD_US : PUT_US));
    if (item->state == PUT_ASKED)
        push_if_due(d, b->declarations[i].key, item, now_us);
}

void batches_timers(struct directory *d, uint64_t now_us)
{
    for (struct put_batch *b = d->batches, *next; b != NULL; b = next) {
        next = b->next;
        if (b->deadline_us <= now_us) {
            end_batch(d, b, SKEP_DEADLINE_EXCEEDED);
            continue;
        }
        directory_due(d, b->deadline_us);
        for (size_t i = 0, left = b->remaining; i < b->started && left > 0; i++)
            if (b->items[i].state != PUT_DONE) {
                left--;
                item_timers(d, b, i, now_us);
            }
    }
}

void batches_cancel_all(struct directory *d)
{
    while (d->batches != NULL)
        end_batch(d, d->batches, SKEP_CANCELLED);
}

static void free_batch(struct put_batch *b)
{
    for (size_t i = 0; i < b->count; i++)
        bytes_free(&b->items[i].data);
    mem_free(b);
}

void batches_run_done(struct directory *d)
{
    pthread_mutex_lock(&d->lock);
    struct put_batch *b = d->batches_done;
    d->batches_done = NULL;
    pthread_mutex_unlock(&d->lock);

    while (b != NULL) {
        struct put_batch *next = b->next;
        b->done(b->arg, b->declarations, b->count);
        free_batch(b);
        b = next;
    }
}

/* ---- what callers call ---- */

/* The shortest type that keeps a record until it expires. */
static unsigned type_of(int64_t expires_at, int64_t now_s)
{
    int64_t left = expires_at - now_s;

    if (left < RECORD_MIN_LIFETIME_S)
        left = RECORD_MIN_LIFETIME_S;
    return record_type_for(left > RECORD_MAX_LIFETIME_S ? RECORD_MAX_LIFETIME_S : (uint32_t)left);
}

/* Signs everything, without the lock. What cannot be encoded has its outcome at once. */
static void encode_all(struct directory *d, struct put_batch *b)
{
    int64_t now_s = directory_now_ms(d) / 1000;

    for (size_t i = 0; i < b->count; i++) {
        struct declaration *decl = &b->declarations[i];
        struct put_item *item = &b->items[i];

        memcpy(decl->record->peer_id, d->identity->peer_id, PEER_ID_BYTES);
        pthread_mutex_lock(&d->lock);
        decl->record->seq = own_sequences_next(&d->own_sequences, directory_clock(d));
        pthread_mutex_unlock(&d->lock);
        decl->outcome =
            record_encode(decl->record, d->identity, d->swarm, decl->key, &item->data, NULL);
        item->value_id = record_value_id(decl->record);
        item->type = type_of(decl->record->expires_at, now_s);
    }
}

/* Takes the batch in, with the lock held. Without peers each record is only handed over, so that
 * OpenDHT keeps it here, and the outcome is known at once. */
static void enter(struct directory *d, struct put_batch *b, bool has_peers)
{
    uint64_t now = clock_mono_us();

    link_batch(&d->batches_last, b);
    for (size_t i = 0, count = b->count; i < count; i++) {
        skep_status encoded = b->declarations[i].outcome;
        if (encoded != SKEP_OK) {
            finish(d, b, i, encoded);
        } else if (!has_peers) {
            if (directory_may_ask(d)) {
                struct dht_request *ask = put(d, b, i, now);
                if (ask != NULL)
                    ask->owner = NULL;
            }
            finish(d, b, i, SKEP_UNAVAILABLE);
        }
    }
    directory_due(d, b->deadline_us);
    batches_start(d, now);
}

skep_status directory_declare(struct directory *d, struct declaration *declarations, size_t count,
                              uint64_t deadline_us, directory_declared_fn done, void *arg,
                              struct skep_error *err)
{
    size_t bytes;
    struct put_batch *b = NULL;

    if (count == 0)
        return error_set(err, SKEP_INVALID_ARGUMENT, "directory: no records to declare");
    if (size_mul(count, sizeof(struct put_item), &bytes) && size_add(bytes, sizeof(*b), &bytes))
        b = mem_calloc(1, bytes);
    if (b == NULL)
        return error_no_memory(err, "records to declare", count * sizeof(struct put_item));
    b->declarations = declarations;
    b->count = b->remaining = count;
    b->deadline_us = deadline_us;
    b->done = done;
    b->arg = arg;
    encode_all(d, b);
    bool has_peers = directory_has_peers(d);

    pthread_mutex_lock(&d->lock);
    bool closing = d->closing;
    if (!closing)
        enter(d, b, has_peers);
    pthread_mutex_unlock(&d->lock);
    if (closing) {
        free_batch(b);
        return error_set(err, SKEP_CANCELLED, "directory: is being closed");
    }
    inbox_wake(d->inbox);
    return SKEP_OK;
}

void directory_declare_cancel(struct directory *d, const struct declaration *declarations)
{
    pthread_mutex_lock(&d->lock);
    for (struct put_batch *b = d->batches, *next; b != NULL; b = next) {
        next = b->next;
        if (b->declarations == declarations)
            end_batch(d, b, SKEP_CANCELLED);
    }
    pthread_mutex_unlock(&d->lock);
    inbox_wake(d->inbox);
}
