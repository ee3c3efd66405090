/* Resources and requests: see scheduler.h. */
#include "tracker/scheduler.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "crypto/keyed_hash.h"
#include "tracker/scheduler_internal.h"

enum {
    DEFAULT_PER_OWNER = 4096,
    DEFAULT_MAX_BYTES = 256 << 20,
    DEFAULT_KEY_BYTES = 64 << 20,
    DEFAULT_KEY_BYTES_PER_OWNER = 4 << 20,
    DEFAULT_KEY_BYTES_PER_ACCOUNT = 16 << 20,
};

/* ---- life ---- */

static bool make_tables(struct scheduler *s)
{
    return hash_table_init(&s->keys, 0) && hash_table_init(&s->items, 0) &&
           hash_table_init(&s->taken, 0);
}

skep_status scheduler_new(const struct scheduler_limits *limits,
                          const struct scheduler_events *events, void *arg, struct scheduler **out,
                          struct skep_error *err)
{
    struct scheduler *s = mem_calloc(1, sizeof(*s));

    *out = NULL;
    if (s == NULL)
        return error_no_memory(err, "scheduler", sizeof(*s));
    if (limits != NULL)
        s->limits = *limits;
    if (s->limits.max_items_per_owner == 0)
        s->limits.max_items_per_owner = DEFAULT_PER_OWNER;
    if (s->limits.max_waiters_per_owner == 0)
        s->limits.max_waiters_per_owner = DEFAULT_PER_OWNER;
    if (s->limits.max_bytes == 0)
        s->limits.max_bytes = DEFAULT_MAX_BYTES;
    if (s->limits.max_key_bytes == 0)
        s->limits.max_key_bytes = DEFAULT_KEY_BYTES;
    if (s->limits.max_key_bytes_per_owner == 0)
        s->limits.max_key_bytes_per_owner = DEFAULT_KEY_BYTES_PER_OWNER;
    if (s->limits.max_key_bytes_per_account == 0)
        s->limits.max_key_bytes_per_account = DEFAULT_KEY_BYTES_PER_ACCOUNT;
    s->events = *events;
    s->arg = arg;
    s->next_id = 1;
    if (!make_tables(s)) {
        scheduler_free(s);
        return error_no_memory(err, "scheduler", sizeof(*s));
    }
    *out = s;
    return SKEP_OK;
}

void scheduler_free(struct scheduler *s)
{
    if (s == NULL)
        return;
    scheduler_keys_free(s);
    hash_table_fini(&s->keys);
    hash_table_fini(&s->items);
    hash_table_fini(&s->taken);
    mem_free(s);
}

static skep_status too_much(struct scheduler *s, const char *what, size_t limit,
                            struct skep_error *err)
{
    s->totals.refused++;
    return error_set(err, SKEP_RESOURCE_EXHAUSTED, "%s, limit %zu", what, limit);
}

static skep_status full(struct scheduler *s, struct skep_error *err)
{
    if (s->totals.key_bytes + SCHEDULER_KEY_WRITTEN + TRACKER_MAX_KEY_BYTES >
        s->limits.max_key_bytes)
        return too_much(s, "the tracker's keys take too many bytes", s->limits.max_key_bytes, err);
    return too_much(s, "the tracker's memory for resources and requests is full",
                    s->limits.max_bytes, err);
}

/* Whether an owner may use a key once more. */
static skep_status check_key_bytes(struct scheduler *s, const struct scheduler_owner *owner,
                                   struct tracker_text key_text, struct skep_error *err)
{
    size_t written = scheduler_key_written(key_text);

    if (owner->key_bytes + written > s->limits.max_key_bytes_per_owner)
        return too_much(s, "the keys of one connection take too many bytes",
                        s->limits.max_key_bytes_per_owner, err);
    if (owner->account != NULL &&
        owner->account->key_bytes + written > s->limits.max_key_bytes_per_account)
        return too_much(s, "the keys of all connections from one address take too many bytes",
                        s->limits.max_key_bytes_per_account, err);
    return SKEP_OK;
}

/* A key that is not known is only made for who may use it: else who is refused would push keys out
 * that are remembered. NULL, and why, on failure. */
