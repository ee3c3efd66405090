/*
 * What is alive under one prefix and who serves it: the prefix records of all nodes, merged into an
 * index by coordinate. Made once, then only read: shared between threads without a lock.
 */
#ifndef SKEP_DHT_PREFIX_VIEW_H
#define SKEP_DHT_PREFIX_VIEW_H

#include "dht/collection.h"
#include "dht/directory.h"

struct prefix_view;

/*
 * Merges the records of one prefix. Of a peer the newest record tells in how many parts it speaks;
 * parts beyond that are left from earlier and do not count.
 * @param lists  `count` collections of prefix records; borrowed. NULL entries are allowed.
 * @param counts says of each record whether it counts; NULL: all do.
 * @return one reference; a view without coordinates if nothing is alive. NULL if memory is short.
 */
typedef bool (*prefix_view_counts_fn)(void *arg, const struct record *record);
struct prefix_view *prefix_view_new(struct collection *const *lists, size_t count, int64_t now_s,
                                    prefix_view_counts_fn counts, void *arg);
void prefix_view_ref(struct prefix_view *view);
void prefix_view_unref(struct prefix_view *view); /* NULL is allowed */

/* Coordinates, ascending; view. Some may have expired since: prefix_view_is_alive(). */
const int64_t *prefix_view_coords(const struct prefix_view *view, size_t *count);
/* Index of a coordinate; SIZE_MAX if it is not there. */
size_t prefix_view_find(const struct prefix_view *view, int64_t coord);
bool prefix_view_is_alive(const struct prefix_view *view, size_t index, int64_t now_s);
/* When the first record of it ends, and when the last, in Unix seconds; INT64_MAX and 0 if there
 * are none. */
int64_t prefix_view_first_end(const struct prefix_view *view);
int64_t prefix_view_last_end(const struct prefix_view *view);
/* When the first of its records should be asked for anew: when a quarter of its life is left. */
int64_t prefix_view_refresh_at(const struct prefix_view *view);

/* Coordinates from the prefix to a whole UID: 0 if publishers do not say or do not agree. */
uint32_t prefix_view_depth(const struct prefix_view *view);

/* Who serves a coordinate, freshest first, without those whose record has ended. Class, digest and
 * load are not in prefix records and stay zero. Returns how many were written, at most cap. */
size_t prefix_view_providers(const struct prefix_view *view, size_t index, int64_t now_s,
                             struct provider *out, size_t cap);

/* Who speaks in it. */
struct view_peer {
    uint8_t peer_id[PEER_ID_BYTES];
    uint64_t seq; /* of its newest record */
};
size_t prefix_view_peer_count(const struct prefix_view *view);
const struct view_peer *prefix_view_peer(const struct prefix_view *view, size_t i);
/* NULL if this peer said nothing. */
const struct view_peer *prefix_view_find_peer(const struct prefix_view *view,
                                              const uint8_t peer_id[static PEER_ID_BYTES]);

#endif
