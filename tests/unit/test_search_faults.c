/* What clients and layers say when a search finds nobody, and when the DHT is too slow for them. */
#include "moe_net.h"

#include "udp_delay.h"
#include "own_swarm.h"

enum { SIDE = 2, EXPERTS = SIDE * SIDE, SAMPLES = 3, WIDTH = 4 };

/* Serves "ffn.", and "half.0.": of the latter only the prefix is published. */
static struct fake_node node;
static struct fake_expert experts[EXPERTS + SIDE];
static struct net_node peer; /* serves nothing */
static struct net_node beside_peer;

/* Both columns of row 0 of a grid. */
static void declare_row(const struct net_node *by, const char *text, uint16_t port,
                        uint32_t lifetime_s)
{
    int64_t coords[SIDE] = {0, 1};
    struct record prefix = {
        .kind = RECORD_PREFIX,
        .expires_at = directory_now_ms(net_directory(by)) / 1000 + lifetime_s,
        .prefix = {.endpoint_count = 1,
                   .endpoints = {{.host = "127.0.0.1", .port = port}},
                   .parts = 1,
                   .coord_count = SIDE,
                   .coords = coords},
    };
    struct declaration declaration = {.record = &prefix};

    snprintf(prefix.prefix.prefix, sizeof(prefix.prefix.prefix), "%s", text);
    record_key_prefix(swarm_record(by->swarm), text, by->identity.peer_id, declaration.key);
    net_declare(by, &declaration, 1);
    /* `node` has no DHT peer to store with: it keeps its record itself. */
    assert_int_equal(declaration.outcome, by == &node.net ? SKEP_UNAVAILABLE : SKEP_OK);
}

static int start(void **state)
{
    (void)state;
    for (size_t i = 0; i < EXPERTS + SIDE; i++) {
        snprintf(experts[i].uid, sizeof(experts[i].uid), "%s.%zu.%zu", i < EXPERTS ? "ffn" : "half",
                 i / SIDE % SIDE, i % SIDE);
        experts[i].a = 1;
    }
    fake_start_some(&node, 0, experts, EXPERTS + SIDE, EXPERTS);
    net_start(&peer, 0);
    net_start(&beside_peer, net_port(&peer)); /* to store with: clients store nothing */
    assert_true(swarm_wait_joined(beside_peer.swarm, net_deadline()));
    return 0;
}

static int stop(void **state)
{
    (void)state;
    net_stop(&beside_peer);
    net_stop(&peer);
    fake_stop(&node);
    return 0;
}

/* ---- a batch, and what is done with it */

struct batch {
    DLManagedTensor *x, *lines[2];
    const DLTensor *scores[2];
};

static DLManagedTensor *zeros(int64_t width)
{
    const int64_t shape[2] = {SAMPLES, width};
    DLManagedTensor *t;

    assert_int_equal(skep_tensor_new(DTYPE_F32, 2, shape, &t, NULL), SKEP_OK);
    memset(skep_tensor_data(&t->dl_tensor), 0, (size_t)(SAMPLES * width) * sizeof(float));
    return t;
}

static struct batch batch_new(void)
{
    struct batch b = {.x = zeros(WIDTH), .lines = {zeros(SIDE), zeros(SIDE)}};

    for (int d = 0; d < 2; d++)
        b.scores[d] = &b.lines[d]->dl_tensor;
    return b;
}

static void batch_free(struct batch *b)
{
    skep_tensor_free(b->x);
    skep_tensor_free(b->lines[0]);
    skep_tensor_free(b->lines[1]);
}

static struct skep_grid grid_of(const char *prefix)
{
    return (struct skep_grid){.prefix = prefix, .dims = 2, .sizes = {SIDE, SIDE}};
}

static skep_status search(struct skep_client *client, const char *prefix, bool unchecked,
                          uint32_t timeout_ms, struct skep_beam_search **out,
                          struct skep_error *err)
{
    const struct skep_grid grid = grid_of(prefix);
    struct skep_beam_options o;
    struct batch b = batch_new();

    skep_beam_options_init(&o);
    o.k = EXPERTS;
    o.unchecked = unchecked;
    o.timeout_ms = timeout_ms;
    skep_status rc = skep_beam_search_run(client, &grid, b.scores, &o, out, err);
    batch_free(&b);
    return rc;
}