static struct scheduler_key *get_key(struct scheduler *s, const struct scheduler_owner *owner,
                                     struct tracker_text text, skep_status *rc,
                                     struct skep_error *err)
{
    struct scheduler_key *key = scheduler_key_find(s, text);

    if (key != NULL)
        return key;
    *rc = check_key_bytes(s, owner, text, err);
    if (*rc == SKEP_OK)
        key = scheduler_key_get(s, text);
    if (*rc == SKEP_OK && key == NULL)
        *rc = full(s, err);
    return key;
}

/* ---- handing out ---- */

static size_t wait_bucket(uint64_t wait_us)
{
    size_t bucket = 0;

    for (uint64_t limit_us = 1000; bucket < SCHEDULER_WAIT_BUCKETS - 1 && wait_us > limit_us;
         limit_us *= 2)
        bucket++;
    return bucket;
}

static void count_wait(struct scheduler *s, struct scheduler_key *key, uint64_t wait_us)
{
    size_t bucket = wait_bucket(wait_us);

    s->totals.waits[bucket]++;
    s->totals.wait_us_sum += wait_us;
    if (wait_us > s->totals.wait_us_max)
        s->totals.wait_us_max = wait_us;
    key->counters.waits[bucket]++;
    key->counters.wait_us_sum += wait_us;
    if (wait_us > key->counters.wait_us_max)
        key->counters.wait_us_max = wait_us;
}

static uint64_t elapsed(uint64_t since_us, uint64_t now_us)
{
    return now_us > since_us ? now_us - since_us : 0;
}

/* Tells a waiting request its answer. False: it could not be told, and waits no more. */
static bool answer(struct scheduler *s, struct scheduler_waiter *w,
                   const struct tracker_resource *resource, uint64_t now_us, enum scheduler_end how,
                   uint64_t *mark)
{
    bool told = s->events.assign(s->arg, w->owner, resource, mark);
    struct scheduler_key *key = w->key;

    if (told) {
        count_wait(s, key, elapsed(w->since_us, now_us));
        *(how == SCHEDULER_SERVED ? &key->counters.served : &key->counters.answered) += 1;
        *(how == SCHEDULER_SERVED ? &s->totals.served : &s->totals.answered) += 1;
    }
    scheduler_waiter_free(s, w, told ? how : SCHEDULER_WITHDRAWN);
    return told;
}

/* Its answer is under way. */
static void hand_out(struct scheduler *s, struct scheduler_item *item, struct scheduler_owner *to,
                     uint64_t mark)
{
    if (mark == 0)
        scheduler_item_free(s, item);
    else
        scheduler_item_give(s, item, to, mark);
}

/* What is free goes to those who wait. */
static void serve(struct scheduler *s, struct scheduler_key *key, uint64_t now_us)
{
    while (key->free.first != NULL && key->counters.pending > 0) {
        struct scheduler_item *item = item_of_key(key->free.first);
        struct tracker_resource resource = scheduler_item_resource(item);
        struct scheduler_owner *to = key->heap[0]->owner;
        uint64_t mark = 0;
        if (answer(s, key->heap[0], &resource, now_us, SCHEDULER_SERVED, &mark))
            hand_out(s, item, to, mark);
    }
}

static bool is_same(const struct scheduler_item *item, const struct scheduler_key *key,
                    const struct tracker_resource *r)
{
    return item->taken == 0 && item->key == key && item->port == r->port &&
           tracker_text_equal(scheduler_item_resource(item).address, r->address);
}

skep_status scheduler_put(struct scheduler *s, struct scheduler_owner *owner,
                          struct tracker_text key_text, const struct tracker_resource *resource,
                          uint64_t now_us, struct skep_error *err)
{
    uint64_t hash = scheduler_item_hash(owner, resource->match_key);
    skep_status rc = SKEP_OK;
    struct scheduler_key *key = get_key(s, owner, key_text, &rc, err);

    if (key == NULL)
        return rc;
    scheduler_item_forget_lent(s, owner);
    struct scheduler_item *old = scheduler_item_find(s, owner, resource->match_key, hash);
    if (old != NULL && is_same(old, key, resource))
        return SKEP_OK;
    scheduler_key_touch(s, key);
    rc = check_key_bytes(s, owner, key_text, err);
    if (rc != SKEP_OK)
        return rc;
    if (old == NULL && owner->item_count >= s->limits.max_items_per_owner)
        return too_much(s, "too many resources of one connection", s->limits.max_items_per_owner,
                        err);
    struct scheduler_item *item = scheduler_item_new(s, resource);
    if (item == NULL)
        return full(s, err);
    item->key = key;
    key->item_count++;
    if (old != NULL)
        scheduler_item_free(s, old);
    hash_table_add(&s->items, &item->by_match_key, hash);
    scheduler_item_enter(owner, item);
    scheduler_key_charge(owner, key);
    scheduler_item_make_free(s, item, false);
    key->counters.puts++;
    s->totals.puts++;
    scheduler_key_touch(s, key);
    serve(s, key, now_us);
    return SKEP_OK;
}

