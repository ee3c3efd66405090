/* The handler: what it publishes, when, and what is left when it goes. */
#include <stdatomic.h>

#include "dht_net.h"

static const struct handler_expert two_experts[] = {{.uid = "ffn.1.2", .cls = "nop"},
                                                    {.uid = "ffn.1.7", .cls = "nop"}};

static struct handler_config config_of(const struct net_node *node, uint16_t port)
{
    struct handler_config config = {
        .swarm = node->swarm,
        .update_period_s = 30,
        .endpoint_count = port != 0,
        .endpoints = {{.host = "127.0.0.1", .port = port}},
        .version = "0.1.0",
    };
    return config;
}

static struct handler *start(const struct handler_config *config,
                             const struct handler_expert *experts, size_t count)
{
    struct handler *h = NULL;
    struct skep_error err = {0};

    if (handler_new(config, experts, count, &h, &err) != SKEP_OK)
        fail_msg("handler_new: %s", err.message);
    return h;
}

static void finish(struct handler *h)
{
    handler_free(h, clock_deadline_us(2000));
}

/* ---- what is under a key, read as a stranger would ---- */

enum { MAX_FOUND = 16 };

struct found {
    struct net_event event;
    const struct net_node *node;
    const uint8_t *key;
    struct record records[MAX_FOUND];
    size_t count;
};

static bool on_value(void *arg, uint64_t value_id, const uint8_t *data, size_t len)
{
    struct found *f = arg;

    (void)value_id;
    if (f->count < MAX_FOUND &&
        record_decode(&f->records[f->count], data, len, swarm_record(f->node->swarm), f->key,
                      clock_wall_ms() / 1000, NULL) == SKEP_OK)
        f->count++;
    return true;
}

static void on_done(void *arg, bool ok)
{
    struct found *f = arg;

    (void)ok;
    net_event_set(&f->event, 0);
}

static void read_key(struct found *f, const struct net_node *node, const uint8_t *key)
{
    memset(f, 0, sizeof(*f));
    net_event_init(&f->event);
    f->node = node;
    f->key = key;
    runner_get(swarm_runner(node->swarm), key, on_value, on_done, f);
    assert_true(net_event_wait(&f->event, 1));
    net_event_fini(&f->event);
}

static void free_found(struct found *f)
{
    for (size_t i = 0; i < f->count; i++)
        record_free(&f->records[i]);
    f->count = 0;
}

static const struct record *newest(const struct found *f)
{
    const struct record *best = NULL;

    for (size_t i = 0; i < f->count; i++)
        if (best == NULL || f->records[i].seq > best->seq)
            best = &f->records[i];
    return best;
}

/* ---- tests ---- */

static void experts_prefixes_and_the_node_are_published_at_start(void **state)
{
    (void)state;
    struct net_node nodes[3];
    struct found f;
    uint8_t key[RECORD_KEY_BYTES];
    struct handler_stats stats;

    net_start_many(nodes, 3);
    struct handler_config config = config_of(&nodes[1], 7001);
    struct handler *h = start(&config, two_experts, 2);
    assert_true(handler_wait_first_round(h, net_deadline()));
    assert_int_equal(net_get_port(&nodes[2], "ffn.1.2", 0), 7001);
    assert_int_equal(net_get_port(&nodes[2], "ffn.1.7", 0), 7001);

    record_key_prefix(swarm_record(nodes[1].swarm), "ffn.", nodes[1].identity.peer_id, key);
    read_key(&f, &nodes[2], key);
    assert_int_equal(f.count, 2); /* and a bell */
    const struct record *told = f.records[0].prefix.part == 0 ? &f.records[0] : &f.records[1];
    assert_int_equal(told->prefix.part, 0);
    assert_int_equal(told->prefix.coord_count, 1);
    assert_int_equal(told->prefix.coords[0], 1);
    assert_int_equal(told->prefix.depth, 2);
    free_found(&f);
    record_key_prefix(swarm_record(nodes[1].swarm), "ffn.1.", nodes[1].identity.peer_id, key);
    read_key(&f, &nodes[2], key);
    assert_int_equal(f.count, 1);
    assert_int_equal(f.records[0].prefix.coord_count, 2);
    assert_int_equal(f.records[0].prefix.coords[0], 2);
    assert_int_equal(f.records[0].prefix.coords[1], 7);
    assert_int_equal(f.records[0].prefix.parts, 1);
    free_found(&f);
    for (int i = 0; i < 2; i++) {
        if (i == 0)
            record_key_node(swarm_record(nodes[1].swarm), nodes[1].identity.peer_id, key);
        else
            record_key_nodes_shard(swarm_record(nodes[1].swarm),
                                   record_shard(nodes[1].identity.peer_id), key);
        read_key(&f, &nodes[2], key);
        assert_int_equal(f.count, 1);
        assert_string_equal(f.records[0].node.state, "online");
        assert_string_equal(f.records[0].node.version, "0.1.0");
        assert_int_equal(f.records[0].node.expert_count, 2);
        assert_int_equal(f.records[0].node.endpoints[0].port, 7001);
        free_found(&f);
    }
    handler_stats(h, &stats);
    assert_int_equal(stats.rounds, 1);
    assert_int_equal(stats.failed_rounds, 0);
    assert_int_equal(stats.records_published, 6);
    assert_true(stats.reachable_peers);
    finish(h);
    net_stop_many(nodes, 3);
}

