/* The records of one key. */
#include "dht/directory/collection.h"

#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"

struct collection *collection_new(void)
{
    struct collection *c = mem_calloc(1, sizeof(*c));

    if (c != NULL)
        atomic_init(&c->refs, 1);
    return c;
}

void collection_ref(struct collection *c)
{
    /* Relaxed: whoever adds a reference holds one already. */
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
}

void collection_unref(struct collection *c)
{
    if (c == NULL || atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (size_t i = 0; i < c->count; i++)
        record_free(&c->items[i].record);
    mem_free(c->items);
    mem_free(c);
}

uint64_t collection_mark(const uint8_t *data, size_t len)
{
    return len >= SIGNATURE_BYTES ? load_u64(data + len - SIGNATURE_BYTES) : 0;
}

bool collection_has(const struct collection *c, uint64_t mark)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->items[i].mark == mark)
            return true;
    return false;
}

bool collection_has_newer(const struct collection *c, uint64_t value_id,
                          const uint8_t peer_id[static PEER_ID_BYTES], uint64_t seq)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->items[i].value_id == value_id && c->items[i].record.seq >= seq &&
            memcmp(c->items[i].record.peer_id, peer_id, PEER_ID_BYTES) == 0)
            return true;
    return false;
}

static bool grow(struct collection *c)
{
    size_t cap = c->cap > 0 ? 2 * c->cap : 4;

    if (c->count < c->cap)
        return true;
    if (c->count >= COLLECTION_MAX_RECORDS)
        return false;
    struct collected *items = mem_realloc(c->items, cap * sizeof(*items));
    if (items == NULL)
        return false;
    c->items = items;
    c->cap = cap;
    return true;
}

void collection_put(struct collection *c, struct record *record, uint64_t mark)
{
    struct collected item = {.record = *record, .value_id = record_value_id(record), .mark = mark};

    memset(record, 0, sizeof(*record));
    for (size_t i = 0; i < c->count; i++) {
        struct collected *known = &c->items[i];
        if (known->value_id != item.value_id ||
            memcmp(known->record.peer_id, item.record.peer_id, PEER_ID_BYTES) != 0)
            continue;
        if (known->record.seq < item.record.seq) {
            record_free(&known->record);
            *known = item;
        } else {
            record_free(&item.record);
        }
        return;
    }
    if (grow(c))
        c->items[c->count++] = item;
    else
        record_free(&item.record);
}

/* False if memory is short. */
static bool put_copy(struct collection *c, const struct collected *item)
{
    struct record copy = item->record;

    if (copy.kind != RECORD_PREFIX)
        return true;
    size_t count = copy.prefix.coord_count;
    copy.prefix.coords = mem_calloc(count + copy.prefix.below_len + 1, sizeof(int64_t));
    if (copy.prefix.coords == NULL)
        return false;
    if (count > 0)
        memcpy(copy.prefix.coords, item->record.prefix.coords, count * sizeof(int64_t));
    if (copy.prefix.below_len > 0) {
        memcpy(copy.prefix.coords + count, item->record.prefix.below,
               copy.prefix.below_len * sizeof(int64_t));
        copy.prefix.below = copy.prefix.coords + count;
    }
    collection_put(c, &copy, item->mark);
    return true;
}

struct collection *collection_merge(const struct collection *old, const struct collection *fresh,
                                    int64_t now_s)
{
    struct collection *c = collection_new();
    bool ok = c != NULL;

    for (size_t i = 0; ok && fresh != NULL && i < fresh->count; i++)
        ok = put_copy(c, &fresh->items[i]);
    for (size_t i = 0; ok && old != NULL && i < old->count; i++)
        if (old->items[i].record.expires_at > now_s)
            ok = put_copy(c, &old->items[i]);
    if (ok)
        return c;
    collection_unref(c);
    return NULL;
}
