/* The branches of a watch. */
#include "dht/directory/watch_tree.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "crypto/keyed_hash.h"

struct branch *watch_tree_find(const struct watch_tree *t, const char *prefix, size_t len)
{
    for (struct hash_node *n = hash_table_first(&t->table, keyed_hash(prefix, len)); n != NULL;
         n = hash_table_next(n)) {
        struct branch *b = HASH_HOLDER(n, struct branch, by_prefix);
        if (strncmp(b->prefix, prefix, len) == 0 && b->prefix[len] == '\0')
            return b;
    }
    return NULL;
}

struct branch *watch_tree_next(const struct watch_tree *t, const struct branch *b)
{
    if (b == NULL)
        return t->root;
    if (b->children != NULL)
        return b->children;
    while (b->parent != NULL && b->sibling == NULL)
        b = b->parent;
    return b->parent != NULL ? b->sibling : NULL;
}

/* ---- branches */

/* NULL if memory is short. */
static struct branch *add_branch(struct watch_tree *t, struct branch *parent, int64_t coord,
                                 const char *prefix, size_t list_count)
{
    size_t len = strlen(prefix);
    struct branch *b = mem_calloc(1, sizeof(*b) + len + 1);

    if (b == NULL)
        return NULL;
    memcpy(b->prefix, prefix, len + 1);
    b->coord = coord;
    b->list_count = list_count;
    b->parent = parent;
    if (parent != NULL) {
        b->sibling = parent->children;
        parent->children = b;
    }
    hash_table_add(&t->table, &b->by_prefix, keyed_hash(prefix, len)); /* peers choose prefixes */
    t->unread++;
    return b;
}

static void free_branch(struct watch_tree *t, struct branch *b)
{
    hash_table_remove(&t->table, &b->by_prefix);
    t->unread -= b->view == NULL;
    for (size_t i = 0; i < b->list_count; i++)
        collection_unref(b->lists[i]);
    prefix_view_unref(b->view);
    mem_free(b);
}

skep_status watch_tree_init(struct watch_tree *t, const char *prefix, struct skep_error *err)
{
    bool is_root = strchr(prefix, '.')[1] == '\0';

    *t = (struct watch_tree){0};
    t->last_change = &t->changes;
    if (hash_table_init(&t->table, 0))
        t->root = add_branch(t, NULL, 0, prefix, is_root ? RECORD_SHARDS : 1);
    if (t->root != NULL)
        return SKEP_OK;
    hash_table_fini(&t->table);
    *t = (struct watch_tree){0};
    return error_no_memory(err, "watch", sizeof(struct branch));
}

static void free_subtree(struct watch_tree *t, struct branch *b)
{
    while (b->children != NULL) {
        struct branch *child = b->children;
        b->children = child->sibling;
        free_subtree(t, child); /* as deep as a UID has coordinates */
    }
    free_branch(t, b);
}

void watch_tree_fini(struct watch_tree *t)
{
    if (t->root != NULL)
        free_subtree(t, t->root);
    watch_changes_free(t->changes);
    hash_table_fini(&t->table);
    *t = (struct watch_tree){0};
}

/* ---- changes */

static void note_change(struct watch_tree *t, const struct branch *b, enum watch_event_kind kind,
                        int64_t coord, struct prefix_view *view, size_t index)
{
    size_t room = strlen(b->prefix) + 24;
    struct watch_change *c = mem_alloc(sizeof(*c) + room);

    if (kind == WATCH_APPEARED)
        t->experts++;
    if (kind == WATCH_GONE)
        t->experts--;
    if (c == NULL)
        return; /* the view is right all the same; one call of the user's is lost */
    *c = (struct watch_change){.kind = kind, .view = view, .index = index};
    snprintf(c->uid, room, "%s%" PRId64, b->prefix, coord);
    if (view != NULL)
        prefix_view_ref(view);
    *t->last_change = c;
    t->last_change = &c->next;
}

/* Experts of a branch, before and after. Either may be NULL. */
static void compare(struct watch_tree *t, const struct branch *b, struct prefix_view *old,
                    struct prefix_view *new)
{
    size_t old_count = 0, new_count = 0, i = 0, k = 0;
    const int64_t *x = old != NULL ? prefix_view_coords(old, &old_count) : NULL;
    const int64_t *y = new != NULL ? prefix_view_coords(new, &new_count) : NULL;

    while (i < old_count || k < new_count) {
        bool in_old = i < old_count && (k == new_count || x[i] <= y[k]);
        bool in_new = k < new_count && (i == old_count || y[k] <= x[i]);
        bool was = in_old && prefix_view_is_leaf(old, i);
        bool is = in_new && prefix_view_is_leaf(new, k);
        if (was && !is)
            note_change(t, b, WATCH_GONE, x[i], NULL, 0);
        else if (!was && is)
            note_change(t, b, WATCH_APPEARED, y[k], new, k);
        else if (was && is && !prefix_view_same(old, i, new, k))
            note_change(t, b, WATCH_CHANGED, y[k], new, k);
        i += in_old;
        k += in_new;
    }
}

struct watch_change *watch_tree_take_changes(struct watch_tree *t)
{
    struct watch_change *changes = t->changes;

    t->changes = NULL;
    t->last_change = &t->changes;
    return changes;
}