static void own_experts_are_found_without_the_network(void **state)
{
    (void)state;
    struct net_node node;

    net_start(&node, 0);
    struct handler_config config = config_of(&node, 7001);
    struct handler *h = start(&config, two_experts, 2);
    assert_true(handler_wait_first_round(h, net_deadline()));
    struct lookup_result *r = net_get(&node, "ffn.1.7", 0);
    assert_int_equal(r->status, SKEP_OK);
    assert_true(r->providers[0].local);
    mem_free(r);
    finish(h);
    net_stop(&node);
}

static void without_peers_the_first_round_ends_and_the_first_peer_brings_another(void **state)
{
    (void)state;
    struct net_node nodes[2];
    struct handler_stats stats;

    net_start(&nodes[0], 0);
    struct handler_config config = config_of(&nodes[0], 7001);
    config.update_period_s = 1800; /* nothing here comes from the next regular round */
    struct handler *h = start(&config, two_experts, 2);
    assert_true(handler_wait_first_round(h, net_deadline()));
    handler_stats(h, &stats);
    assert_false(stats.reachable_peers);
    assert_int_equal(stats.records_published, 0);
    assert_true(stats.rounds >= 1);
    assert_int_equal(stats.failed_rounds, 0); /* nobody is there to publish to: no failure */
    assert_int_equal(stats.records_failed, 0);

    net_start(&nodes[1], net_port(&nodes[0]));
    assert_true(NET_UNTIL(net_get_port(&nodes[1], "ffn.1.2", DIRECTORY_FRESH) == 7001));
    assert_true(NET_UNTIL((handler_stats(h, &stats), stats.reachable_peers)));
    assert_true(NET_UNTIL((handler_stats(h, &stats), stats.records_published >= 6)));
    finish(h);
    net_stop_many(nodes, 2);
}

static void a_goodbye_takes_everything_out_of_lookups(void **state)
{
    (void)state;
    struct net_node nodes[4];
    struct found f;
    uint8_t key[RECORD_KEY_BYTES];

    net_start_many(nodes, 4);
    struct handler_config config = config_of(&nodes[1], 7001);
    struct handler *h = start(&config, two_experts, 2);
    assert_true(handler_wait_first_round(h, net_deadline()));
    assert_int_equal(net_get_port(&nodes[2], "ffn.1.2", 0), 7001);
    finish(h);

    assert_int_equal(net_get_status(&nodes[3], "ffn.1.2", DIRECTORY_FRESH), SKEP_NOT_FOUND);
    assert_int_equal(net_get_status(&nodes[2], "ffn.1.2", DIRECTORY_FRESH), SKEP_NOT_FOUND);
    assert_int_equal(net_get_status(&nodes[2], "ffn.1.2", 0), SKEP_NOT_FOUND); /* the cache too */
    assert_int_not_equal(net_get_status(&nodes[1], "ffn.1.2", DIRECTORY_FRESH), SKEP_OK);
    record_key_prefix(swarm_record(nodes[1].swarm), "ffn.1.", nodes[1].identity.peer_id, key);
    read_key(&f, &nodes[3], key);
    assert_non_null(newest(&f));
    assert_int_equal(newest(&f)->prefix.coord_count, 0);
    free_found(&f);
    record_key_node(swarm_record(nodes[1].swarm), nodes[1].identity.peer_id, key);
    read_key(&f, &nodes[3], key);
    assert_non_null(newest(&f));
    assert_string_equal(newest(&f)->node.state, "offline");
    assert_int_equal(newest(&f)->node.expert_count, 0);
    free_found(&f);
    net_stop_many(nodes, 4);
}