static skep_status wait_for_one(struct scheduler *s, struct scheduler_owner *owner,
                                struct scheduler_key *key, struct tracker_text user,
                                struct tracker_priority priority, uint64_t now_us,
                                struct skep_error *err)
{
    if (owner->waiter_count >= s->limits.max_waiters_per_owner)
        return too_much(s, "too many requests of one connection wait",
                        s->limits.max_waiters_per_owner, err);
    skep_status rc = check_key_bytes(s, owner, key->counters.key, err);
    if (rc != SKEP_OK)
        return rc;
    struct scheduler_waiter *w = scheduler_waiter_new(s, key, user);
    if (w == NULL)
        return full(s, err);
    w->id = s->next_id++;
    w->since_us = now_us;
    w->priority = priority;
    scheduler_waiter_enter(s, w, owner);
    if (s->events.waiting != NULL) {
        const struct scheduler_request request = {
            .id = w->id, .key = key->counters.key, .user = user, .priority = priority};
        s->events.waiting(s->arg, &request);
    }
    return SKEP_OK;
}

skep_status scheduler_ask(struct scheduler *s, struct scheduler_owner *owner,
                          struct tracker_text key_text, struct tracker_text user,
                          struct tracker_priority priority, uint64_t now_us, struct skep_error *err)
{
    skep_status rc = SKEP_OK;
    struct scheduler_key *key = get_key(s, owner, key_text, &rc, err);

    if (key == NULL)
        return rc;
    scheduler_key_touch(s, key);
    key->counters.requests++;
    s->totals.requests++;
    struct scheduler_item *item = item_of_key(key->free.first);
    if (item == NULL) /* else nobody waits */
        return wait_for_one(s, owner, key, user, priority, now_us, err);
    struct tracker_resource resource = scheduler_item_resource(item);
    uint64_t mark = 0;
    if (!s->events.assign(s->arg, owner, &resource, &mark))
        return error_set(err, SKEP_RESOURCE_EXHAUSTED, "out of memory for an answer");
    count_wait(s, key, 0);
    key->counters.served++;
    s->totals.served++;
    hand_out(s, item, owner, mark);
    return SKEP_OK;
}

static void unregister(struct scheduler *s, struct scheduler_owner *owner)
{
    struct scheduler_key *key = owner->registered;

    if (key == NULL)
        return;
    owner->registered = NULL;
    scheduler_key_discharge(owner, key);
    key->counters.servers--;
    scheduler_key_touch(s, key);
}

skep_status scheduler_register(struct scheduler *s, struct scheduler_owner *owner,
                               struct tracker_text key_text, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    if (owner->registered != NULL && tracker_text_equal(owner->registered->counters.key, key_text))
        return SKEP_OK;
    if (key_text.data != NULL)
        rc = check_key_bytes(s, owner, key_text, err);
    if (rc != SKEP_OK)
        return rc;
    struct scheduler_key *key = key_text.data != NULL ? scheduler_key_get(s, key_text) : NULL;
    if (key_text.data != NULL && key == NULL)
        return full(s, err);
    unregister(s, owner);
    if (key != NULL) {
        owner->registered = key;
        scheduler_key_charge(owner, key);
        key->counters.servers++;
        scheduler_key_touch(s, key);
    }
    return SKEP_OK;
}

void scheduler_arrived(struct scheduler *s, struct scheduler_owner *owner, uint64_t mark)
{
    while (owner->given.first != NULL && item_of_given(owner->given.first)->mark <= mark)
        scheduler_item_free(s, item_of_given(owner->given.first));
}

