/* Lookups and declares between real nodes on loopback. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dht_net.h"
#include "dht_rogue.h"

static atomic_llong wall_offset_ms;

static int64_t shifted_wall_ms(void)
{
    return clock_wall_ms() + atomic_load(&wall_offset_ms);
}

static struct lookup_result *get_many(const struct net_node *node, const char *const *uids,
                                      size_t count, unsigned flags)
{
    struct lookup_result *results = mem_calloc(count, sizeof(*results));

    assert_non_null(results);
    assert_int_equal(
        directory_get_wait(net_directory(node), uids, count, flags, net_deadline(), results, NULL),
        SKEP_OK);
    return results;
}

static void own_others_absent_and_invalid_uids_are_answered_in_order(void **state)
{
    (void)state;
    struct net_node nodes[3];
    const struct record_expert local = {.uid = "ffn.1",
                                        .endpoint_count = 1,
                                        .endpoints = {{.host = "127.0.0.1", .port = 7001}},
                                        .cls = "nop"};
    const char *const uids[] = {"ffn.2", "ffn.01", "ffn.1", "ffn.3", "", "ffn.2"};

    net_start_many(nodes, 3);
    assert_int_equal(directory_set_local(net_directory(&nodes[0]), &local, 1, NULL), SKEP_OK);
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.2", 7002, 60, false), SKEP_OK);
    struct lookup_result *r = get_many(&nodes[0], uids, 6, 0);

    assert_int_equal(r[0].status, SKEP_OK);
    assert_int_equal(r[0].providers[0].endpoints[0].port, 7002);
    assert_memory_equal(r[0].providers[0].peer_id, nodes[1].identity.peer_id, PEER_ID_BYTES);
    assert_false(r[0].providers[0].local);
    assert_int_equal(r[1].status, SKEP_INVALID_ARGUMENT);
    assert_int_equal(r[2].status, SKEP_OK);
    assert_true(r[2].providers[0].local);
    assert_int_equal(r[2].providers[0].endpoints[0].port, 7001);
    assert_int_equal(r[3].status, SKEP_NOT_FOUND);
    assert_int_equal(r[3].provider_count, 0);
    assert_int_equal(r[4].status, SKEP_INVALID_ARGUMENT);
    assert_int_equal(r[5].status, SKEP_OK);
    assert_int_equal(r[5].providers[0].endpoints[0].port, 7002);
    mem_free(r);
    net_stop_many(nodes, 3);
}

static void two_nodes_of_one_uid_are_both_found_freshest_first(void **state)
{
    (void)state;
    struct net_node nodes[4];

    net_start_many(nodes, 4);
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.5", 7001, 60, false), SKEP_OK);
    net_next_ms(); /* seq is in ms */
    assert_int_equal(net_declare_expert(&nodes[2], "ffn.5", 7002, 60, false), SKEP_OK);
    /* The first answer may come from a node that has only one of them; what others send after it
     * enters the cache. */
    struct lookup_result *r = NULL;
    assert_true(NET_UNTIL((mem_free(r), net_get_status(&nodes[3], "ffn.5", DIRECTORY_FRESH),
                           r = net_get(&nodes[3], "ffn.5", 0), r->provider_count == 2)));
    assert_true(r->providers[0].seq > r->providers[1].seq);
    assert_int_equal(r->providers[0].endpoints[0].port, 7002);
    assert_int_equal(r->providers[1].endpoints[0].port, 7001);
    mem_free(r);
    net_stop_many(nodes, 4);
}

enum { REPLICAS = 5 };

static void all_nodes_of_a_uid_are_listed_for_who_wants_all(void **state)
{
    (void)state;
    struct net_node nodes[REPLICAS + 2];
    struct net_node *asker = &nodes[REPLICAS + 1];

    net_start_many(nodes, REPLICAS + 2);
    for (uint16_t i = 1; i <= REPLICAS; i++)
        assert_int_equal(net_declare_expert(&nodes[i], "ffn.5", 7000 + i, 60, false), SKEP_OK);
    for (int i = 0; i < 50; i++) {
        struct lookup_result *r = net_get(asker, "ffn.5", DIRECTORY_FRESH | DIRECTORY_ALL);
        assert_int_equal(r->status, SKEP_OK);
        assert_int_equal(r->provider_count, REPLICAS);
        mem_free(r);
        /* What a hasty lookup has left in the cache will not do. */
        for (uint16_t k = 1; k <= REPLICAS; k++)
            directory_forget_peer(net_directory(asker), nodes[k].identity.peer_id);
        assert_int_equal(net_get_status(asker, "ffn.5", 0), SKEP_OK);
        r = net_get(asker, "ffn.5", DIRECTORY_ALL);
        assert_int_equal(r->provider_count, REPLICAS);
        mem_free(r);
    }
    net_stop_many(nodes, REPLICAS + 2);
}

static void what_all_were_asked_for_is_remembered(void **state)
{
    (void)state;
    struct net_node nodes[3];
    struct directory_stats before, after;

    net_start_many(nodes, 3);
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.3", 7001, 60, false), SKEP_OK);
    assert_int_equal(net_get_port(&nodes[2], "ffn.3", DIRECTORY_ALL), 7001);
    directory_stats(net_directory(&nodes[2]), &before);
    assert_int_equal(net_get_port(&nodes[2], "ffn.3", DIRECTORY_ALL), 7001);
    assert_int_equal(net_get_port(&nodes[2], "ffn.3", 0), 7001);
    directory_stats(net_directory(&nodes[2]), &after);
    assert_int_equal(after.gets, before.gets);
    assert_int_equal(net_get_status(&nodes[2], "ffn.4", DIRECTORY_ALL), SKEP_NOT_FOUND);
    net_stop_many(nodes, 3);
}

