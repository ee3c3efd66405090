/* What scheduler.c (who gets which resource), scheduler_item.c (resources), scheduler_waiter.c
 * (requests that wait) and scheduler_key.c (keys) share. */
#ifndef SKEP_TRACKER_SCHEDULER_INTERNAL_H
#define SKEP_TRACKER_SCHEDULER_INTERNAL_H

#include "base/hash_table.h"
#include "tracker/scheduler.h"

/* A resource: free; or taken for another tracker and not confirmed yet; or given to somebody here
 * and not known to have arrived. */
struct scheduler_item {
    struct hash_node by_match_key; /* of its owner */
    struct hash_node by_taken;     /* while taken */
    struct scheduler_key *key;
    struct scheduler_owner *owner;
    struct list_link of_key;          /* while free */
    struct list_link of_owner;        /* of its owner's, or of those that it lent */
    uint64_t taken;                   /* 0: it is not */
    struct scheduler_owner *given_to; /* NULL: it is not */
    struct list_link of_given;        /* the same one's, in order of giving */
    uint64_t mark;
    size_t address_len, match_key_len;
    uint16_t port;
    char text[]; /* address, match key */
};

struct scheduler_waiter {
    struct scheduler_key *key;
    struct scheduler_owner *owner;
    struct list_link of_owner;
    uint64_t id; /* grows: also the order of coming */
    uint64_t since_us;
    struct tracker_priority priority;
    size_t place; /* in the key's heap */
    size_t user_len;
    char user[];
};

struct scheduler_key {
    struct hash_node by_text;
    struct list_link of_all;            /* in order of coming */
    struct list_link of_idle;           /* while idle */
    struct scheduler_key *changed_next; /* while changed */
    bool idle, changed;
    struct linked_list free;
    struct scheduler_waiter **heap; /* owned; the next to be served first */
    size_t heap_cap;
    size_t item_count; /* free, taken and given */
    size_t written;    /* bytes that it takes where keys are listed */
    struct scheduler_key_counters counters;
    char text[];
};

struct scheduler {
    struct scheduler_limits limits;
    struct scheduler_events events;
    void *arg;
    struct hash_table keys, items, taken;
    struct linked_list all, idle; /* idle: the longest first */
    struct scheduler_key *changed;
    size_t idle_count, idle_bytes;
    uint64_t next_id;
    struct scheduler_totals totals;
};

/* What holds a link of these lists; NULL for NULL. */
static inline struct scheduler_item *item_of_key(struct list_link *link)
{
    return LIST_HOLDER(link, struct scheduler_item, of_key);
}

static inline struct scheduler_item *item_of_owner(struct list_link *link)
{
    return LIST_HOLDER(link, struct scheduler_item, of_owner);
}

static inline struct scheduler_item *item_of_given(struct list_link *link)
{
    return LIST_HOLDER(link, struct scheduler_item, of_given);
}

/* Counts memory against the limit; false, and nothing counted, if that is too much. */
bool scheduler_reserve(struct scheduler *s, size_t bytes);
void scheduler_release(struct scheduler *s, size_t bytes);

/* What a key takes where keys are listed. */
size_t scheduler_key_written(struct tracker_text text);
/* An owner pays for one more use of a key, or gets it back. */
void scheduler_key_charge(struct scheduler_owner *owner, const struct scheduler_key *key);
void scheduler_key_discharge(struct scheduler_owner *owner, const struct scheduler_key *key);

/* NULL if it is not known. */
struct scheduler_key *scheduler_key_find(const struct scheduler *s, struct tracker_text text);
/* Finds it or makes it; it may be idle. NULL if memory is short or the limit is reached. */
struct scheduler_key *scheduler_key_get(struct scheduler *s, struct tracker_text text);
/* After any change of its numbers: marks it changed, and idle or not. Idle keys may be forgotten
 * here: but not the given one. */
void scheduler_key_touch(struct scheduler *s, struct scheduler_key *key);
void scheduler_keys_free(struct scheduler *s);

/* scheduler_item.c */
/* With a copy of what is given, and nowhere entered; NULL if memory is short or the limit is
 * reached. */
struct scheduler_item *scheduler_item_new(struct scheduler *s, const struct tracker_resource *r);
/* From wherever it is. */
void scheduler_item_free(struct scheduler *s, struct scheduler_item *item);
struct tracker_resource scheduler_item_resource(const struct scheduler_item *item);
uint64_t scheduler_item_hash(const struct scheduler_owner *owner, struct tracker_text match_key);
struct scheduler_item *scheduler_item_find(const struct scheduler *s,
                                           const struct scheduler_owner *owner,
                                           struct tracker_text match_key, uint64_t hash);
void scheduler_item_enter(struct scheduler_owner *owner, struct scheduler_item *item);
/* @param first  before all others of its key, not after them. */
void scheduler_item_make_free(struct scheduler *s, struct scheduler_item *item, bool first);
void scheduler_item_unmake_free(struct scheduler *s, struct scheduler_item *item);
/* A free one goes to `to`, until its answer's mark has arrived. */
void scheduler_item_give(struct scheduler *s, struct scheduler_item *item,
                         struct scheduler_owner *to, uint64_t mark);
/* It did not arrive: it is free again. */
void scheduler_item_take_back(struct scheduler *s, struct scheduler_item *item);
/* What was lent does not come back any more. */
void scheduler_item_forget_lent(struct scheduler *s, struct scheduler_owner *owner);

/* scheduler_waiter.c */
/* With room for it in the key's heap; NULL if memory is short or the limit is reached. The caller
 * fills in id, since_us and priority and lets it wait by scheduler_waiter_enter(). */
struct scheduler_waiter *scheduler_waiter_new(struct scheduler *s, struct scheduler_key *key,
                                              struct tracker_text user);
void scheduler_waiter_enter(struct scheduler *s, struct scheduler_waiter *w,
                            struct scheduler_owner *owner);
/* It waits no more, and those who were told of it are told so. */
void scheduler_waiter_free(struct scheduler *s, struct scheduler_waiter *w, enum scheduler_end how);

#endif