/* How many experts of the first sample a search finds, which must succeed. */
static size_t count_found(struct skep_client *client, const char *prefix, bool unchecked)
{
    struct skep_beam_search *found;
    struct skep_error err;

    if (search(client, prefix, unchecked, 0, &found, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    size_t count = skep_beam_search_count(found, 0);
    skep_beam_search_free(found);
    return count;
}

static skep_status run_mixture(struct skep_client *client, const struct skep_moe_options *o,
                               size_t answers[SAMPLES], struct skep_error *err)
{
    struct batch b = batch_new();
    struct skep_moe *moe;
    struct skep_moe_pass *pass;
    DLManagedTensor *y;

    assert_int_equal(skep_moe_new(client, o, &moe, err), SKEP_OK);
    skep_status rc = skep_moe_forward(moe, &b.x->dl_tensor, b.scores, &pass, &y, err);
    for (size_t s = 0; rc == SKEP_OK && s < SAMPLES; s++)
        answers[s] = skep_moe_pass_answers(pass, s);
    if (rc == SKEP_OK)
        skep_tensor_free(y);
    skep_moe_pass_free(pass);
    skep_moe_free(moe);
    batch_free(&b);
    return rc;
}

static skep_status run_switch(struct skep_client *client, const struct skep_switch_moe_options *o,
                              struct skep_error *err)
{
    struct batch b = batch_new();
    struct skep_switch_moe *moe;
    struct skep_switch_moe_pass *pass;
    DLManagedTensor *y;
    double loss;

    assert_int_equal(skep_switch_moe_new(client, o, &moe, err), SKEP_OK);
    skep_status rc =
        skep_switch_moe_forward(moe, &b.x->dl_tensor, b.scores, false, &pass, &y, &loss, err);
    if (rc == SKEP_OK)
        skep_tensor_free(y);
    skep_switch_moe_pass_free(pass);
    skep_switch_moe_free(moe);
    batch_free(&b);
    return rc;
}

/* ---- nobody (B71) */

static void expect_sentence(const struct skep_error *err, skep_status status, const char *prefix)
{
    char where[64];
    const char *const parts[] = {where, " ms ("};

    snprintf(where, sizeof(where), "[2, 2]: no expert found in swarm %s within ", own_swarm());
    assert_int_equal(err->status, status);
    assert_non_null(strstr(err->message, prefix));
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strstr(err->message, parts[i]) == NULL)
            fail_msg("said \"%s\", expected \"%s\" in it", err->message, parts[i]);
    const char *why = status == SKEP_NOT_FOUND ? "nobody serves one" : "no DHT peer answers";
    assert_non_null(strstr(err->message, why));
}

static void expect_nobody(struct skep_client *client, const char *prefix, skep_status status)
{
    struct skep_beam_search *found;
    struct skep_error err = {0};
    struct skep_moe_options moe;
    struct skep_switch_moe_options switch_moe;
    size_t answers[SAMPLES];

    if (search(client, prefix, false, 0, &found, &err) != SKEP_OK)
        fail_msg("beam search: %s", err.message);
    for (size_t s = 0; s < SAMPLES; s++)
        assert_int_equal(skep_beam_search_count(found, s), 0);
    assert_int_equal(skep_beam_search_partial(found, &err), status != SKEP_NOT_FOUND);
    if (status != SKEP_NOT_FOUND)
        expect_sentence(&err, status, prefix);
    skep_beam_search_free(found);

    skep_moe_options_init(&moe);
    moe.grid = grid_of(prefix);
    assert_int_equal(run_mixture(client, &moe, answers, &err), status);
    expect_sentence(&err, status, prefix);
    skep_switch_moe_options_init(&switch_moe);
    switch_moe.moe.grid = grid_of(prefix);
    assert_int_equal(run_switch(client, &switch_moe, &err), status);
    expect_sentence(&err, status, prefix);

    moe.allow_missing = switch_moe.moe.allow_missing = true; /* whoever asks for it gets zeros */
    assert_int_equal(run_mixture(client, &moe, answers, &err), SKEP_OK);
    for (size_t s = 0; s < SAMPLES; s++)
        assert_int_equal(answers[s], 0);
    assert_int_equal(run_switch(client, &switch_moe, &err), SKEP_OK);
}

static void an_empty_swarm_has_nobody(void **state)
{
    (void)state;
    struct skep_client *client = fake_client(net_port(&peer));

    expect_nobody(client, "ffn.", SKEP_NOT_FOUND);
    skep_client_free(client);
}

static void a_wrong_prefix_has_nobody(void **state)
{
    (void)state;
    struct skep_client *client = fake_client(net_port(&node.net));

    assert_true(NET_UNTIL(count_found(client, "ffn.", false) == EXPERTS));
    expect_nobody(client, "wrong.", SKEP_NOT_FOUND);
    skep_client_free(client);
}

static void experts_that_have_all_expired_are_nobody(void **state)
{
    (void)state;
    struct skep_client *client = fake_client(net_port(&peer));

    declare_row(&peer, "old.0.", 7001, 5);
    assert_int_equal(net_declare_expert(&peer, "old.0.1", 7001, 5, false), SKEP_OK);
    assert_true(NET_UNTIL(count_found(client, "old.", true) == SIDE));
    assert_true(NET_UNTIL(count_found(client, "old.", true) == 0));
    expect_nobody(client, "old.", SKEP_NOT_FOUND);
    skep_client_free(client);
}

/* A peer that is not there: an empty answer and an error that tells it from the above, and all
 * ends long before the time that it may take. */
static void without_a_peer_nobody_could_be_asked(void **state)
{
    (void)state;
    struct skep_client_options options;
    struct skep_client *client;
    struct skep_error err;
    char text[32];
    const char *peers[] = {text};
    uint16_t port;

    close(udp_delay_socket(&port));
    snprintf(text, sizeof(text), "127.0.0.1:%u", (unsigned)port);
    skep_client_options_init(&options);
    options.swarm = own_swarm();
    options.initial_peers = peers;
    options.initial_peer_count = 1;
    options.timeout_ms = FAKE_PATIENCE_MS;
    if (skep_client_new(&options, &client, &err) != SKEP_OK)
        fail_msg("client: %s", err.message);
    uint64_t deadline_us = clock_deadline_us(FAKE_PATIENCE_MS);
    expect_nobody(client, "ffn.", SKEP_UNAVAILABLE);
    assert_true(clock_mono_us() < deadline_us);
    skep_client_free(client);
}

/* ---- too slow (B72) */

/* A client that has joined by a way to the node that becomes slow then. With `knows_prefix` it
 * knows what is alive under "half.0."; of these experts there are no records, which might have come
 * to it as a peer that stores some. */
static struct skep_client *slow_client(struct udp_delay *way, bool knows_prefix)
{
    udp_delay_start(way, net_port(&node.net));
    struct skep_client *client = fake_client(way->port);
    if (knows_prefix) {
        declare_row(&node.net, "half.0.", node.cutter.port, 600);
        assert_true(NET_UNTIL(count_found(client, "half.", true) == SIDE));
    }
    atomic_store(&way->delay_ms, FAKE_PATIENCE_MS);
    return client;
}

static void end_slow(struct udp_delay *way, struct skep_client *client)
{
    skep_client_free(client);
    udp_delay_stop(way);
}

static void a_search_ends_by_its_deadline_before_the_dht_has_answered(void **state)
{
    (void)state;
    static struct udp_delay way;
    struct skep_client *client = slow_client(&way, false);
    struct skep_beam_search *found;
    struct skep_error err;

    assert_int_equal(search(client, "never.", false, 1000, &found, &err), SKEP_DEADLINE_EXCEEDED);
    assert_int_equal(way.late, 0);
    assert_null(found);
    assert_non_null(strstr(err.message, "beam search never.[2, 2]"));
    assert_non_null(strstr(err.message, "time was up"));
    end_slow(&way, client);
}

static void what_the_prefixes_said_is_used_if_nobody_confirms_it_in_time(void **state)
{
    (void)state;
    static struct udp_delay way;
    struct skep_client *client = slow_client(&way, true);
    struct skep_beam_search *found;
    struct skep_error err;

    if (search(client, "half.", false, 1000, &found, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(way.late, 0);
    assert_int_equal(skep_beam_search_count(found, 0), SIDE);
    assert_true(skep_beam_search_partial(found, &err));
    assert_int_equal(err.status, SKEP_DEADLINE_EXCEEDED);
    assert_non_null(strstr(err.message, " ms"));
    skep_beam_search_free(found);
    end_slow(&way, client);
}

/* The search is given up at half time, and what it has by then is called in the other half. The
 * whole is less than the 3 s after which OpenDHT itself gives a peer up. */
static void a_mixture_leaves_half_of_its_time_for_calls(void **state)
{
    (void)state;
    static struct udp_delay way;
    struct skep_client *client = slow_client(&way, true);
    struct skep_moe_options o;
    struct skep_error err;
    size_t answers[SAMPLES];

    skep_moe_options_init(&o);
    o.grid = grid_of("half.");
    o.forward_timeout_ms = 2800;
    if (run_mixture(client, &o, answers, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(way.late, 0);
    for (size_t s = 0; s < SAMPLES; s++)
        assert_int_equal(answers[s], SIDE);
    end_slow(&way, client);
}

/* ... and where nothing is known yet, it ends by its deadline. */
static void a_mixture_that_finds_nobody_in_time_says_so(void **state)
{
    (void)state;
    static struct udp_delay way;
    struct skep_client *client = slow_client(&way, false);
    struct skep_moe_options o;
    struct skep_error err;
    size_t answers[SAMPLES];

    skep_moe_options_init(&o);
    o.grid = grid_of("never.");
    o.forward_timeout_ms = 1000;
    assert_int_equal(run_mixture(client, &o, answers, &err), SKEP_DEADLINE_EXCEEDED);
    assert_int_equal(way.late, 0);
    assert_non_null(strstr(err.message, "mixture never.[2, 2]: no expert found in swarm test"));
    assert_non_null(strstr(err.message, "time was up"));
    end_slow(&way, client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_swarm_has_nobody),
        cmocka_unit_test(a_wrong_prefix_has_nobody),
        cmocka_unit_test(experts_that_have_all_expired_are_nobody),
        cmocka_unit_test(without_a_peer_nobody_could_be_asked),
        cmocka_unit_test(a_search_ends_by_its_deadline_before_the_dht_has_answered),
        cmocka_unit_test(what_the_prefixes_said_is_used_if_nobody_confirms_it_in_time),
        cmocka_unit_test(a_mixture_leaves_half_of_its_time_for_calls),
        cmocka_unit_test(a_mixture_that_finds_nobody_in_time_says_so),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("search_faults", tests, start, stop);
}