static void the_goodbye_outlives_the_record_it_withdraws(void **state)
{
    (void)state;
    struct net_node nodes[3];
    struct found f;
    uint8_t key[RECORD_KEY_BYTES];

    net_start_many(nodes, 3);
    struct handler_config config = config_of(&nodes[1], 7001);
    config.update_period_s = 600;
    struct handler *h = start(&config, two_experts, 1);
    assert_true(handler_wait_first_round(h, net_deadline()));
    record_key_expert(swarm_record(nodes[1].swarm), "ffn.1.2", key);
    read_key(&f, &nodes[2], key);
    assert_int_equal(f.count, 1);
    assert_false(f.records[0].expert.offline);
    int64_t old_expires_at = f.records[0].expires_at;
    free_found(&f);
    finish(h);
    read_key(&f, &nodes[2], key);
    assert_non_null(newest(&f));
    assert_true(newest(&f)->expert.offline);
    /* A node that was not reached may still hand the old one out. */
    assert_true(newest(&f)->expires_at >=
                old_expires_at + swarm_record(nodes[1].swarm)->clock_skew_s);
    free_found(&f);
    net_stop_many(nodes, 3);
}

/* An earlier run of the same node, which ended without a goodbye. */
static void run_before(const struct identity *identity, uint16_t peer_port)
{
    struct net_node node;
    const struct net_options options = {.identity = identity};

    net_start_with(&node, &peer_port, 1, &options);
    assert_true(swarm_wait_joined(node.swarm, net_deadline()));
    assert_int_equal(net_declare_expert(&node, "ffn.1.2", 7001, 60, false), SKEP_OK);
    net_stop(&node);
}

static int64_t five_minutes_behind(void)
{
    return clock_wall_ms() - 5 * 60 * 1000;
}

static bool is_only_at(struct net_node *node, const char *uid, uint16_t port)
{
    struct lookup_result *r = net_get(node, uid, DIRECTORY_FRESH);
    bool is =
        r->status == SKEP_OK && r->provider_count == 1 && r->providers[0].endpoints[0].port == port;

    mem_free(r);
    return is;
}

/* The new record gets to the peers that hold the old one in turn, and a lookup ends at the first
 * answer. */
static bool is_always_at(struct net_node *node, const char *uid, uint16_t port)
{
    for (int i = 0; i < 6; i++)
        if (!is_only_at(node, uid, port))
            return false;
    return true;
}

static void restarts_at_a_new_port(int64_t (*wall_ms)(void))
{
    struct net_node nodes[3], again;
    struct identity identity;

    net_start_many(nodes, 3);
    uint16_t port = net_port(&nodes[0]);
    assert_int_equal(identity_generate(&identity, NULL), SKEP_OK);
    run_before(&identity, port);
    assert_int_equal(net_get_port(&nodes[1], "ffn.1.2", 0), 7001);

    const struct net_options options = {.identity = &identity, .wall_ms = wall_ms};
    net_start_with(&again, &port, 1, &options);
    assert_true(swarm_wait_joined(again.swarm, net_deadline()));
    struct handler_config config = config_of(&again, 7002);
    struct handler *h = start(&config, two_experts, 2);
    assert_true(NET_UNTIL(is_always_at(&nodes[2], "ffn.1.2", 7002)));
    /* Also for the prefix, which the earlier run never told. */
    assert_true(NET_UNTIL(net_get_port(&nodes[2], "ffn.1.7", DIRECTORY_FRESH) == 7002));
    finish(h);
    net_stop(&again);
    net_stop_many(nodes, 3);
}

static void a_restart_at_a_new_port_wins(void **state)
{
    (void)state;
    restarts_at_a_new_port(NULL);
}

static void a_restart_with_the_clock_set_back_wins_too(void **state)
{
    (void)state;
    restarts_at_a_new_port(five_minutes_behind);
}

static atomic_bool stalled;

static bool load_unless_stalled(void *arg, const char *uid, struct record_load *out)
{
    (void)arg;
    out->queued_tasks = 3;
    return !(atomic_load(&stalled) && strcmp(uid, "ffn.1.2") == 0);
}