/* The records of those who were there live for minutes. */
static void who_comes_later_is_listed_with_those_remembered(void **state)
{
    (void)state;
    struct net_node nodes[3];
    size_t listed = 0;

    net_start_many(nodes, 3);
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.3", 7001, 300, false), SKEP_OK);
    assert_int_equal(net_get_port(&nodes[2], "ffn.3", DIRECTORY_ALL), 7001);
    assert_int_equal(net_declare_expert(&nodes[0], "ffn.3", 7000, 300, false), SKEP_OK);
    assert_true(NET_UNTIL(({
        struct lookup_result *r = net_get(&nodes[2], "ffn.3", DIRECTORY_ALL);
        listed = r->provider_count;
        mem_free(r);
        listed == 2;
    })));
    net_stop_many(nodes, 3);
}

/* Two kinds of waiters on one lookup, each answered as it wants. */
static void on_first(void *arg, const struct lookup_result *results, size_t count)
{
    assert_int_equal(count, 1);
    net_event_set(arg, results->status == SKEP_OK ? results->provider_count : 0);
}

static void hasty_and_patient_callers_share_a_lookup(void **state)
{
    (void)state;
    struct net_node nodes[REPLICAS + 2];
    struct directory *asker;
    const char *uid = "ffn.5";

    net_start_many(nodes, REPLICAS + 2);
    asker = net_directory(&nodes[REPLICAS + 1]);
    for (uint16_t i = 1; i <= REPLICAS; i++)
        assert_int_equal(net_declare_expert(&nodes[i], "ffn.5", 7000 + i, 60, false), SKEP_OK);
    for (int i = 0; i < 20; i++) {
        struct net_event hasty, patient;
        net_event_init(&hasty);
        net_event_init(&patient);
        assert_int_equal(directory_get(asker, &uid, 1, DIRECTORY_FRESH | DIRECTORY_ALL,
                                       net_deadline(), on_first, &patient, NULL),
                         SKEP_OK);
        assert_int_equal(
            directory_get(asker, &uid, 1, DIRECTORY_FRESH, net_deadline(), on_first, &hasty, NULL),
            SKEP_OK);
        assert_true(net_event_wait(&hasty, 1));
        assert_true(net_event_wait(&patient, 1));
        assert_true(hasty.number >= 1);
        assert_int_equal(patient.number, REPLICAS);
        net_event_fini(&hasty);
        net_event_fini(&patient);
    }
    net_stop_many(nodes, REPLICAS + 2);
}

static void on_own(void *arg, uint64_t highest_seq)
{
    net_event_set(arg, highest_seq);
}

static void others_records_under_a_key_of_ours_are_not_refused(void **state)
{
    (void)state;
    struct net_node nodes[3];
    struct net_event own;
    struct directory_stats stats;
    uint8_t key[RECORD_KEY_BYTES];

    net_start_many(nodes, 3);
    for (uint16_t i = 1; i < 3; i++)
        assert_int_equal(net_declare_expert(&nodes[i], "ffn.5", 7000 + i, 60, false), SKEP_OK);
    record_key_expert(swarm_record(nodes[1].swarm), "ffn.5", key);
    net_event_init(&own);
    assert_int_equal(
        directory_find_own(net_directory(&nodes[1]), key, 1, net_deadline(), on_own, &own, NULL),
        SKEP_OK);
    assert_true(net_event_wait(&own, 1));
    assert_true(own.number > 0);
    net_event_fini(&own);
    directory_stats(net_directory(&nodes[1]), &stats);
    assert_int_equal(stats.records_refused, 0);
    net_stop_many(nodes, 3);
}

static void without_peers_nothing_blocks_and_a_late_joiner_finds_the_record(void **state)
{
    (void)state;
    struct net_node nodes[2];
    const struct record_expert local = {.uid = "ffn.9", .cls = "nop"};

    net_start(&nodes[0], 0);
    assert_int_equal(net_declare_expert(&nodes[0], "ffn.7", 7001, 60, false), SKEP_UNAVAILABLE);
    /* The same value again: a put that is still under way must not hold it up. */
    assert_int_equal(net_declare_expert(&nodes[0], "ffn.7", 7001, 60, false), SKEP_UNAVAILABLE);
    assert_int_equal(net_get_status(&nodes[0], "ffn.8", 0), SKEP_UNAVAILABLE);
    assert_int_equal(directory_set_local(net_directory(&nodes[0]), &local, 1, NULL), SKEP_OK);
    assert_int_equal(net_get_status(&nodes[0], "ffn.9", 0), SKEP_OK);

    net_start(&nodes[1], net_port(&nodes[0]));
    assert_true(swarm_wait_joined(nodes[1].swarm, net_deadline()));
    assert_true(NET_UNTIL(net_get_port(&nodes[1], "ffn.7", DIRECTORY_FRESH) == 7001));
    net_stop_many(nodes, 2);
}

/* OpenDHT holds gets and puts back while its only peer has not answered yet. */
static void a_peer_that_never_answers_holds_nothing_up(void **state)
{
    (void)state;
    struct net_node silent, node;
    struct endpoint any = {.host = "127.0.0.1"};
    struct udp_port port;

    net_start(&silent, 0);
    assert_int_equal(udp_port_probe(&any, &port, NULL), SKEP_OK); /* nobody listens there */
    net_start(&node, port.port);
    assert_int_equal(net_declare_expert(&node, "ffn.7", 7001, 60, false), SKEP_UNAVAILABLE);
    assert_int_equal(net_get_status(&node, "ffn.8", 0), SKEP_UNAVAILABLE);
    assert_false(swarm_wait_joined(node.swarm, clock_deadline_us(50)));
    net_stop(&node);
    net_stop(&silent);
}

