/*
 * What a node publishes, and what it has published so far: one item per key, in the order in which
 * they are put: experts, prefixes (one record per proper prefix, in parts if it is very long), and
 * the node itself under two keys; when it withdraws, the experts last. Used by the handler's thread
 * only.
 */
#ifndef SKEP_DHT_PUBLISH_PUBLICATION_H
#define SKEP_DHT_PUBLISH_PUBLICATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "dht/publish/handler.h"
#include "dht/publish/publisher_round.h"

struct publication;

/* @param experts copied. @return SKEP_INVALID_ARGUMENT naming a bad or repeated UID, or a class
 * name that no record can carry; SKEP_RESOURCE_EXHAUSTED. */
SKEP_MUST_CHECK skep_status publication_new(const struct record_swarm *swarm,
                                            const struct identity *identity,
                                            const struct handler_expert *experts, size_t count,
                                            struct publication **out, struct skep_error *err);
/*
 * The same with more experts; those that are there already stay as they are. What `before` has told
 * counts as told by the new one. Experts never leave a publication: one that the node does not
 * serve any more is one that may not be published (publication_update()).
 * @param before  borrowed for the call; still the caller's.
 */
SKEP_MUST_CHECK skep_status publication_extend(const struct publication *before,
                                               const struct identity *identity,
                                               const struct handler_expert *more, size_t count,
                                               struct publication **out, struct skep_error *err);
void publication_free(struct publication *publication); /* NULL is allowed */

/* How things stand for one round. */
struct publication_state {
    const struct endpoint *endpoints; /* at least one */
    size_t endpoint_count;
    uint32_t features;
    const char *version;
};

/* What is asked of the node about each expert, with `arg`: as in struct handler_config. */
struct publication_source {
    bool (*load)(void *arg, const char *uid, struct record_load *out);
    void (*claim)(void *arg, const char *uid, struct record_claim *out);
    void *arg;
};

/*
 * The experts' current load and claims, and which of them may be published, as `source` says; as
 * records for directory_set_local(): view, valid until the next call.
 * @return how many may be published; they come first in *out.
 */
size_t publication_update(struct publication *publication, const struct publication_source *source,
                          const struct publication_state *state, const struct record_expert **out);

/*
 * Adds the records of a round; none if memory is short. Those that are not to be published any more
 * but may still be found are replaced by ones that say so and that outlive them. Some records only
 * notify listeners (docs/records.md, "Change notifications"): they have no statement.
 */
void publication_round(struct publication *publication, const struct publication_state *state,
                       struct publisher_round *round);
/* After publisher_round_note(). Returns the newest sequence number that the round used. */
uint64_t publication_ended(const struct publisher_round *round);

/* At most `cap` of our keys, as a sample for directory_find_own(): the node's first, then others,
 * beginning at another one for each `turn`. Returns how many. */
size_t publication_sample_keys(const struct publication *publication, size_t turn, uint8_t *keys,
                               size_t cap);

#endif
