/*
 * Lookups that want every record of a key: who serves what under a prefix, which nodes there are.
 * In bulk, paced together with all other lookups of the directory.
 *
 * An answer is complete when every node that was asked has spoken ("done"). Dead nodes near a key
 * delay that by seconds, so a quarter of a second after the first record that verifies the lookup
 * ends with what there is. An empty answer is asked for once more before it counts as a miss.
 *
 * Threads: any but a callback of the directory's or OpenDHT's; the caller waits and does the work.
 */
#ifndef SKEP_DHT_DIRECTORY_DIRECTORY_COLLECT_H
#define SKEP_DHT_DIRECTORY_DIRECTORY_COLLECT_H

#include "dht/directory/collection.h"
#include "dht/directory/directory.h"
#include "dht/directory/prefix_view.h"

/* The answer for one key. */
struct collect_result {
    skep_status status; /* SKEP_OK: at least one record, withdrawn ones included. SKEP_NOT_FOUND:
                           asked, nothing there. Otherwise as lookup_result.status. */
    struct collection *records; /* shared: collection_unref(); NULL unless SKEP_OK */
};

/*
 * @param keys     count times RECORD_KEY_BYTES; borrowed. They must be keys of this kind.
 * @param label    what is looked up, for the log. Borrowed.
 * @param results  count entries, written always.
 * @return SKEP_OK, or SKEP_RESOURCE_EXHAUSTED or SKEP_CANCELLED, which are in every result then.
 */
SKEP_MUST_CHECK skep_status directory_collect(struct directory *directory, enum record_kind kind,
                                              const uint8_t *keys, size_t count, const char *label,
                                              uint64_t deadline_us, struct collect_result *results,
                                              struct skep_error *err);

/* What is alive under one prefix. */
struct successors {
    skep_status status;       /* SKEP_OK: at least one coordinate. Others as collect_result. */
    struct prefix_view *view; /* shared: prefix_view_unref(); NULL unless SKEP_OK */
    bool watched;             /* it is a watch's: what it lists need not be looked up again */
};

/* What is known of the prefix before, without its last coordinate. */
struct successors_parent {
    const struct prefix_view *view; /* borrowed; NULL: nothing */
    int64_t coord;                  /* the prefix' last coordinate */
};

/* What is asked; all borrowed. */
struct successors_question {
    const char *const *prefixes;
    const struct successors_parent *parents; /* of each prefix; NULL: nothing is known */
    size_t count;
    unsigned flags; /* DIRECTORY_FRESH: not from live views and the cache */
};
/*
 * Looks up what is alive under prefixes, each of them once, merged over all nodes that say so; of a
 * root prefix all its shards. Answered from a watch (dht/directory/watch.h) if one covers it, else
 * from the cache, which keeps answers for 10 s and misses for as long as those of UIDs; both are
 * local, so nobody can make a prefix look empty to others. Else from what those said who serve it,
 * when they were asked about the prefix before, if all of them told what is below.
 * @param results  of->count entries, written always; SKEP_INVALID_ARGUMENT in those that are no
 *                 prefixes. successors_free().
 * @return as directory_collect().
 */
SKEP_MUST_CHECK skep_status directory_successors(struct directory *directory,
                                                 const struct successors_question *of,
                                                 uint64_t deadline_us, struct successors *results,
                                                 struct skep_error *err);
void successors_free(struct successors *results, size_t count);

#endif