static void an_offline_record_withdraws_a_peer(void **state)
{
    (void)state;
    struct net_node nodes[4];

    net_start_many(nodes, 4);
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.3", 7001, 60, false), SKEP_OK);
    assert_int_equal(net_declare_expert(&nodes[2], "ffn.3", 7002, 60, false), SKEP_OK);
    assert_int_equal(net_get_status(&nodes[3], "ffn.3", 0), SKEP_OK);
    assert_int_equal(net_declare_expert(&nodes[2], "ffn.3", 7002, 60, true), SKEP_OK);

    struct lookup_result *r = net_get(&nodes[3], "ffn.3", DIRECTORY_FRESH);
    assert_int_equal(r->status, SKEP_OK);
    assert_int_equal(r->provider_count, 1);
    assert_int_equal(r->providers[0].endpoints[0].port, 7001);
    mem_free(r);
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.3", 7001, 60, true), SKEP_OK);
    assert_int_equal(net_get_status(&nodes[3], "ffn.3", DIRECTORY_FRESH), SKEP_NOT_FOUND);
    /* And back again. */
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.3", 7001, 60, false), SKEP_OK);
    assert_int_equal(net_get_port(&nodes[3], "ffn.3", DIRECTORY_FRESH), 7001);
    net_stop_many(nodes, 4);
}

static unsigned good_nodes(const struct net_node *node)
{
    struct runner_status status;

    runner_status(swarm_runner(node->swarm), &status);
    return status.good_nodes;
}

/* Dead nodes near the key hold up OpenDHT's end, not the answer; and who left may be back. */
static void a_withdrawn_expert_is_asked_for_once_more(void **state)
{
    (void)state;
    struct net_node nodes[2], asker;
    struct directory_stats stats;
    const struct net_options options = {0};

    net_start_many(nodes, 2);
    const uint16_t ports[] = {net_port(&nodes[0]), net_port(&nodes[1])};
    net_start_with(&asker, ports, 2, &options);
    assert_true(NET_UNTIL(good_nodes(&asker) == 2));
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.7", 7001, 60, true), SKEP_OK);
    net_stop(&nodes[1]);
    assert_int_equal(net_get_status(&asker, "ffn.7", DIRECTORY_FRESH), SKEP_NOT_FOUND);
    directory_stats(net_directory(&asker), &stats);
    assert_int_equal(stats.gets, 2);
    net_stop(&asker);
    net_stop(&nodes[0]);
}

static void a_new_endpoint_wins_over_the_old_one_of_the_same_peer(void **state)
{
    (void)state;
    struct net_node nodes[3];

    net_start_many(nodes, 3);
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.3", 7001, 60, false), SKEP_OK);
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.3", 7002, 60, false), SKEP_OK);
    struct lookup_result *r = net_get(&nodes[2], "ffn.3", 0);

    assert_int_equal(r->status, SKEP_OK);
    assert_int_equal(r->provider_count, 1);
    assert_int_equal(r->providers[0].endpoints[0].port, 7002);
    mem_free(r);
    net_stop_many(nodes, 3);
}

static void a_record_is_gone_once_it_has_expired(void **state)
{
    (void)state;
    struct net_node nodes[3];
    const struct net_options shifted = {.wall_ms = shifted_wall_ms};
    struct record_misdated misdated;
    uint8_t key[RECORD_KEY_BYTES];

    atomic_store(&wall_offset_ms, 0);
    net_start_many(nodes, 2);
    record_key_expert(swarm_record(nodes[0].swarm), "ffn.3", key);
    uint16_t port = net_port(&nodes[0]);
    net_start_with(&nodes[2], &port, 1, &shifted);
    assert_true(swarm_wait_joined(nodes[2].swarm, net_deadline()));
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.3", 7001, 60, false), SKEP_OK);
    assert_int_equal(net_get_port(&nodes[2], "ffn.3", 0), 7001);

    /* Its minute and what clocks may differ by; the storing nodes still have it. */
    assert_false(directory_misdated(net_directory(&nodes[2]), key, 1, &misdated));
    atomic_store(&wall_offset_ms, (60 + RECORD_CLOCK_TOLERANCE_S + 2) * 1000);
    assert_int_equal(net_get_status(&nodes[2], "ffn.3", 0), SKEP_NOT_FOUND);
    assert_int_equal(net_get_status(&nodes[2], "ffn.3", DIRECTORY_FRESH), SKEP_NOT_FOUND);
    /* It is there all the same, which is something else than nobody. */
    assert_true(directory_misdated(net_directory(&nodes[2]), key, 1, &misdated));
    assert_memory_equal(misdated.peer_id, nodes[1].identity.peer_id, PEER_ID_BYTES);
    assert_true(misdated.off_by_s < -RECORD_CLOCK_TOLERANCE_S);
    net_stop_many(nodes, 3);
}

static int64_t slow_wall_ms(void)
{
    return clock_wall_ms() - 300 * 1000;
}

static int64_t fast_wall_ms(void)
{
    return clock_wall_ms() + 90 * 1000;
}

