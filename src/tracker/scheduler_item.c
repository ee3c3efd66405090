/* Resources: free under their key, taken for another tracker, or given and not known to have come.
 */
#include <string.h>

#include "base/alloc.h"
#include "crypto/keyed_hash.h"
#include "tracker/scheduler_internal.h"

static size_t item_bytes(const struct scheduler_item *item)
{
    return sizeof(*item) + item->address_len + item->match_key_len;
}

struct tracker_resource scheduler_item_resource(const struct scheduler_item *item)
{
    return (struct tracker_resource){
        .address = {.data = item->text, .len = item->address_len},
        .port = item->port,
        .match_key = {.data = item->text + item->address_len, .len = item->match_key_len},
    };
}

/* Match keys belong to their owner: two servers may happen to choose the same one. */
uint64_t scheduler_item_hash(const struct scheduler_owner *owner, struct tracker_text match_key)
{
    return keyed_hash(match_key.data, match_key.len) ^ keyed_hash(&owner, sizeof(owner));
}

struct scheduler_item *scheduler_item_find(const struct scheduler *s,
                                           const struct scheduler_owner *owner,
                                           struct tracker_text match_key, uint64_t hash)
{
    for (struct hash_node *n = hash_table_first(&s->items, hash); n != NULL;
         n = hash_table_next(n)) {
        struct scheduler_item *item = HASH_HOLDER(n, struct scheduler_item, by_match_key);
        if (item->owner == owner &&
            tracker_text_equal(scheduler_item_resource(item).match_key, match_key))
            return item;
    }
    return NULL;
}

void scheduler_item_make_free(struct scheduler *s, struct scheduler_item *item, bool first)
{
    struct scheduler_key *key = item->key;

    if (first)
        list_prepend(&key->free, &item->of_key);
    else
        list_append(&key->free, &item->of_key);
    key->counters.free++;
    s->totals.free++;
}

void scheduler_item_unmake_free(struct scheduler *s, struct scheduler_item *item)
{
    struct scheduler_key *key = item->key;

    list_remove(&key->free, &item->of_key);
    key->counters.free--;
    s->totals.free--;
}

void scheduler_item_enter(struct scheduler_owner *owner, struct scheduler_item *item)
{
    item->owner = owner;
    list_append(&owner->items, &item->of_owner);
    owner->item_count++;
}

static void leave(struct scheduler_item *item)
{
    list_remove(&item->owner->items, &item->of_owner);
    item->owner->item_count--;
}

/* ---- given ---- */

static void leave_given(struct scheduler_item *item)
{
    list_remove(&item->given_to->given, &item->of_given);
    list_remove(&item->owner->lent, &item->of_owner);
    item->given_to = NULL;
}

/* It counts no more among what its owner has: one that serves many clients may lend to all. */
void scheduler_item_give(struct scheduler *s, struct scheduler_item *item,
                         struct scheduler_owner *to, uint64_t mark)
{
    scheduler_item_unmake_free(s, item);
    leave(item);
    list_prepend(&item->owner->lent, &item->of_owner);
    item->given_to = to;
    list_append(&to->given, &item->of_given);
    item->mark = mark;
    scheduler_key_touch(s, item->key);
}

void scheduler_item_take_back(struct scheduler *s, struct scheduler_item *item)
{
    leave_given(item);
    scheduler_item_enter(item->owner, item);
    scheduler_item_make_free(s, item, true);
    s->totals.undelivered++;
    scheduler_key_touch(s, item->key);
}

void scheduler_item_forget_lent(struct scheduler *s, struct scheduler_owner *owner)
{
    while (owner->lent.first != NULL)
        scheduler_item_free(s, item_of_owner(owner->lent.first));
}

/* ---- the end ---- */

void scheduler_item_free(struct scheduler *s, struct scheduler_item *item)
{
    struct scheduler_key *key = item->key;

    if (item->given_to != NULL) {
        leave_given(item);
    } else {
        if (item->taken != 0)
            hash_table_remove(&s->taken, &item->by_taken);
        else
            scheduler_item_unmake_free(s, item);
        leave(item);
    }
    hash_table_remove(&s->items, &item->by_match_key);
    scheduler_key_discharge(item->owner, key);
    scheduler_release(s, item_bytes(item));
    key->item_count--;
    mem_free(item);
    scheduler_key_touch(s, key);
}

struct scheduler_item *scheduler_item_new(struct scheduler *s, const struct tracker_resource *r)
{
    size_t bytes = sizeof(struct scheduler_item) + r->address.len + r->match_key.len;

    if (!scheduler_reserve(s, bytes))
        return NULL;
    struct scheduler_item *item = mem_alloc(bytes);
    if (item == NULL) {
        scheduler_release(s, bytes);
        return NULL;
    }
    *item = (struct scheduler_item){
        .port = r->port, .address_len = r->address.len, .match_key_len = r->match_key.len};
    if (r->address.len > 0)
        memcpy(item->text, r->address.data, r->address.len);
    if (r->match_key.len > 0)
        memcpy(item->text + r->address.len, r->match_key.data, r->match_key.len);
    return item;
}