void scheduler_owner_gone(struct scheduler *s, struct scheduler_owner *owner, uint64_t now_us)
{
    while (owner->waiters.first != NULL)
        scheduler_waiter_free(s,
                              LIST_HOLDER(owner->waiters.first, struct scheduler_waiter, of_owner),
                              SCHEDULER_WITHDRAWN);
    while (owner->items.first != NULL)
        scheduler_item_free(s, item_of_owner(owner->items.first));
    scheduler_item_forget_lent(s, owner);
    unregister(s, owner);
    while (owner->given.last != NULL) { /* backwards: the first given is the first again */
        struct scheduler_item *item = item_of_given(owner->given.last);
        struct scheduler_key *key = item->key;
        scheduler_item_take_back(s, item);
        serve(s, key, now_us);
    }
}

/* ---- other trackers ---- */

bool scheduler_answer(struct scheduler *s, struct tracker_text key_text,
                      const struct tracker_resource *resource, uint64_t now_us)
{
    struct scheduler_key *key = scheduler_key_find(s, key_text);
    uint64_t mark = 0; /* nobody here could take it back */
    bool told = false;

    while (!told && key != NULL && key->counters.pending > 0)
        told = answer(s, key->heap[0], resource, now_us, SCHEDULER_ANSWERED, &mark);
    return told;
}

static uint64_t taken_hash(uint64_t id)
{
    return keyed_hash(&id, sizeof(id));
}

uint64_t scheduler_take(struct scheduler *s, struct tracker_text key_text,
                        struct tracker_resource *resource)
{
    struct scheduler_key *key = scheduler_key_find(s, key_text);

    if (key == NULL || key->free.first == NULL)
        return 0;
    struct scheduler_item *item = item_of_key(key->free.first);
    scheduler_item_unmake_free(s, item);
    item->taken = s->next_id++;
    hash_table_add(&s->taken, &item->by_taken, taken_hash(item->taken));
    scheduler_key_touch(s, key);
    *resource = scheduler_item_resource(item);
    return item->taken;
}

static struct scheduler_item *find_taken(const struct scheduler *s, uint64_t id)
{
    for (struct hash_node *n = hash_table_first(&s->taken, taken_hash(id)); n != NULL;
         n = hash_table_next(n)) {
        struct scheduler_item *item = HASH_HOLDER(n, struct scheduler_item, by_taken);
        if (item->taken == id)
            return item;
    }
    return NULL;
}

void scheduler_confirm(struct scheduler *s, uint64_t taken)
{
    struct scheduler_item *item = find_taken(s, taken);

    if (item == NULL)
        return;
    item->key->counters.taken++;
    s->totals.taken++;
    scheduler_item_free(s, item);
}

bool scheduler_return(struct scheduler *s, uint64_t taken, uint64_t now_us)
{
    struct scheduler_item *item = find_taken(s, taken);

    if (item == NULL)
        return false;
    struct scheduler_key *key = item->key;
    hash_table_remove(&s->taken, &item->by_taken);
    item->taken = 0;
    scheduler_item_make_free(s, item, true);
    scheduler_key_touch(s, key);
    serve(s, key, now_us);
    return true;
}

/* ---- looking ---- */

void scheduler_totals(const struct scheduler *s, struct scheduler_totals *out)
{
    *out = s->totals;
}

void scheduler_each_free(const struct scheduler *s, struct tracker_text key_text,
                         bool (*fn)(void *arg, const struct tracker_resource *resource), void *arg)
{
    const struct scheduler_key *key = scheduler_key_find(s, key_text);

    for (const struct scheduler_item *item = key != NULL ? item_of_key(key->free.first) : NULL;
         item != NULL; item = item_of_key(item->of_key.next)) {
        struct tracker_resource resource = scheduler_item_resource(item);
        if (!fn(arg, &resource))
            return;
    }
}

void scheduler_each_match_key(struct scheduler *s, struct scheduler_owner *owner,
                              bool (*fn)(void *arg, struct tracker_text match_key), void *arg)
{
    scheduler_item_forget_lent(s, owner);
    for (const struct scheduler_item *item = item_of_owner(owner->items.first); item != NULL;
         item = item_of_owner(item->of_owner.next))
        if (item->taken == 0 && !fn(arg, scheduler_item_resource(item).match_key))
            return;
}
