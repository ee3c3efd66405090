/*
 * Strangers by the thousand under one key (B42). Junk is told from records by its form, and forged
 * records by their signature; who signs with a thousand identities of his own that he serves an
 * expert cannot be told from those who do but by asking. So what is tested is that they are asked
 * in turn, and no more often than once.
 */
#include <sodium.h>

#include <skep/client.h>
#include <skep/node.h>
#include "dht_net.h"
#include "dht_rogue.h"
#include "base/tensor.h"
#include "dht/directory/directory_collect.h"
#include "dht/opendht/inbox.h"
#include "dht/directory/prefix_view.h"
#include "own_swarm.h"

enum {
    FAKES = 1000,
    FAKE_PORT = 1, /* nobody listens there */
    HIDDEN = 16,
    CALL_MS = 120000,
};

static struct identity strangers[FAKES];

static int make_strangers(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < FAKES; i++) {
        uint8_t seed[32] = {0};
        store_u32(seed, i + 1);
        if (identity_from_seed(&strangers[i], seed, NULL) != SKEP_OK)
            return -1;
    }
    return 0;
}

/* Signed as it should be, and newer than anything honest. */
static void put_fake(struct rogue *rogue, const struct net_node *in, const struct identity *by,
                     struct record *r, const uint8_t *key, struct net_event *event)
{
    struct bytes data = {0};
    struct skep_error err;

    memcpy(r->peer_id, by->peer_id, PEER_ID_BYTES);
    r->seq = (uint64_t)clock_wall_ms() + 30000;
    if (record_encode(r, by, swarm_record(in->swarm), key, &data, &err) != SKEP_OK)
        fail_msg("record_encode: %s", err.message);
    rogue_put(rogue, key, record_value_id(r), data.data, data.len, event);
    bytes_free(&data);
}

/* What B42 names besides: nothing, noise, another's record, dates from another age. */
static void put_junk(struct rogue *rogue, const struct net_node *in, const char *uid,
                     struct net_event *event)
{
    static uint8_t noise[60 * 1024];
    uint8_t key[RECORD_KEY_BYTES];
    struct record other = net_expert(in, "other.1", FAKE_PORT, 60);
    struct record late = net_expert(in, uid, FAKE_PORT, 60);
    struct bytes data = {0};

    record_key_expert(swarm_record(in->swarm), uid, key);
    randombytes_buf(noise, sizeof(noise));
    rogue_put(rogue, key, 1, noise, 0, event);
    rogue_put(rogue, key, 2, noise, sizeof(noise), event);
    put_fake(rogue, in, &strangers[0], &other, key, event);
    late.seq = UINT64_MAX;
    late.expires_at = INT64_MAX;
    memcpy(late.peer_id, strangers[1].peer_id, PEER_ID_BYTES);
    assert_int_equal(record_encode(&late, &strangers[1], swarm_record(in->swarm), key, &data, NULL),
                     SKEP_OK);
    rogue_put(rogue, key, 3, data.data, data.len, event);
    bytes_free(&data);
}

enum { JUNK = 4 };

/* FAKES identities that all serve `uid` at a port where nobody answers, and the junk. */
static void flood(struct rogue *rogue, const struct net_node *in, const char *uid)
{
    struct net_event event;
    uint8_t key[RECORD_KEY_BYTES];

    net_event_init(&event);
    record_key_expert(swarm_record(in->swarm), uid, key);
    put_junk(rogue, in, uid, &event);
    for (unsigned i = 0; i < FAKES; i++) {
        struct record r = net_expert(in, uid, FAKE_PORT, 300);
        put_fake(rogue, in, &strangers[i], &r, key, &event);
    }
    assert_true(net_event_wait(&event, FAKES + JUNK));
    net_event_fini(&event);
}

/* Tries all that an answer names, as a caller does. Returns whether the genuine one was there. */
static bool try_all(struct directory *d, const struct lookup_result *r, uint16_t genuine,
                    unsigned *tries)
{
    static uint8_t seen[FAKES + 1][PEER_ID_BYTES];

    if (*tries == 0)
        memset(seen, 0, sizeof(seen));
    for (size_t i = 0; i < r->provider_count; i++) {
        const struct provider *p = &r->providers[i];
        if (p->endpoints[0].port == genuine) {
            directory_keep(d, "ffn.3", p);
            return true;
        }
        bool again = false;
        for (unsigned k = 0; k < *tries && !again; k++)
            again = memcmp(seen[k], p->peer_id, PEER_ID_BYTES) == 0;
        if (again)
            continue;
        assert_true(*tries < FAKES);
        memcpy(seen[(*tries)++], p->peer_id, PEER_ID_BYTES);
        directory_forget_peer(d, p->peer_id);
    }
    return false;
}

