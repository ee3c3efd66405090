/*
 * Everything that is said under some keys, not only the first answer: who tracks resources of a
 * key, which trackers there are. For the rare questions of people and of trackers among themselves;
 * calls and searches never need it.
 *
 * Threads: any but a callback of the directory's or OpenDHT's; the caller waits and does the work.
 */
#ifndef SKEP_DHT_DIRECTORY_DIRECTORY_LIST_H
#define SKEP_DHT_DIRECTORY_DIRECTORY_LIST_H

#include "dht/directory/directory.h"

/* Verified records, one for each peer and subject, freshest first. */
struct record_list {
    struct record *items; /* owned: record_list_free() */
    size_t count;
};
void record_list_free(struct record_list *list); /* NULL and zeroed are allowed */

enum {
    DIRECTORY_MAX_LIST_KEYS = RECORD_SHARDS,
    DIRECTORY_MAX_LISTED = 1024, /* records of one answer */
};

/* What is asked. */
struct list_question {
    enum record_kind kind;
    const uint8_t *keys; /* borrowed; count times RECORD_KEY_BYTES */
    size_t count;        /* at most DIRECTORY_MAX_LIST_KEYS */
    bool others_only;    /* leave out our own: what we track ourselves, nobody has to tell us */
};
/*
 * Asks all keys at once and collects the records of the kind, without withdrawn ones.
 *
 * An answer is complete when every node asked has spoken. Dead nodes near a key delay that by
 * seconds, so once something was found, a quarter of a second without anything new ends it, and the
 * deadline ends it in any case. An empty answer is asked once more.
 *
 * @param out   owned, zeroed on failure.
 * @return SKEP_OK, with at least one; SKEP_NOT_FOUND: asked, nothing there; SKEP_UNAVAILABLE: no
 *         peer to ask; SKEP_DEADLINE_EXCEEDED: no answer in time; SKEP_INVALID_ARGUMENT;
 *         SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status directory_list(struct directory *directory,
                                           const struct list_question *of, uint64_t deadline_us,
                                           struct record_list *out, struct skep_error *err);

/* Trackers that hold or held resources of a key, as RECORD_RESOURCE. @return as directory_list();
 * SKEP_INVALID_ARGUMENT for a key that no record can carry. */
SKEP_MUST_CHECK skep_status directory_find_resource(struct directory *directory, const char *key,
                                                    bool others_only, uint64_t deadline_us,
                                                    struct record_list *out,
                                                    struct skep_error *err);

/* The trackers of the swarm, as RECORD_TRACKER. */
SKEP_MUST_CHECK skep_status directory_find_trackers(struct directory *directory, bool others_only,
                                                    uint64_t deadline_us, struct record_list *out,
                                                    struct skep_error *err);

#endif