/* What a watch and a search without look-ups of experts go by. */
static void prefixes_tell_the_load_of_the_node(void **state)
{
    (void)state;
    struct net_node nodes[3];
    struct found f;
    uint8_t key[RECORD_KEY_BYTES];
    static const char *const prefixes[] = {"ffn.", "ffn.1."};

    atomic_store(&stalled, false);
    net_start_many(nodes, 3);
    struct handler_config config = config_of(&nodes[1], 7001);
    config.expert_load = load_unless_stalled;
    struct handler *h = start(&config, two_experts, 2);
    assert_true(handler_wait_first_round(h, net_deadline()));
    for (size_t i = 0; i < 2; i++) {
        record_key_prefix(swarm_record(nodes[1].swarm), prefixes[i], nodes[1].identity.peer_id,
                          key);
        read_key(&f, &nodes[2], key);
        size_t told = 0;
        for (size_t n = 0; n < f.count; n++) {
            bool lists = f.records[n].prefix.coord_count > 0; /* the others are bells */
            assert_int_equal(f.records[n].prefix.load.queued_tasks, lists ? 6 : 0);
            told += lists;
        }
        assert_int_equal(told, 1);
        free_found(&f);
    }
    finish(h);
    net_stop_many(nodes, 3);
}

static void a_stalled_expert_is_withdrawn_and_comes_back(void **state)
{
    (void)state;
    struct net_node nodes[3];
    struct found f;
    uint8_t key[RECORD_KEY_BYTES];

    atomic_store(&stalled, false);
    net_start_many(nodes, 3);
    struct handler_config config = config_of(&nodes[1], 7001);
    config.expert_load = load_unless_stalled;
    struct handler *h = start(&config, two_experts, 2);
    assert_true(handler_wait_first_round(h, net_deadline()));
    struct lookup_result *r = net_get(&nodes[2], "ffn.1.2", 0);
    assert_int_equal(r->status, SKEP_OK);
    assert_int_equal(r->providers[0].load.queued_tasks, 3);
    mem_free(r);

    atomic_store(&stalled, true);
    handler_refresh(h);
    assert_true(NET_UNTIL(net_get_status(&nodes[2], "ffn.1.2", DIRECTORY_FRESH) == SKEP_NOT_FOUND));
    assert_int_equal(net_get_status(&nodes[2], "ffn.1.7", DIRECTORY_FRESH), SKEP_OK);
    assert_true(NET_UNTIL(net_get_status(&nodes[1], "ffn.1.2", 0) != SKEP_OK));
    record_key_prefix(swarm_record(nodes[1].swarm), "ffn.1.", nodes[1].identity.peer_id, key);
    bool shrunk = false;
    for (uint64_t deadline = net_deadline(); !shrunk && clock_mono_us() < deadline;) {
        read_key(&f, &nodes[2], key);
        shrunk =
            f.count > 0 && newest(&f)->prefix.coord_count == 1 && newest(&f)->prefix.coords[0] == 7;
        free_found(&f);
    }
    assert_true(shrunk);

    atomic_store(&stalled, false);
    handler_refresh(h);
    assert_true(NET_UNTIL(net_get_port(&nodes[2], "ffn.1.2", DIRECTORY_FRESH) == 7001));
    finish(h);
    net_stop_many(nodes, 3);
}

static void rounds_replace_their_records_in_place(void **state)
{
    (void)state;
    enum { ROUNDS = 8 };
    struct net_node nodes[3];
    struct handler_stats stats;
    struct found f;
    uint8_t key[RECORD_KEY_BYTES];
    uint64_t first_seq;

    net_start_many(nodes, 3);
    struct handler_config config = config_of(&nodes[1], 7001);
    struct handler *h = start(&config, two_experts, 2);
    assert_true(handler_wait_first_round(h, net_deadline()));
    record_key_expert(swarm_record(nodes[1].swarm), "ffn.1.2", key);
    read_key(&f, &nodes[2], key);
    assert_int_equal(f.count, 1);
    first_seq = f.records[0].seq;
    free_found(&f);
    for (uint64_t i = 1; i < ROUNDS; i++) {
        handler_refresh(h);
        assert_true(NET_UNTIL((handler_stats(h, &stats), stats.rounds > i)));
    }
    assert_int_equal(stats.records_failed, 0);
    read_key(&f, &nodes[2], key);
    assert_int_equal(f.count, 1);
    assert_true(f.records[0].seq > first_seq);
    free_found(&f);
    finish(h);
    net_stop_many(nodes, 3);
}