void watch_changes_free(struct watch_change *c)
{
    while (c != NULL) {
        struct watch_change *next = c->next;
        prefix_view_unref(c->view);
        mem_free(c);
        c = next;
    }
}

/* ---- reading */

static bool is_notification(const struct record *r)
{
    return r->kind == RECORD_PREFIX && r->prefix.coord_count == 0 && r->prefix.part > 0;
}

static bool has_value(const struct collection *c, uint64_t value_id)
{
    for (size_t i = 0; c != NULL && i < c->count; i++)
        if (c->items[i].value_id == value_id)
            return true;
    return false;
}

/* A peer says that something of its own has changed, somewhere below. */
static void handle_notification(struct watch_tree *t, const uint8_t peer_id[static PEER_ID_BYTES],
                                uint64_t now_us)
{
    for (struct branch *b = t->root->children; b != NULL; b = watch_tree_next(t, b))
        if (b->view != NULL && prefix_view_find_peer(b->view, peer_id) != NULL) {
            b->due_us = now_us;
            b->again = true;
        }
}

void watch_tree_take(struct watch_tree *t, struct branch *b, size_t list,
                     const struct collection *records, uint64_t now_us, int64_t now_s)
{
    struct collection *old = b->lists[list];
    struct collection *merged = collection_merge(old, records, now_s);

    if (merged == NULL)
        return; /* memory is short: it stays as it was, and is read again */
    for (size_t i = 0; b == t->root && records != NULL && i < records->count; i++)
        if (is_notification(&records->items[i].record) &&
            !has_value(old, records->items[i].value_id))
            handle_notification(t, records->items[i].record.peer_id, now_us);
    b->lists[list] = merged;
    collection_unref(old);
}

/* ---- views */

/* Whether what a record says is not contradicted by a newer one of its peer further up. */
static bool counts(void *arg, const struct record *r)
{
    for (const struct branch *b = arg; b->parent != NULL; b = b->parent) {
        const struct prefix_view *above = b->parent->view;
        const struct view_peer *peer =
            above != NULL ? prefix_view_find_peer(above, r->peer_id) : NULL;
        if (peer == NULL || peer->seq <= r->seq)
            continue;
        size_t at = prefix_view_find(above, b->coord);
        if (at == SIZE_MAX || !prefix_view_lists(above, at, r->peer_id))
            return false;
    }
    return true;
}

/* Takes everything below a branch, and itself, out of the view. */
static void forget(struct watch_tree *t, struct branch *b)
{
    for (struct branch *child = b->children; child != NULL; child = child->sibling)
        forget(t, child);
    compare(t, b, b->view, NULL);
}

static bool is_child(const struct branch *b, int64_t coord)
{
    size_t at = prefix_view_find(b->view, coord);

    return at != SIZE_MAX && prefix_view_is_branch(b->view, at);
}

static void drop_children(struct watch_tree *t, struct branch *b)
{
    struct branch **link = &b->children;

    while (*link != NULL) {
        struct branch *child = *link;
        if (is_child(b, child->coord)) {
            link = &child->sibling;
            continue;
        }
        *link = child->sibling;
        forget(t, child);
        free_subtree(t, child);
    }
}

static void add_children(struct watch_tree *t, struct branch *b, uint64_t now_us)
{
    size_t count;
    const int64_t *coords = prefix_view_coords(b->view, &count);
    char prefix[UID_BYTES];

    for (size_t i = 0; i < count; i++) {
        if (!prefix_view_is_branch(b->view, i))
            continue;
        int len = snprintf(prefix, sizeof(prefix), "%s%" PRId64 ".", b->prefix, coords[i]);
        if (len < 0 || (size_t)len >= sizeof(prefix) ||
            watch_tree_find(t, prefix, (size_t)len) != NULL)
            continue;
        if (t->table.count >= WATCH_MAX_BRANCHES) {
            t->overflow = true;
            return;
        }
        struct branch *child = add_branch(t, b, coords[i], prefix, 1);
        if (child == NULL)
            return; /* memory is short: the next rebuild tries again */
        child->due_us = now_us;
    }
}

/* A branch says something else than before: some of what its children said may be contradicted, and
 * where a peer has joined there is news. */
static void update_children(struct watch_tree *t, struct branch *b, const struct prefix_view *old,
                            uint64_t now_us, int64_t now_s)
{
    for (struct branch *child = b->children; child != NULL; child = child->sibling) {
        if (child->view == NULL)
            continue; /* due already */
        if (prefix_view_gained(old, b->view, child->coord)) {
            child->due_us = now_us;
            child->again = true;
        }
        watch_tree_rebuild(t, child, now_us, now_s);
    }
}

void watch_tree_rebuild(struct watch_tree *t, struct branch *b, uint64_t now_us, int64_t now_s)
{
    struct prefix_view *old = b->view;
    struct prefix_view *view =
        prefix_view_new(b->lists, b->list_count, now_s, counts, b, t->memory);

    if (view == NULL)
        return; /* memory is short: it stays as it was, and is made again at its next reading */
    t->unread -= old == NULL;
    b->view = view;
    compare(t, b, old, view);
    drop_children(t, b);
    add_children(t, b, now_us);
    if (old != NULL && !prefix_view_agrees(old, view))
        update_children(t, b, old, now_us, now_s);
    prefix_view_unref(old);
}