static void clocks_that_differ_by_minutes_do_no_harm(void **state)
{
    (void)state;
    struct net_node storing, slow, fast;
    const struct net_options behind = {.wall_ms = slow_wall_ms}, ahead = {.wall_ms = fast_wall_ms};

    net_start(&storing, 0);
    const uint16_t port = net_port(&storing);
    net_start_with(&slow, &port, 1, &behind);
    net_start_with(&fast, &port, 1, &ahead);
    assert_true(swarm_wait_joined(slow.swarm, net_deadline()));
    assert_true(swarm_wait_joined(fast.swarm, net_deadline()));
    assert_int_equal(net_declare_expert(&slow, "ffn.3", 7001, 60, false), SKEP_OK);
    assert_int_equal(net_declare_expert(&fast, "ffn.4", 7002, 60, false), SKEP_OK);
    for (int i = 0; i < 2; i++) { /* the second time from the caches */
        assert_int_equal(net_get_port(&fast, "ffn.3", DIRECTORY_ALL), 7001);
        assert_int_equal(net_get_port(&storing, "ffn.3", 0), 7001);
        assert_int_equal(net_get_port(&storing, "ffn.4", 0), 7002);
        assert_int_equal(net_get_port(&slow, "ffn.4", DIRECTORY_ALL), 7002);
    }
    /* What is newer replaces what is older, and a withdrawal withdraws. */
    assert_int_equal(net_declare_expert(&slow, "ffn.3", 7003, 60, false), SKEP_OK);
    assert_int_equal(net_get_port(&fast, "ffn.3", DIRECTORY_FRESH), 7003);
    assert_int_equal(net_declare_expert(&slow, "ffn.3", 7003, 60, true), SKEP_OK);
    assert_int_equal(net_get_status(&fast, "ffn.3", DIRECTORY_FRESH), SKEP_NOT_FOUND);
    net_stop(&fast);
    net_stop(&slow);
    net_stop(&storing);
}

static int64_t hours_behind_wall_ms(void)
{
    return clock_wall_ms() - 2 * 3600 * 1000;
}

static void who_refuses_a_record_for_its_dates_counts_it(void **state)
{
    (void)state;
    struct net_node storing, slow;
    const struct net_options behind = {.wall_ms = hours_behind_wall_ms};
    struct runner_status status;

    net_start(&storing, 0);
    const uint16_t port = net_port(&storing);
    net_start_with(&slow, &port, 1, &behind);
    assert_true(swarm_wait_joined(slow.swarm, net_deadline()));
    (void)!net_declare_expert(&slow, "ffn.3", 7001, 60, false); /* OpenDHT takes it for stored */
    assert_true(NET_UNTIL(
        (runner_status(swarm_runner(storing.swarm), &status), status.values_misdated > 0)));
    assert_int_equal(status.storage_values, 0);
    net_stop(&slow);
    net_stop(&storing);
}

static void found_records_and_misses_are_remembered(void **state)
{
    (void)state;
    struct net_node nodes[3];
    struct directory_stats before, after;

    net_start_many(nodes, 3);
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.3", 7001, 60, false), SKEP_OK);
    assert_int_equal(net_get_status(&nodes[2], "ffn.3", 0), SKEP_OK);
    assert_int_equal(net_get_status(&nodes[2], "ffn.4", 0), SKEP_NOT_FOUND);
    directory_stats(net_directory(&nodes[2]), &before);
    assert_int_equal(before.get_retries, 1); /* an empty answer is asked once more */
    assert_int_equal(before.get_misses, 1);

    assert_int_equal(net_get_status(&nodes[2], "ffn.3", 0), SKEP_OK);
    assert_int_equal(net_get_status(&nodes[2], "ffn.4", 0), SKEP_NOT_FOUND);
    directory_stats(net_directory(&nodes[2]), &after);
    assert_int_equal(after.gets, before.gets);
    assert_int_equal(after.get_hits, before.get_hits + 1);

    assert_int_equal(net_get_status(&nodes[2], "ffn.3", DIRECTORY_FRESH), SKEP_OK);
    directory_stats(net_directory(&nodes[2]), &after);
    assert_int_equal(after.gets, before.gets + 1);
    net_stop_many(nodes, 3);
}

static void a_forgotten_peer_is_asked_for_anew(void **state)
{
    (void)state;
    struct net_node nodes[3];

    net_start_many(nodes, 3);
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.3", 7001, 60, false), SKEP_OK);
    assert_int_equal(net_get_port(&nodes[2], "ffn.3", 0), 7001);
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.3", 7002, 60, false), SKEP_OK);
    /* From the cache: the old one, unless the first lookup's last replies brought the new one. */
    assert_int_not_equal(net_get_port(&nodes[2], "ffn.3", 0), 0);
    directory_forget_peer(net_directory(&nodes[2]), nodes[1].identity.peer_id);
    assert_int_equal(net_get_port(&nodes[2], "ffn.3", 0), 7002);
    net_stop_many(nodes, 3);
}

/* ---- strangers ---- */

/* The genuine record's bytes under its key, as a base to forge from. */
static struct bytes encode(const struct net_node *node, struct record *record,
                           const uint8_t key[static RECORD_KEY_BYTES])
{
    struct bytes out = {0};

    memcpy(record->peer_id, node->identity.peer_id, PEER_ID_BYTES);
    record->seq = (uint64_t)clock_wall_ms();
    assert_int_equal(
        record_encode(record, &node->identity, swarm_record(node->swarm), key, &out, NULL),
        SKEP_OK);
    return out;
}

enum { FORGERIES = 1000 };

/* 1,000 records of ffn.3 that look right but for their signatures, under other peers' names and
 * newer; `is_long`: too long for queries to show them. */
static void put_forgeries(struct rogue *rogue, const struct net_node *node, bool is_long,
                          struct net_event *event)
{
    uint8_t key[RECORD_KEY_BYTES];

