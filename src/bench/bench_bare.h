/* A bare OpenDHT get, which look-ups and searches are compared with. */
#ifndef SKEP_BENCH_BENCH_BARE_H
#define SKEP_BENCH_BENCH_BARE_H

#include <stdbool.h>
#include <stdint.h>

#include "dht/swarm/swarm.h"

/*
 * Gets a key and waits for the end of the get in any case.
 * @param to_end      whether the time runs to the end; else to the first value, or the end if none
 *                    comes.
 * @param elapsed_ns  written always.
 * @return whether a value came.
 */
bool bench_bare_get(struct swarm *swarm, const uint8_t *key, bool to_end, uint64_t *elapsed_ns);

/*
 * Gets many keys, as many at a time as a directory does: so many that have no value yet, and a
 * multiple of it that have not ended. Waits for the end of every get.
 * @param keys        `count` of RECORD_KEY_BYTES each.
 * @param elapsed_ns  to the first value of the last one, or to its end if none comes; untouched on
 *                    failure.
 * @param found       how many had a value.
 */
SKEP_MUST_CHECK skep_status bench_bare_get_many(struct swarm *swarm, const uint8_t *keys,
                                                size_t count, uint64_t *elapsed_ns, size_t *found,
                                                struct skep_error *err);

#endif
