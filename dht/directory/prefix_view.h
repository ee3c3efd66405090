/*
 * What is alive under one prefix and who serves it: the prefix records of all nodes, merged into an
 * index by coordinate. Made once, then only read: shared between threads without a lock.
 */
#ifndef SKEP_DHT_DIRECTORY_PREFIX_VIEW_H
#define SKEP_DHT_DIRECTORY_PREFIX_VIEW_H

#include "dht/directory/collection.h"
#include "dht/directory/peer_memory.h"
#include "dht/directory/provider.h"

struct prefix_view;

/*
 * Merges the records of one prefix. Of a peer the newest record tells in how many parts it speaks;
 * parts beyond that are left from earlier and do not count.
 * @param lists  `count` collections of prefix records; borrowed. NULL entries are allowed.
 * @param counts says of each record whether it counts; NULL: all do.
 * @param memory says who is kept where more than DIRECTORY_MAX_PROVIDERS list a coordinate; NULL:
 *               any of them.
 * @return one reference; a view without coordinates if nothing is alive. NULL if memory is short.
 */
typedef bool (*prefix_view_counts_fn)(void *arg, const struct record *record);
struct prefix_view *prefix_view_new(struct collection *const *lists, size_t count, int64_t now_s,
                                    prefix_view_counts_fn counts, void *arg,
                                    struct peer_memory *memory);
void prefix_view_ref(struct prefix_view *view);
void prefix_view_unref(struct prefix_view *view); /* NULL is allowed */

/* Coordinates, ascending; view. Some may have expired since: prefix_view_is_alive(). */
const int64_t *prefix_view_coords(const struct prefix_view *view, size_t *count);
/*
 * What is alive under the prefix and a coordinate (by index), if everybody who lists it says what
 * is below. @return one reference; NULL if it has to be asked for, or memory is short.
 */
struct prefix_view *prefix_view_below(const struct prefix_view *view, size_t index, int64_t now_s,
                                      struct peer_memory *memory);
/* Index of a coordinate; SIZE_MAX if it is not there. */
size_t prefix_view_find(const struct prefix_view *view, int64_t coord);
/* Whether somebody serves an expert whose UID has `depth` coordinates beyond the prefix, this being
 * the first of them (0: any depth). Who does not say how deep it is counts for every depth. */
bool prefix_view_is_alive(const struct prefix_view *view, size_t index, uint32_t depth,
                          int64_t now_s);
/* Whether that holds for every coordinate, as one look at the view can tell. */
bool prefix_view_all_alive(const struct prefix_view *view, uint32_t depth, int64_t now_s);
/* Whether this coordinate completes UIDs, and whether it leads to longer ones. */
bool prefix_view_is_leaf(const struct prefix_view *view, size_t index);
bool prefix_view_is_branch(const struct prefix_view *view, size_t index);
/* When the first record of it ends, and when the last, in Unix seconds; INT64_MAX and 0 if there
 * are none. */
int64_t prefix_view_first_end(const struct prefix_view *view);
int64_t prefix_view_last_end(const struct prefix_view *view);
/* When the first of its records should be asked for anew: when a quarter of its life is left. */
int64_t prefix_view_refresh_at(const struct prefix_view *view);

/* Who serves the expert that a coordinate completes, freshest first, without those whose record has
 * ended. Class and digest are not in prefix records and stay zero; the load is the whole node's.
 * Returns how many were written, at most cap. */
size_t prefix_view_providers(const struct prefix_view *view, size_t index, int64_t now_s,
                             struct provider *out, size_t cap);

/* Who speaks in it. */
struct view_peer {
    uint8_t peer_id[PEER_ID_BYTES];
    uint64_t seq; /* of its newest record that lists something; of its newest if none does */
};
/* Whether a peer lists a coordinate in `now` that did not in `before`. */
bool prefix_view_gained(const struct prefix_view *before, const struct prefix_view *now,
                        int64_t coord);
/* Whether the same peers list the same coordinates. */
bool prefix_view_agrees(const struct prefix_view *a, const struct prefix_view *b);
/* Whether the experts that a coordinate completes here and there are served by the same peers at
 * the same endpoints. */
bool prefix_view_same(const struct prefix_view *a, size_t index_a, const struct prefix_view *b,
                      size_t index_b);
/* Whether a peer lists a coordinate. */
bool prefix_view_lists(const struct prefix_view *view, size_t index,
                       const uint8_t peer_id[static PEER_ID_BYTES]);
/* NULL if this peer said nothing. */
const struct view_peer *prefix_view_find_peer(const struct prefix_view *view,
                                              const uint8_t peer_id[static PEER_ID_BYTES]);

#endif
