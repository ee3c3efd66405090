/* Who serves an expert: what all of this folder and its callers speak of. */
#ifndef SKEP_DHT_DIRECTORY_PROVIDER_H
#define SKEP_DHT_DIRECTORY_PROVIDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "dht/record/record.h"

enum { DIRECTORY_MAX_PROVIDERS = 16 }; /* per UID: per-lookup cap on candidates */

/* One node that serves an expert. */
struct provider {
    uint8_t peer_id[PEER_ID_BYTES];
    uint64_t seq;
    int64_t expires_at;
    size_t endpoint_count;
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    char cls[32];
    uint8_t schema_digest[16];
    uint32_t features;
    struct record_load load;
    struct record_claim claim;
    bool local; /* ourselves */
};

/* The answer for one UID. */
struct lookup_result {
    skep_status
        status; /* SKEP_OK: provider_count >= 1, freshest first. SKEP_NOT_FOUND: asked, and
                   nobody serves it. SKEP_UNAVAILABLE: could not ask (no peers).
                   SKEP_DEADLINE_EXCEEDED: no answer in time. SKEP_INVALID_ARGUMENT: bad UID. */
    size_t provider_count;
    struct provider providers[DIRECTORY_MAX_PROVIDERS];
};

#endif