static void nothing_is_published_before_there_is_an_endpoint(void **state)
{
    (void)state;
    struct net_node nodes[2];
    struct handler_stats stats;
    const struct endpoint endpoint = {.host = "127.0.0.1", .port = 7005};

    net_start_many(nodes, 2);
    struct handler_config config = config_of(&nodes[1], 0);
    struct handler *h = start(&config, two_experts, 2);
    assert_true(handler_wait_first_round(h, net_deadline()));
    handler_stats(h, &stats);
    assert_int_equal(stats.records_published + stats.records_failed, 0);
    assert_int_equal(net_get_status(&nodes[0], "ffn.1.2", 0), SKEP_NOT_FOUND);
    handler_set_endpoints(h, &endpoint, 1);
    assert_true(NET_UNTIL(net_get_port(&nodes[0], "ffn.1.2", DIRECTORY_FRESH) == 7005));
    finish(h);
    net_stop_many(nodes, 2);
}

static void bad_experts_and_periods_are_refused_by_name(void **state)
{
    (void)state;
    struct net_node node;
    struct handler *h = NULL;
    struct skep_error err;
    const struct handler_expert twice[] = {{.uid = "ffn.1", .cls = "nop"},
                                           {.uid = "ffn.1", .cls = "nop"}};
    const struct handler_expert bad_uid = {.uid = "ffn.01", .cls = "nop"};
    const struct handler_expert bad_class = {.uid = "ffn.1",
                                             .cls = "a name that is longer than any class name is"};

    net_start(&node, 0);
    struct handler_config config = config_of(&node, 7001);
    assert_int_equal(handler_new(&config, twice, 2, &h, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "ffn.1"));
    assert_int_equal(handler_new(&config, &bad_uid, 1, &h, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "ffn.01"));
    assert_int_equal(handler_new(&config, &bad_class, 1, &h, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "class"));
    config.update_period_s = 1801; /* records cannot outlive two of these */
    assert_int_equal(handler_new(&config, two_experts, 2, &h, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "1801"));
    assert_null(h);
    net_stop(&node);
}

static void a_handler_without_peers_ends_within_its_deadline(void **state)
{
    (void)state;
    struct net_node node;

    net_start(&node, 1); /* nobody listens on port 1 */
    struct handler_config config = config_of(&node, 7001);
    struct handler *h = start(&config, two_experts, 2);
    uint64_t deadline = clock_deadline_us(5000);
    handler_free(h, deadline);
    assert_true(clock_mono_us() < deadline);
    net_stop(&node);
}

static void making_a_handler_survives_any_failed_allocation(void **state)
{
    (void)state;
    struct net_node node;
    struct handler *h = NULL;
    skep_status rc = SKEP_RESOURCE_EXHAUSTED;

    net_start(&node, 0);
    struct handler_config config = config_of(&node, 7001);
    for (long nth = 1; rc != SKEP_OK && nth < 100; nth++) {
        mem_fail_at(nth);
        rc = handler_new(&config, two_experts, 2, &h, NULL);
        mem_fail_at(0);
        if (rc != SKEP_OK)
            assert_null(h);
    }
    assert_int_equal(rc, SKEP_OK);
    finish(h);
    net_stop(&node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_prefixes_and_the_node_are_published_at_start),
        cmocka_unit_test(own_experts_are_found_without_the_network),
        cmocka_unit_test(without_peers_the_first_round_ends_and_the_first_peer_brings_another),
        cmocka_unit_test(a_goodbye_takes_everything_out_of_lookups),
        cmocka_unit_test(the_goodbye_outlives_the_record_it_withdraws),
        cmocka_unit_test(a_restart_at_a_new_port_wins),
        cmocka_unit_test(a_restart_with_the_clock_set_back_wins_too),
        cmocka_unit_test(prefixes_tell_the_load_of_the_node),
        cmocka_unit_test(a_stalled_expert_is_withdrawn_and_comes_back),
        cmocka_unit_test(rounds_replace_their_records_in_place),
        cmocka_unit_test(nothing_is_published_before_there_is_an_endpoint),
        cmocka_unit_test(bad_experts_and_periods_are_refused_by_name),
        cmocka_unit_test(a_handler_without_peers_ends_within_its_deadline),
        cmocka_unit_test(making_a_handler_survives_any_failed_allocation),
    };
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("handler", tests, NULL, NULL);
}