static void the_genuine_provider_is_found_among_a_thousand_who_sign(void **state)
{
    (void)state;
    struct net_node nodes[3];
    struct rogue rogue;
    const unsigned flags = DIRECTORY_FRESH | DIRECTORY_ALL;
    unsigned tries = 0, lookups = 0;
    bool found = false;

    net_start_many(nodes, 3);
    rogue_start(&rogue, &nodes[0]);
    flood(&rogue, &nodes[0], "ffn.3");
    assert_int_equal(net_declare_expert(&nodes[1], "ffn.3", 7001, 60, false), SKEP_OK);
    struct directory *d = net_directory(&nodes[2]);
    const uint64_t began_us = clock_mono_us();
    for (; !found && lookups <= FAKES; lookups++) {
        struct lookup_result *r = net_get(&nodes[2], "ffn.3", flags);
        assert_int_equal(r->status, SKEP_OK);
        found = try_all(d, r, 7001, &tries);
        mem_free(r);
    }
    assert_true(found);
    print_message("%u fakes were tried, in %u look-ups of %.1f ms\n", tries, lookups,
                  (double)(clock_mono_us() - began_us) / 1000.0 / lookups);
    /* From now on it is among those named, however the lots fall. */
    for (unsigned i = 0; i < 10; i++) {
        struct lookup_result *r = net_get(&nodes[2], "ffn.3", flags);
        bool named = false;
        for (size_t k = 0; k < r->provider_count; k++)
            named = named || r->providers[k].endpoints[0].port == 7001;
        assert_true(named);
        mem_free(r);
    }
    rogue_stop(&rogue);
    net_stop_many(nodes, 3);
}

/* ---- a key that is full (B21) */

static atomic_uint full_lines;

static void on_line(enum skep_log_level level, const char *line, void *arg)
{
    (void)level;
    (void)arg;
    if (strstr(line, "ffn.9") != NULL && strstr(line, "more is stored under this key") != NULL)
        atomic_fetch_add(&full_lines, 1);
}

static void a_key_that_holds_more_than_is_read_is_told(void **state)
{
    (void)state;
    enum { VALUES = INBOX_MAX_ASK_VALUES + 500 };
    struct net_node nodes[2];
    struct rogue rogue;
    struct net_event event;
    uint8_t key[RECORD_KEY_BYTES], junk[16];

    net_start_many(nodes, 2);
    rogue_start(&rogue, &nodes[0]);
    net_event_init(&event);
    record_key_expert(swarm_record(nodes[0].swarm), "ffn.9", key);
    for (unsigned i = 0; i < VALUES; i++) {
        randombytes_buf(junk, sizeof(junk));
        rogue_put(&rogue, key, i + 1, junk, sizeof(junk), &event);
    }
    assert_true(net_event_wait(&event, VALUES));
    skep_log_set(SKEP_LOG_WARNING, on_line, NULL);
    const uint64_t deadline = net_deadline();
    while (atomic_load(&full_lines) == 0 && clock_mono_us() < deadline)
        assert_int_not_equal(net_get_status(&nodes[1], "ffn.9", DIRECTORY_FRESH), SKEP_OK);
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    assert_true(atomic_load(&full_lines) > 0);
    rogue_stop(&rogue);
    net_event_fini(&event);
    net_stop_many(nodes, 2);
}

/* ---- who is remembered, and who is listed under a prefix: no network */