    record_key_expert(swarm_record(node->swarm), "ffn.3", key);
    for (uint32_t i = 0; i < FORGERIES; i++) {
        struct identity stranger;
        uint8_t seed[32] = {0};
        struct bytes data = {0};
        struct record r = net_expert(node, "ffn.3", 6666, 60);
        store_u32(seed, i / 2); /* two of each peer */
        assert_int_equal(identity_from_seed(&stranger, seed, NULL), SKEP_OK);
        r.seq = (uint64_t)clock_wall_ms() + 30000 + i;
        for (; is_long && r.expert.endpoint_count < RECORD_MAX_ENDPOINTS;
             r.expert.endpoint_count++) {
            struct endpoint *e = &r.expert.endpoints[r.expert.endpoint_count];
            snprintf(e->host, sizeof(e->host), "%0100u.example.org", i);
            e->port = 6666;
        }
        assert_int_equal(record_encode(&r, &stranger, swarm_record(node->swarm), key, &data, NULL),
                         SKEP_OK);
        assert_int_equal(is_long, data.len > OPENDHT_EXT_SHORT_BYTES);
        data.data[data.len - 1] ^= 1; /* within the signature */
        rogue_put(rogue, key, 1000 + i, data.data, data.len, event);
        bytes_free(&data);
    }
    assert_true(net_event_wait(event, FORGERIES));
}

static void the_genuine_record_is_found_among_a_thousand_forgeries(void **state)
{
    (void)state;
    struct net_node nodes[3];
    struct rogue rogue;
    struct net_event event;
    struct directory_stats stats;

    net_start_many(nodes, 3);
    rogue_start(&rogue, &nodes[0]);
    net_event_init(&event);
    put_forgeries(&rogue, &nodes[0], true, &event);
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.3", 7001, 60, false), SKEP_OK);

    struct lookup_result *r = net_get(&nodes[2], "ffn.3", 0);
    assert_int_equal(r->status, SKEP_OK);
    assert_int_equal(r->provider_count, 1);
    assert_int_equal(r->providers[0].endpoints[0].port, 7001);
    mem_free(r);
    /* That it goes through forgeries at all, and finds its way every time. */
    for (stats.records_refused = 0; stats.records_refused < FORGERIES;) {
        assert_int_equal(net_get_port(&nodes[2], "ffn.3", DIRECTORY_FRESH), 7001);
        directory_stats(net_directory(&nodes[2]), &stats);
    }
    rogue_stop(&rogue);
    net_event_fini(&event);
    net_stop_many(nodes, 3);
}

/* One that would show so much that its answer is longer than a datagram can be: it gives none. */
static void an_answer_too_long_for_a_datagram_holds_nothing_up(void **state)
{
    (void)state;
    struct net_node nodes[3];
    struct rogue rogue;
    struct net_event event;

    net_start_many(nodes, 3);
    rogue_start(&rogue, &nodes[0]);
    net_event_init(&event);
    put_forgeries(&rogue, &nodes[0], false, &event);
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.3", 7001, 60, false), SKEP_OK);
    for (int i = 0; i < 20; i++)
        assert_int_equal(net_get_port(&nodes[2], "ffn.3", DIRECTORY_FRESH), 7001);
    rogue_stop(&rogue);
    net_event_fini(&event);
    net_stop_many(nodes, 3);
}

/* ---- a network that drops fragments: of two nodes, datagrams over the usual 1,500 bytes ---- */

struct narrow {
    int fds[2]; /* towards the one that asks, and towards the one that answers */
    struct thread thread;
    atomic_bool closing;
    atomic_uint dropped;
};

static int bind_udp(uint16_t *port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(sa);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    *port = ntohs(sa.sin_port);
    return fd;
}

static void narrow_run(void *arg)
{
    struct narrow *n = arg;
    struct sockaddr_storage asker;
    socklen_t asker_len = 0;

    while (!atomic_load(&n->closing)) {
        struct pollfd polled[2] = {{n->fds[0], POLLIN, 0}, {n->fds[1], POLLIN, 0}};
        char data[65536];
        if (poll(polled, 2, 100) <= 0)
            continue;
        if (polled[0].revents) {
            asker_len = sizeof(asker);
            ssize_t len =
                recvfrom(n->fds[0], data, sizeof(data), 0, (struct sockaddr *)&asker, &asker_len);
            if (len > 0)
                (void)!send(n->fds[1], data, (size_t)len, 0);
        }
        if (polled[1].revents) {
            ssize_t len = recv(n->fds[1], data, sizeof(data), 0);
            if (len > 1472)
                atomic_fetch_add(&n->dropped, 1);
            else if (len > 0 && asker_len > 0)
                (void)!sendto(n->fds[0], data, (size_t)len, 0, (struct sockaddr *)&asker,
                              asker_len);
        }
    }
}

