/* A bare OpenDHT get, which look-ups and searches are compared with. */
#ifndef SKEP_CLI_BENCH_BARE_H
#define SKEP_CLI_BENCH_BARE_H

#include <stdbool.h>
#include <stdint.h>

#include "dht/swarm.h"

/*
 * Gets a key and waits for the end of the get in any case.
 * @param to_end      whether the time runs to the end; else to the first value, or the end if none
 *                    comes.
 * @param elapsed_ns  written always.
 * @return whether a value came.
 */
bool bench_bare_get(struct swarm *swarm, const uint8_t *key, bool to_end, uint64_t *elapsed_ns);

#endif
