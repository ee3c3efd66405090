/*
 * A live view of everything under a prefix. While a watch is in step with the DHT, lookups of its
 * directory under that prefix (UIDs, successors, beam searches) are answered from it and touch no
 * network; while it is not (at its start, or cut off for longer than records live), they go to the
 * network as if it were not there.
 *
 * How it stays in step. OpenDHT tells a listener of new value ids and of expirations, but not of an
 * edit under the same id, and a record is refreshed and withdrawn by edits. So what a listener
 * hears only notifies: the key is read again, and every record verified, at once and once
 * more half a second later. Publishers notify when what they serve changes, with an empty prefix
 * record of a part number that was not there before (docs/records.md). Besides, every prefix is
 * read again when a quarter of a record's life is left, so that a missed notification costs a part
 * of a lifetime at most, and what expires is dropped on time without being told.
 *
 * Only the watched prefix itself is listened to (16 keys if it is a root): what a node says there
 * in a newer record bounds what its older records further down can claim.
 *
 * Threads: each watch has one of its own ("skep-watch"), on which its callback runs, with no lock
 * held.
 */
#ifndef SKEP_DHT_DIRECTORY_WATCH_H
#define SKEP_DHT_DIRECTORY_WATCH_H

#include "dht/directory/directory.h"
#include "dht/directory/watch_event.h"

struct watch;

struct watch_config {
    const char *prefix; /* ends with a dot; copied */
    watch_fn changed;   /* NULL: only the view is wanted */
    void *arg;
};

/* @return SKEP_INVALID_ARGUMENT: not a prefix; SKEP_RESOURCE_EXHAUSTED. */
SKEP_MUST_CHECK skep_status watch_new(struct directory *directory,
                                      const struct watch_config *config, struct watch **out,
                                      struct skep_error *err);
/* Ends it; no callback runs after. Before directory_free(), not from its callback. NULL is allowed.
 */
void watch_free(struct watch *watch);

/* Waits until everything under the prefix has been read once. @return SKEP_OK; SKEP_UNAVAILABLE: no
 * peer could be asked by the deadline; SKEP_DEADLINE_EXCEEDED. */
skep_status watch_wait_ready(struct watch *watch, uint64_t deadline_us);
/* Whether lookups are answered from it now. */
bool watch_is_in_step(struct watch *watch);

struct watch_stats {
    size_t experts, prefixes;
    uint64_t reads; /* keys asked of the DHT */
    uint64_t notifications;
};
void watch_stats(struct watch *watch, struct watch_stats *out);

/* Every expert of the view, in the order of UIDs by coordinate. `each` runs with the watch's lock
 * held: it must only copy. */
void watch_each(struct watch *watch,
                void (*each)(void *arg, const char *uid, const struct provider *providers,
                             size_t count),
                void *arg);

#endif