/* Returns the port at which the node can be reached through it. */
static uint16_t narrow_start(struct narrow *n, uint16_t target)
{
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons(target), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    uint16_t port, other;

    memset(n, 0, sizeof(*n));
    n->fds[0] = bind_udp(&port);
    n->fds[1] = bind_udp(&other);
    assert_int_equal(connect(n->fds[1], (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(thread_start(&n->thread, "narrow", narrow_run, n, NULL), SKEP_OK);
    return port;
}

static void narrow_stop(struct narrow *n)
{
    atomic_store(&n->closing, true);
    thread_join(&n->thread);
    close(n->fds[0]);
    close(n->fds[1]);
}

static void a_network_that_drops_long_datagrams_is_got_along_with(void **state)
{
    (void)state;
    enum { PROVIDERS = 12 };
    struct net_node nodes[2];
    struct rogue rogue;
    struct net_event event;
    struct narrow narrow;
    struct directory_stats before, after;
    uint8_t key[RECORD_KEY_BYTES];

    net_start(&nodes[0], 0);
    rogue_start(&rogue, &nodes[0]);
    net_event_init(&event);
    record_key_expert(swarm_record(nodes[0].swarm), "ffn.3", key);
    for (int i = 0; i < PROVIDERS; i++) {
        struct record r = net_expert(&nodes[0], "ffn.3", 7001, 60);
        struct identity by;
        struct bytes data = {0};
        assert_int_equal(identity_generate(&by, NULL), SKEP_OK);
        memcpy(r.peer_id, by.peer_id, PEER_ID_BYTES);
        r.seq = (uint64_t)clock_wall_ms();
        assert_int_equal(record_encode(&r, &by, swarm_record(nodes[0].swarm), key, &data, NULL),
                         SKEP_OK);
        rogue_put(&rogue, key, record_value_id(&r), data.data, data.len, &event);
        bytes_free(&data);
    }
    assert_true(net_event_wait(&event, PROVIDERS));
    rogue_stop(&rogue);
    struct runner_status status;
    runner_status(swarm_runner(nodes[0].swarm), &status);
    assert_int_equal(status.storage_values, PROVIDERS);

    net_start(&nodes[1], narrow_start(&narrow, net_port(&nodes[0])));
    assert_true(swarm_wait_joined(nodes[1].swarm, net_deadline()));
    assert_int_equal(net_get_port(&nodes[1], "ffn.3", 0), 7001);
    assert_true(atomic_load(&narrow.dropped) > 0);
    /* Once is enough: from now on nobody waits for what does not come through. */
    directory_stats(net_directory(&nodes[1]), &before);
    assert_int_equal(net_get_port(&nodes[1], "ffn.3", DIRECTORY_FRESH), 7001);
    directory_stats(net_directory(&nodes[1]), &after);
    assert_int_equal(after.get_retries, before.get_retries);
    assert_int_equal(after.gets, before.gets + 1);

    net_event_fini(&event);
    net_stop_many(nodes, 2);
    narrow_stop(&narrow);
}

static void records_that_do_not_belong_are_refused(void **state)
{
    (void)state;
    struct net_node nodes[2];
    struct rogue rogue;
    struct net_event event;
    uint8_t key[RECORD_KEY_BYTES], other[RECORD_KEY_BYTES];
    uint8_t noise[1024];

    net_start_many(nodes, 2);
    rogue_start(&rogue, &nodes[0]);
    net_event_init(&event);
    record_key_expert(swarm_record(nodes[0].swarm), "ffn.3", key);
    record_key_expert(swarm_record(nodes[0].swarm), "ffn.4", other);
    struct record right = net_expert(&nodes[0], "ffn.3", 6666, 60);
    struct record wrong_uid = net_expert(&nodes[0], "ffn.4", 6666, 60);
    struct record expired = net_expert(&nodes[0], "ffn.3", 6666, 60);
    struct record endless = net_expert(&nodes[0], "ffn.3", 6666, 60);
    expired.expires_at -= 3600;
    endless.expires_at += 1000000;

    struct bytes bad[] = {
        encode(&nodes[0], &wrong_uid, key), /* another UID's */
        encode(&nodes[0], &right, other),   /* signed for another key */
        encode(&nodes[0], &expired, key),   encode(&nodes[0], &endless, key),
        encode(&nodes[0], &right, key), /* to be cut */
    };
    enum { BAD = sizeof(bad) / sizeof(bad[0]) };
    bad[4].len--;
    for (size_t i = 0; i < BAD; i++) {
        rogue_put(&rogue, key, 100 + i, bad[i].data, bad[i].len, &event);
        bytes_free(&bad[i]);
    }
    memset(noise, 0x93, sizeof(noise));
    rogue_put(&rogue, key, 200, noise, sizeof(noise), &event);
    rogue_put(&rogue, key, 201, noise, 1, &event);
    assert_true(net_event_wait(&event, BAD + 2));
    assert_int_equal(net_get_status(&nodes[1], "ffn.3", 0), SKEP_NOT_FOUND);
    struct directory_stats stats;
    directory_stats(net_directory(&nodes[1]), &stats);
    assert_true(stats.records_refused >= BAD);
    rogue_stop(&rogue);
    net_event_fini(&event);
    net_stop_many(nodes, 2);
}

static void strangers_neither_read_nor_publish_in_a_private_swarm(void **state)
{
    (void)state;
    struct net_node members[2], stranger;
    struct swarm_key key, wrong;
    uint8_t secret[32] = {1};

    swarm_key_from_secret(&key, secret);
    secret[0] = 2;
    swarm_key_from_secret(&wrong, secret);
    struct net_options member = {.key = &key};
    struct net_options other = {.key = &wrong};

    net_start_with(&members[0], NULL, 0, &member);
    uint16_t port = net_port(&members[0]);
    net_start_with(&members[1], &port, 1, &member);
    net_start_with(&stranger, &port, 1, &other);
    assert_true(swarm_wait_joined(members[1].swarm, net_deadline()));
    assert_int_equal(net_declare_expert(&members[0], "ffn.3", 7001, 60, false), SKEP_OK);
    assert_int_equal(net_get_port(&members[1], "ffn.3", 0), 7001);

    assert_int_not_equal(net_declare_expert(&stranger, "ffn.4", 6666, 60, false), SKEP_OK);
    assert_int_not_equal(net_get_status(&stranger, "ffn.3", 0), SKEP_OK);
    assert_int_not_equal(net_get_status(&members[1], "ffn.4", 0), SKEP_OK);
    net_stop(&stranger);
    net_stop_many(members, 2);
}

/* A stranger in the same OpenDHT network: its records and sealed ones are useless to each other. */
static void a_public_member_cannot_read_what_is_sealed(void **state)
{
    (void)state;
    struct net_node nodes[2];
    struct swarm_key key;
    uint8_t secret[32] = {1}, dht_key[RECORD_KEY_BYTES];
    struct rogue rogue;
    struct net_event event;
    struct bytes data = {0};

    swarm_key_from_secret(&key, secret);
    net_start_many(nodes, 2);
    rogue_start(&rogue, &nodes[0]);
    net_event_init(&event);
    struct record_swarm sealed = *swarm_record(nodes[0].swarm);
    sealed.key = &key;
    struct record r = net_expert(&nodes[0], "ffn.3", 7001, 60);
    record_key_expert(swarm_record(nodes[0].swarm), "ffn.3", dht_key);
    r.seq = (uint64_t)clock_wall_ms();
    assert_int_equal(record_encode(&r, &nodes[0].identity, &sealed, dht_key, &data, NULL), SKEP_OK);
    rogue_put(&rogue, dht_key, 77, data.data, data.len, &event);
    assert_true(net_event_wait(&event, 1));
    assert_int_equal(net_get_status(&nodes[1], "ffn.3", 0), SKEP_NOT_FOUND);
    bytes_free(&data);
    rogue_stop(&rogue);
    net_event_fini(&event);
    net_stop_many(nodes, 2);
}

/* ---- bulk ---- */

/* Declares, and again what has failed, as a node does in its next round: so many take long on
 * a busy machine. The order changes. @return how many have failed in the end. */
static size_t declare_all(const struct net_node *node, struct declaration *declarations,
                          size_t count)
{
    const uint64_t deadline = clock_deadline_us(3 * NET_PATIENCE_MS);

    while (count > 0 && clock_mono_us() < deadline) {
        size_t failed = 0;
        net_declare(node, declarations, count);
        for (size_t i = 0; i < count; i++)
            if (declarations[i].outcome != SKEP_OK)
                declarations[failed++] = declarations[i];
        count = failed;
    }
    return count;
}

static void four_thousand_lookups_at_once_are_all_found(void **state)
{
    (void)state;
    enum { KEYS = 4000, NODES = 10, PUBLISHERS = 4 };
    struct net_node nodes[NODES];
    char(*uids)[32] = mem_calloc(KEYS, sizeof(*uids));
    const char **list = mem_calloc(KEYS, sizeof(*list));
    struct record *records = mem_calloc(KEYS, sizeof(*records));
    struct declaration *declarations = mem_calloc(KEYS, sizeof(*declarations));
    size_t missing = 0, unpublished = 0;

    net_start_many(nodes, NODES);
    for (size_t i = 0; i < KEYS; i++) {
        snprintf(uids[i], sizeof(uids[i]), "ffn.%zu.%zu", i / 64, i % 64);
        list[i] = uids[i];
        records[i] = net_expert(&nodes[i % PUBLISHERS], uids[i], (uint16_t)(1 + i), 300);
        declarations[i].record = &records[i];
        record_key_expert(swarm_record(nodes[0].swarm), uids[i], declarations[i].key);
    }
    for (size_t p = 0; p < PUBLISHERS; p++)
        unpublished +=
            declare_all(&nodes[p], declarations + p * (KEYS / PUBLISHERS), KEYS / PUBLISHERS);
    assert_int_equal(unpublished, 0);

    struct lookup_result *results = get_many(&nodes[NODES - 1], list, KEYS, 0);
    for (size_t i = 0; i < KEYS; i++)
        if (results[i].status != SKEP_OK ||
            results[i].providers[0].endpoints[0].port != (uint16_t)(1 + i)) {
            missing++;
            print_message("%s: %s\n", uids[i], skep_status_text(results[i].status));
        }
    assert_int_equal(missing, 0);
    mem_free(results);
    mem_free(declarations);
    mem_free(records);
    mem_free(list);
    mem_free(uids);
    net_stop_many(nodes, NODES);
}

/* ---- deadlines and ends ---- */

static void a_passed_deadline_answers_at_once(void **state)
{
    (void)state;
    struct net_node nodes[2];
    const char *uid = "ffn.1";
    struct lookup_result *r = mem_calloc(1, sizeof(*r));
    struct record record;
    struct declaration declaration = {.record = &record};
    struct net_event event;

    net_start_many(nodes, 2);
    record = net_expert(&nodes[0], uid, 7001, 60);
    assert_int_equal(directory_get_wait(net_directory(&nodes[1]), &uid, 1, 0, 1, r, NULL), SKEP_OK);
    assert_int_equal(r->status, SKEP_DEADLINE_EXCEEDED);
    net_event_init(&event);
    record_key_expert(swarm_record(nodes[0].swarm), uid, declaration.key);
    assert_int_equal(directory_declare(net_directory(&nodes[0]), &declaration, 1, 1,
                                       net_on_declared, &event, NULL),
                     SKEP_OK);
    assert_true(net_event_wait(&event, 1));
    net_event_fini(&event);
    mem_free(r);
    net_stop_many(nodes, 2);
}

struct answers {
    struct net_event event;
    skep_status first;
};

static void on_found(void *arg, const struct lookup_result *results, size_t count)
{
    struct answers *a = arg;

    a->first = results[0].status;
    net_event_set(&a->event, count);
}

static void closing_ends_pending_lookups_as_cancelled(void **state)
{
    (void)state;
    struct net_node node;
    const char *uids[] = {"ffn.1", "ffn.2"};
    struct answers a = {0};

    net_event_init(&a.event);
    net_start(&node, 0);
    assert_int_equal(
        directory_get(net_directory(&node), uids, 2, 0, CLOCK_NEVER, on_found, &a, NULL), SKEP_OK);
    net_stop(&node);
    assert_int_equal(a.event.count, 1);
    assert_true(a.first == SKEP_CANCELLED || a.first == SKEP_UNAVAILABLE);
    net_event_fini(&a.event);
}

static void a_cancelled_lookup_calls_back_once(void **state)
{
    (void)state;
    struct net_node nodes[2];
    const char *uid = "ffn.1";
    struct answers a = {0};

    net_event_init(&a.event);
    net_start_many(nodes, 2);
    assert_int_equal(
        directory_get(net_directory(&nodes[1]), &uid, 1, 0, CLOCK_NEVER, on_found, &a, NULL),
        SKEP_OK);
    directory_get_cancel(net_directory(&nodes[1]), &a);
    assert_true(net_event_wait(&a.event, 1));
    net_stop_many(nodes, 2);
    assert_int_equal(a.event.count, 1);
    net_event_fini(&a.event);
}

static void records_that_cannot_be_published_are_told_one_by_one(void **state)
{
    (void)state;
    struct net_node nodes[2];

    net_start_many(nodes, 2);
    struct record records[] = {net_expert(&nodes[0], "ffn.1", 7001, 60),
                               net_expert(&nodes[0], "ffn.2", 0, 60),
                               net_expert(&nodes[0], "ffn.3", 7003, 60)};
    struct declaration declarations[3] = {
        {.record = &records[0]}, {.record = &records[1]}, {.record = &records[2]}};
    for (size_t i = 0; i < 3; i++)
        record_key_expert(swarm_record(nodes[0].swarm), records[i].expert.uid, declarations[i].key);
    net_declare(&nodes[0], declarations, 3);
    assert_int_equal(declarations[0].outcome, SKEP_OK);
    assert_int_equal(declarations[1].outcome, SKEP_INVALID_ARGUMENT);
    assert_int_equal(declarations[2].outcome, SKEP_OK);
    assert_true(records[2].seq > records[0].seq);
    net_stop_many(nodes, 2);
}

static void making_a_directory_survives_any_failed_allocation(void **state)
{
    (void)state;
    struct net_node node;
    struct directory *d = NULL;
    skep_status rc = SKEP_RESOURCE_EXHAUSTED;

    net_start(&node, 0);
    const struct directory_config config = {.runner = swarm_runner(node.swarm),
                                            .identity = &node.identity,
                                            .swarm = swarm_record(node.swarm)};
    for (long nth = 1; rc != SKEP_OK && nth < 100; nth++) {
        mem_fail_at(nth);
        rc = directory_new(&config, &d, NULL);
        bool pending = mem_fail_pending();
        mem_fail_at(0);
        if (rc != SKEP_OK)
            assert_null(d);
        assert_true(rc == SKEP_OK || !pending);
    }
    assert_int_equal(rc, SKEP_OK);
    directory_free(d);
    net_stop(&node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_others_absent_and_invalid_uids_are_answered_in_order),
        cmocka_unit_test(two_nodes_of_one_uid_are_both_found_freshest_first),
        cmocka_unit_test(all_nodes_of_a_uid_are_listed_for_who_wants_all),
        cmocka_unit_test(what_all_were_asked_for_is_remembered),
        cmocka_unit_test(who_comes_later_is_listed_with_those_remembered),
        cmocka_unit_test(hasty_and_patient_callers_share_a_lookup),
        cmocka_unit_test(others_records_under_a_key_of_ours_are_not_refused),
        cmocka_unit_test(without_peers_nothing_blocks_and_a_late_joiner_finds_the_record),
        cmocka_unit_test(a_peer_that_never_answers_holds_nothing_up),
        cmocka_unit_test(an_offline_record_withdraws_a_peer),
        cmocka_unit_test(a_withdrawn_expert_is_asked_for_once_more),
        cmocka_unit_test(a_new_endpoint_wins_over_the_old_one_of_the_same_peer),
        cmocka_unit_test(a_record_is_gone_once_it_has_expired),
        cmocka_unit_test(clocks_that_differ_by_minutes_do_no_harm),
        cmocka_unit_test(who_refuses_a_record_for_its_dates_counts_it),
        cmocka_unit_test(found_records_and_misses_are_remembered),
        cmocka_unit_test(a_forgotten_peer_is_asked_for_anew),
        cmocka_unit_test(the_genuine_record_is_found_among_a_thousand_forgeries),
        cmocka_unit_test(an_answer_too_long_for_a_datagram_holds_nothing_up),
        cmocka_unit_test(a_network_that_drops_long_datagrams_is_got_along_with),
        cmocka_unit_test(records_that_do_not_belong_are_refused),
        cmocka_unit_test(strangers_neither_read_nor_publish_in_a_private_swarm),
        cmocka_unit_test(a_public_member_cannot_read_what_is_sealed),
        cmocka_unit_test(four_thousand_lookups_at_once_are_all_found),
        cmocka_unit_test(a_passed_deadline_answers_at_once),
        cmocka_unit_test(closing_ends_pending_lookups_as_cancelled),
        cmocka_unit_test(a_cancelled_lookup_calls_back_once),
        cmocka_unit_test(records_that_cannot_be_published_are_told_one_by_one),
        cmocka_unit_test(making_a_directory_survives_any_failed_allocation),
    };
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("directory", tests, NULL, NULL);
}