static void failures_and_answers_are_remembered_and_bounded(void **state)
{
    (void)state;
    struct peer_memory *m;
    const uint8_t *a = strangers[0].peer_id, *b = strangers[1].peer_id, *c = strangers[2].peer_id;
    uint8_t id[PEER_ID_BYTES];
    unsigned kept = 0;

    assert_int_equal(peer_memory_new(&m, NULL), SKEP_OK);
    peer_memory_answered(m, a, 1000);
    peer_memory_failed(m, c, 1000);
    uint64_t places[] = {peer_memory_rank(m, a, 1, 2000), peer_memory_rank(m, b, 1, 2000),
                         peer_memory_rank(m, c, 1, 2000)};
    assert_true(peer_memory_is_answered(places[0]) && peer_memory_is_failed(places[2]));
    assert_true(places[0] < places[1] && places[1] < places[2]);
    assert_true(peer_memory_rank(m, b, 2, 2000) != places[1]); /* another lot */
    assert_true(peer_memory_rank(m, b, 1, 9000) == places[1]);
    peer_memory_failed(m, a, 3000);
    peer_memory_answered(m, c, 3000);
    assert_true(peer_memory_is_failed(peer_memory_rank(m, a, 1, 4000)));
    assert_true(peer_memory_is_answered(peer_memory_rank(m, c, 1, 4000)));
    /* What failed longest ago has its turn first, and is forgotten after a while. */
    peer_memory_failed(m, b, 3500);
    assert_true(peer_memory_rank(m, a, 1, 4000) < peer_memory_rank(m, b, 1, 4000));
    assert_false(peer_memory_is_failed(peer_memory_rank(m, a, 1, 3000 + PEER_MEMORY_FAILED_US)));
    /* A flood of failures drives out failures only. */
    memset(id, 0, sizeof(id));
    for (uint32_t i = 0; i < 4 * PEER_MEMORY_FAILED; i++) {
        store_u32(id, i);
        peer_memory_failed(m, id, 5000 + i);
    }
    assert_true(peer_memory_is_answered(peer_memory_rank(m, c, 1, 5000)));
    for (uint32_t i = 0; i < 4 * PEER_MEMORY_FAILED; i++) {
        store_u32(id, i);
        kept += peer_memory_is_failed(peer_memory_rank(m, id, 1, 5000));
    }
    assert_true(kept > PEER_MEMORY_FAILED / 2 && kept <= PEER_MEMORY_FAILED);
    peer_memory_free(m);
}

/* One that lists `count` coordinates from `first` on. */
static void list_coords(struct collection *c, const struct identity *by, int64_t first,
                        size_t count, uint16_t port, uint64_t ahead)
{
    struct record r = {
        .kind = RECORD_PREFIX,
        .seq = 1800000000000 + ahead,
        .expires_at = 1800000060,
        .prefix = {.prefix = "ffn.",
                   .endpoint_count = 1,
                   .endpoints = {{.host = "127.0.0.1", .port = port}},
                   .depth = 1,
                   .parts = 1,
                   .coord_count = count,
                   .coords = mem_calloc(count, sizeof(int64_t))},
    };

    assert_non_null(r.prefix.coords);
    memcpy(r.peer_id, by->peer_id, PEER_ID_BYTES);
    for (size_t i = 0; i < count; i++)
        r.prefix.coords[i] = first + (int64_t)i;
    collection_put(c, &r, load_u64(by->peer_id));
}

static size_t listed(struct collection *c, struct peer_memory *m, int64_t coord,
                     struct provider *out)
{
    struct prefix_view *v = prefix_view_new(&c, 1, 1800000000, NULL, NULL, m);

    assert_non_null(v);
    size_t at = prefix_view_find(v, coord);
    size_t n =
        at == SIZE_MAX ? 0 : prefix_view_providers(v, at, 1800000000, out, DIRECTORY_MAX_PROVIDERS);
    prefix_view_unref(v);
    return n;
}

static void everyone_under_a_prefix_is_listed_in_turn(void **state)
{
    (void)state;
    struct collection *c = collection_new();
    struct peer_memory *m;
    struct provider *out = mem_calloc(DIRECTORY_MAX_PROVIDERS, sizeof(*out));
    unsigned views = 0;
    bool found = false;

    assert_true(c != NULL && out != NULL && peer_memory_new(&m, NULL) == SKEP_OK);
    for (unsigned i = 0; i < FAKES; i++)
        list_coords(c, &strangers[i], 3, 1, i == 500 ? 7001 : FAKE_PORT, i == 500 ? 0 : 1000);
    for (; !found && views <= FAKES / DIRECTORY_MAX_PROVIDERS + 1; views++) {
        size_t n = listed(c, m, 3, out);
        assert_int_equal(n, DIRECTORY_MAX_PROVIDERS);
        for (size_t i = 0; i < n; i++) {
            assert_true(i == 0 || out[i - 1].seq >= out[i].seq); /* freshest first */
            found = found || out[i].endpoints[0].port == 7001;
            peer_memory_failed(m, out[i].peer_id, clock_mono_us());
        }
    }
    assert_true(found);
    peer_memory_answered(m, strangers[500].peer_id, clock_mono_us());
    assert_int_equal(listed(c, m, 3, out), DIRECTORY_MAX_PROVIDERS);
    for (found = false, views = 0; views < DIRECTORY_MAX_PROVIDERS; views++)
        found = found || out[views].endpoints[0].port == 7001;
    assert_true(found);
    peer_memory_free(m);
    collection_unref(c);
    mem_free(out);
}

