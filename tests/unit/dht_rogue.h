/* A DHT node that stores and hands out anything: what a stranger's program may do. */
#ifndef SKEP_TESTS_DHT_ROGUE_H
#define SKEP_TESTS_DHT_ROGUE_H

#include "dht_net.h"
#include "dht/opendht/opendht_ext.h"
#include "dht/opendht/udp_port.h"

struct rogue {
    dht_runner *dht;
};

static inline bool rogue_store(void *arg, const uint8_t key[OPENDHT_EXT_KEY_BYTES],
                               uint64_t value_id, const uint8_t *data, size_t len)
{
    (void)arg;
    (void)key;
    (void)value_id;
    (void)len;
    return data != NULL;
}

static inline bool rogue_edit(void *arg, const uint8_t key[OPENDHT_EXT_KEY_BYTES],
                              uint64_t value_id, const uint8_t *old, size_t old_len,
                              const uint8_t *data, size_t len)
{
    (void)arg;
    (void)key;
    (void)value_id;
    (void)old;
    (void)old_len;
    (void)len;
    return data != NULL;
}

static inline bool rogue_show(void *arg, const uint8_t key[OPENDHT_EXT_KEY_BYTES],
                              uint64_t value_id, size_t len, uint32_t lifetime_s)
{
    (void)arg;
    (void)key;
    (void)value_id;
    (void)len;
    (void)lifetime_s;
    return true;
}

static inline void rogue_on_release(void *arg)
{
    net_event_set(arg, 0);
}

static inline void rogue_on_done(void *arg, bool ok)
{
    (void)arg;
    (void)ok;
}

/* Joins the network of a node that runs already, and waits until that node sees it. */
static inline void rogue_start(struct rogue *rogue, const struct net_node *node)
{
    struct udp_port port;
    struct endpoint any = {.host = "127.0.0.1"};
    struct endpoint target = {.host = "127.0.0.1", .port = net_port(node)};
    struct address address;
    char why[128] = "";
    unsigned before = swarm_peer_count(node->swarm);

    assert_int_equal(udp_port_probe(&any, &port, NULL), SKEP_OK);
    const struct opendht_ext_config config = {
        .bind4 = (const struct sockaddr *)&port.v4.sa,
        .bind4_len = port.v4.len,
        .network_id = record_network_id(swarm_record(node->swarm)),
        .max_req_per_sec = -1,
        .max_peer_req_per_sec = -1,
        .storage_limit_bytes = 64 << 20,
        .type_lifetime_s = record_type_lifetime_s,
        .store = rogue_store,
        .edit = rogue_edit,
        .show = rogue_show,
    };
    rogue->dht = dht_runner_new();
    if (!opendht_ext_run(rogue->dht, &config, why, sizeof(why)))
        fail_msg("rogue: %s", why);
    assert_true(endpoint_to_address(&target, &address));
    opendht_ext_contact(rogue->dht, (const struct sockaddr *)&address.sa, address.len);
    struct opendht_ext_stats stats = {0};
    assert_true(NET_UNTIL((opendht_ext_read_stats(rogue->dht, &stats), stats.good_nodes > 0)));
    /* The node would ask the newcomer something in its next round of maintenance, 5 to 25 s later.
     */
    target.port = dht_runner_get_bound_port(rogue->dht, AF_INET);
    assert_true(endpoint_to_address(&target, &address));
    runner_contact(swarm_runner(node->swarm), &address);
    assert_true(NET_UNTIL(swarm_peer_count(node->swarm) > before));
}

static inline void rogue_put(struct rogue *rogue, const uint8_t key[static RECORD_KEY_BYTES],
                             uint64_t value_id, const uint8_t *data, size_t len,
                             struct net_event *event)
{
    const struct opendht_ext_calls calls = {
        .done = rogue_on_done, .release = rogue_on_release, .arg = event};

    opendht_ext_put(rogue->dht, key, value_id, 0, data, len, &calls);
}

static inline void rogue_stop(struct rogue *rogue)
{
    opendht_ext_delete(rogue->dht);
}

#endif
