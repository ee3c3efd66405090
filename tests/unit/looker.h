/* A peer of the tests' swarm that looks experts up. */
#ifndef SKEP_TESTS_LOOKER_H
#define SKEP_TESTS_LOOKER_H

#include "node_caller.h"

#include <stdlib.h>

#include "dht/swarm/swarm.h"

struct looker {
    struct identity identity;
    struct swarm *swarm;
};

static inline void looker_init(struct looker *looker, const char *peer)
{
    struct swarm_config config = {
        .name = own_swarm(),
        .identity = &looker->identity,
        .initial_peers = &peer,
        .initial_peer_count = 1,
    };
    struct skep_error err;

    assert_int_equal(identity_generate(&looker->identity, NULL), SKEP_OK);
    assert_int_equal(endpoint_parse(&config.dht_listen, "127.0.0.1:*", true, NULL), SKEP_OK);
    if (swarm_join(&config, &looker->swarm, &err) != SKEP_OK)
        fail_msg("swarm: %s", err.message);
    assert_true(swarm_wait_joined(looker->swarm, clock_deadline_us(TIMEOUT_MS)));
}

static inline void looker_fini(struct looker *looker)
{
    swarm_leave(looker->swarm, clock_deadline_us(1000));
}

/* Looks until the UID has a provider; the lookups themselves wait on the network. */
static inline struct provider look_up(struct looker *looker, const char *uid)
{
    struct lookup_result *result = calloc(1, sizeof(*result));
    uint64_t deadline = clock_deadline_us(TIMEOUT_MS);
    struct skep_error err;

    do {
        assert_int_equal(directory_get_wait(swarm_directory(looker->swarm), &uid, 1,
                                            DIRECTORY_FRESH, clock_deadline_us(2000), result, &err),
                         SKEP_OK);
        if (clock_mono_us() > deadline)
            fail_msg("%s: %s", uid, skep_status_name(result->status));
    } while (result->status != SKEP_OK);
    struct provider provider = result->providers[0];
    free(result);
    return provider;
}

/* Looks until nobody serves the UID any more. */
static inline void look_until_gone(struct looker *looker, const char *uid)
{
    struct lookup_result *result = calloc(1, sizeof(*result));
    uint64_t deadline = clock_deadline_us(TIMEOUT_MS);
    struct skep_error err;

    do {
        assert_int_equal(directory_get_wait(swarm_directory(looker->swarm), &uid, 1,
                                            DIRECTORY_FRESH, clock_deadline_us(2000), result, &err),
                         SKEP_OK);
        if (clock_mono_us() > deadline)
            fail_msg("%s is still found", uid);
    } while (result->status != SKEP_NOT_FOUND);
    free(result);
}

#endif