static void who_lists_everything_crowds_nobody_out(void **state)
{
    (void)state;
    struct collection *c = collection_new();
    struct provider *out = mem_calloc(DIRECTORY_MAX_PROVIDERS, sizeof(*out));

    assert_true(c != NULL && out != NULL);
    for (unsigned i = 1; i <= 20; i++)
        list_coords(c, &strangers[i], 0, 60000, FAKE_PORT, 1000);
    list_coords(c, &strangers[0], 70000, 100, 7001, 0);
    assert_int_equal(listed(c, NULL, 70099, out), 1);
    assert_int_equal(out[0].endpoints[0].port, 7001);
    collection_unref(c);
    mem_free(out);
}

/* ---- the same for a call from beginning to end */

static struct skep_node *start_node(const char *uid, const char *peer)
{
    struct skep_node_options options;
    struct skep_expert_options expert;
    struct skep_node *node;
    struct skep_error err;

    skep_node_options_init(&options);
    options.listen = "127.0.0.1:*";
    options.swarm = own_swarm();
    options.initial_peers = &peer;
    options.initial_peer_count = 1;
    skep_expert_options_init(&expert);
    expert.cls = "nop";
    expert.hidden_dim = HIDDEN;
    if (skep_node_new(&options, &node, &err) != SKEP_OK ||
        skep_node_add_expert(node, uid, &expert, &err) != SKEP_OK ||
        skep_node_start(node, &err) != SKEP_OK ||
        skep_node_wait_ready(node, NET_PATIENCE_MS, &err) != SKEP_OK)
        fail_msg("node: %s", err.message);
    return node;
}

static struct skep_client *start_client(const char *peer)
{
    struct skep_client_options options;
    struct skep_client *client;
    struct skep_error err;

    skep_client_options_init(&options);
    options.swarm = own_swarm();
    options.initial_peers = &peer;
    options.initial_peer_count = 1;
    if (skep_client_new(&options, &client, &err) != SKEP_OK ||
        skep_client_wait_joined(client, NET_PATIENCE_MS, &err) != SKEP_OK)
        fail_msg("client: %s", err.message);
    return client;
}

static void call(struct skep_client *client, const char *uid)
{
    const int64_t shape[2] = {2, HIDDEN};
    struct skep_remote_expert *expert;
    struct skep_call_options options = {.timeout_ms = CALL_MS};
    DLManagedTensor *x, *y;
    struct skep_error err;
    size_t count = 0;

    if (skep_client_find(client, uid, NET_PATIENCE_MS, &expert, &err) != SKEP_OK)
        fail_msg("find: %s", err.message);
    assert_int_equal(skep_tensor_new(DTYPE_F32, 2, shape, &x, NULL), SKEP_OK);
    const DLTensor *inputs[1] = {&x->dl_tensor};
    if (skep_remote_expert_forward(expert, inputs, 1, &options, &y, 1, &count, &err) != SKEP_OK)
        fail_msg("forward: %s", err.message);
    skep_tensor_free(y);
    skep_tensor_free(x);
    skep_remote_expert_free(expert);
}

static void a_call_gets_through_a_thousand_who_sign(void **state)
{
    (void)state;
    struct net_node nodes[2];
    struct rogue rogue;
    char peer[32];
    uint64_t took_us[2];

    net_start_many(nodes, 2);
    snprintf(peer, sizeof(peer), "127.0.0.1:%u", (unsigned)net_port(&nodes[0]));
    rogue_start(&rogue, &nodes[0]);
    flood(&rogue, &nodes[0], "t.1");
    struct skep_node *node = start_node("t.1", peer);
    struct skep_client *client = start_client(peer);
    for (size_t i = 0; i < 2; i++) {
        uint64_t began_us = clock_mono_us();
        call(client, "t.1");
        took_us[i] = clock_mono_us() - began_us;
    }
    print_message("the first call took %.1f ms, the second %.1f ms\n", (double)took_us[0] / 1000,
                  (double)took_us[1] / 1000);
    skep_client_free(client);
    skep_node_free(node);
    rogue_stop(&rogue);
    net_stop_many(nodes, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* First: it is told once a minute, and a flood may be more than is read as well. */
        cmocka_unit_test(a_key_that_holds_more_than_is_read_is_told),
        cmocka_unit_test(the_genuine_provider_is_found_among_a_thousand_who_sign),
        cmocka_unit_test(failures_and_answers_are_remembered_and_bounded),
        cmocka_unit_test(everyone_under_a_prefix_is_listed_in_turn),
        cmocka_unit_test(who_lists_everything_crowds_nobody_out),
        cmocka_unit_test(a_call_gets_through_a_thousand_who_sign),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("flood", tests, make_strangers, NULL);
}
