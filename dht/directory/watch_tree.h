/*
 * What a watch knows: a branch for each prefix under the watched one, with the records read there
 * and the view made of them. No network, no clock, no lock: times are given, the owner guards it.
 */
#ifndef SKEP_DHT_DIRECTORY_WATCH_TREE_H
#define SKEP_DHT_DIRECTORY_WATCH_TREE_H

#include "base/hash_table.h"
#include "dht/directory/collection.h"
#include "dht/directory/prefix_view.h"
#include "dht/directory/watch_event.h"

enum {
    /* Strangers may list coordinates without end, and each has to be asked for. */
    WATCH_MAX_BRANCHES = 1 << 15,
};

struct branch {
    struct hash_node by_prefix;              /* in watch_tree.table */
    struct branch *parent;                   /* NULL: the watched prefix itself */
    struct branch *children, *sibling;       /* a list in no order */
    int64_t coord;                           /* of the parent's view */
    struct collection *lists[RECORD_SHARDS]; /* shared; what was read, by key */
    size_t list_count;                       /* keys: 16 of a root prefix, else 1 */
    struct prefix_view *view;                /* shared; NULL: not read yet */
    uint64_t due_us;                         /* when to read it */
    bool again;      /* to be read once more soon after that: a notification came */
    unsigned misses; /* reads in a row that found nothing */
    char prefix[];   /* with its dot */
};

/* What has changed, to be told without the lock. */
struct watch_change {
    struct watch_change *next;
    enum watch_event_kind kind;
    struct prefix_view *view; /* shared; NULL with WATCH_GONE */
    size_t index;
    char uid[];
};

struct watch_tree {
    struct branch *root;
    struct hash_table table; /* of all branches */
    size_t experts;
    size_t unread;                               /* branches without a view */
    bool overflow;                               /* branches were left out */
    struct watch_change *changes, **last_change; /* owned: watch_changes_take() */
    struct peer_memory *memory;                  /* borrowed; NULL: none, see prefix_view_new() */
};

/* @param prefix valid. @return SKEP_RESOURCE_EXHAUSTED if memory is short. */
SKEP_MUST_CHECK skep_status watch_tree_init(struct watch_tree *tree, const char *prefix,
                                            struct skep_error *err);
void watch_tree_fini(struct watch_tree *tree); /* zeroed is allowed */

struct branch *watch_tree_find(const struct watch_tree *tree, const char *prefix, size_t len);
/* The next branch in a walk over all of them, parents before their children; NULL starts and ends.
 */
struct branch *watch_tree_next(const struct watch_tree *tree, const struct branch *branch);

/*
 * Takes what was read of one key of a branch (NULL: nothing). Peers that rang since (records.md,
 * "Change notifications") make every branch due in which they speak.
 */
void watch_tree_take(struct watch_tree *tree, struct branch *branch, size_t list,
                     const struct collection *records, uint64_t now_us, int64_t now_s);
/* Makes the branch's view anew, after its lists changed or records ended, and of its children if it
 * says something else than before. New children are due at once. */
void watch_tree_rebuild(struct watch_tree *tree, struct branch *branch, uint64_t now_us,
                        int64_t now_s);

/* Owned: watch_changes_free(). */
struct watch_change *watch_tree_take_changes(struct watch_tree *tree);
void watch_changes_free(struct watch_change *changes);

#endif
