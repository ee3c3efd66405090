/* Two nodes that serve the same experts: who is asked, who is asked as well, and what happens when
 * one is slow, loaded, or dies at any moment of a call. */
#include "moe_net.h"

#include <skep/watch.h>
#include "client/client_internal.h"

enum { NODES = 2, WIDTH = 6, HEDGE_MS = 100 };

/* What the experts are for. */
enum { PLAIN, LOADED, IN_GRID, EXPERTS };
static const char *const uids[EXPERTS] = {"rep.0", "rep.1", "rep.2.0"};

static struct fake_node nodes[NODES];
static struct fake_expert experts[NODES][EXPERTS];
static char peer_ids[NODES][PEER_ID_HEX_BYTES];

/* ---- life */

static int start_swarm(void **state)
{
    (void)state;
    for (size_t n = 0; n < NODES; n++) {
        for (size_t i = 0; i < EXPERTS; i++) {
            snprintf(experts[n][i].uid, sizeof(experts[n][i].uid), "%s", uids[i]);
            experts[n][i].a = 1.0;
        }
        experts[n][LOADED].queued_tasks = experts[n][IN_GRID].queued_tasks = n == 0 ? 50 : 0;
        fake_start(&nodes[n], n > 0 ? net_port(&nodes[0].net) : 0, experts[n], EXPERTS);
        peer_id_hex(nodes[n].net.identity.peer_id, peer_ids[n]);
    }
    return 0;
}

static int stop_swarm(void **state)
{
    (void)state;
    for (size_t n = NODES; n-- > 0;)
        fake_stop(&nodes[n]);
    return 0;
}

static int all_good(void **state)
{
    (void)state;
    for (size_t n = 0; n < NODES; n++) {
        fake_release(&nodes[n]);
        fake_mend(&nodes[n]);
        cutter_cut_each(&nodes[n].cutter, CUTTER_CLIENT, CUTTER_NEVER);
        cutter_cut_each(&nodes[n].cutter, CUTTER_SERVER, CUTTER_NEVER);
        for (size_t i = 0; i < EXPERTS; i++) {
            experts[n][i].forward = experts[n][i].backward = FAKE_GOOD;
            experts[n][i].forward_calls = experts[n][i].backward_calls = 0;
        }
    }
    return 0;
}

/* A client of its own for each test: it has measured nothing. */
struct scene {
    struct skep_client *client;
    struct skep_remote_expert *expert;
    DLManagedTensor *x;
};

static struct scene scene_new(size_t expert)
{
    struct scene s = {.client = fake_client(net_port(&nodes[0].net))};
    int64_t shape[2] = {2, WIDTH};

    assert_true(NET_UNTIL(({
        skep_remote_expert_free(s.expert);
        s.expert = NULL;
        (void)!skep_client_find(s.client, uids[expert], 2000, &s.expert, NULL);
        s.expert != NULL &&skep_remote_expert_providers(s.expert, NULL, 0) == NODES;
    })));
    assert_int_equal(skep_tensor_new(DTYPE_F32, 2, shape, &s.x, NULL), SKEP_OK);
    for (size_t i = 0; i < 2 * WIDTH; i++)
        fake_write(&s.x->dl_tensor, i, 0.1 * (double)i);
    return s;
}

static void scene_end(struct scene *s)
{
    skep_tensor_free(s->x);
    skep_remote_expert_free(s->expert);
    skep_client_free(s->client);
}

static struct skep_call *start(struct scene *s, bool backward,
                               const struct skep_call_options *options)
{
    const DLTensor *x = &s->x->dl_tensor;
    struct skep_call *call = NULL;
    struct skep_error err;

    skep_status rc = backward ? skep_remote_expert_backward_start(s->expert, &x, 1, &x, 1, options,
                                                                  NULL, NULL, &call, &err)
                              : skep_remote_expert_forward_start(s->expert, &x, 1, options, NULL,
                                                                 NULL, &call, &err);
    if (rc != SKEP_OK)
        fail_msg("start: %s", err.message);
    return call;
}

/* Waits for a call, checks its answer and frees it. @param peer_id who answered; may be NULL. */
static skep_status end(struct scene *s, struct skep_call *call, char *peer_id,
                       struct skep_error *err)
{
    DLManagedTensor *y[2];
    size_t count = 0;

    assert_true(skep_call_wait(call, FAKE_PATIENCE_MS));
    skep_status rc = skep_call_result(call, y, 2, &count, err);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(fake_count(&y[i]->dl_tensor), fake_count(&s->x->dl_tensor));
        skep_tensor_free(y[i]);
    }
    assert_int_equal(count, rc == SKEP_OK ? 1 : 0);
    if (peer_id != NULL)
        memcpy(peer_id, skep_call_peer_id(call), PEER_ID_HEX_BYTES);
    skep_call_free(call);
    return rc;
}

/* Makes the client's connection to a node, so that the next call goes out at once. */
static void connect_to(struct scene *s, size_t n)
{
    struct skep_call_options options = {.peer_id = peer_ids[n]};
    struct skep_error err;

    if (end(s, start(s, false, &options), NULL, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < NODES; i++)
        experts[i][PLAIN].forward_calls = 0;
}

/* How long the nodes took to answer so far, as far as the client knows. */
static void set_latencies(struct scene *s, uint64_t first_us, uint64_t second_us)
{
    pthread_mutex_lock(&s->client->lock);
    for (size_t n = 0; n < NODES; n++) {
        uint64_t key = latency_key(nodes[n].net.identity.peer_id, "forward", uids[PLAIN]);
        latency_began(&s->client->latencies, key);
        latency_answered(&s->client->latencies, key, n == 0 ? first_us : second_us);
    }
    pthread_mutex_unlock(&s->client->lock);
}

static struct skep_client_stats stats_of(struct scene *s)
{
    struct skep_client_stats stats;

    skep_client_stats(s->client, &stats);
    return stats;
}

static unsigned calls_of(const struct fake_expert *e)
{
    return e->forward_calls;
}

/* ---- hedging */

static void a_node_that_hangs_is_overtaken(void **state)
{
    (void)state;
    struct scene s = scene_new(PLAIN);
    struct skep_call_options options = {.hedge_after_ms = HEDGE_MS, .peer_id = peer_ids[0]};
    struct skep_error err;
    char peer_id[PEER_ID_HEX_BYTES];

    experts[0][PLAIN].forward = FAKE_HANG;
    experts[1][PLAIN].forward = FAKE_LATE;
    struct skep_call *call = start(&s, false, &options);
    /* Its connection may take longer than the hedge waits. */
    assert_true(NET_UNTIL(fake_holds(&nodes[0], 1) && fake_holds(&nodes[1], 1)));
    fake_release(&nodes[1]);
    if (end(&s, call, peer_id, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    assert_string_equal(peer_id, peer_ids[1]);
    assert_int_equal(calls_of(&experts[0][PLAIN]), 1);
    assert_int_equal(calls_of(&experts[1][PLAIN]), 1);
    struct skep_client_stats stats = stats_of(&s);
    assert_int_equal(stats.calls, 1);
    assert_int_equal(stats.requests, 2);
    assert_int_equal(stats.hedges, 1);
    assert_int_equal(stats.hedge_wins, 1);
    /* Nobody waits for the other any more, and it is told. */
    assert_true(NET_UNTIL(fake_held_are_gone(&nodes[0], 1)));
    scene_end(&s);
}

/* It answers PINGs, and only this expert hangs: no node has all of a call's time to itself. */
static void without_hedging_one_node_has_half_of_the_time(void **state)
{
    (void)state;
    struct scene s = scene_new(PLAIN);
    struct skep_call_options options = {.timeout_ms = 4000, .peer_id = peer_ids[0]};
    struct skep_error err;
    char peer_id[PEER_ID_HEX_BYTES];

    connect_to(&s, 0);
    experts[0][PLAIN].forward = FAKE_HANG;
    uint64_t began_us = clock_mono_us();
    if (end(&s, start(&s, false, &options), peer_id, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    assert_true(clock_mono_us() - began_us >= options.timeout_ms * UINT64_C(1000) / 2);
    assert_string_equal(peer_id, peer_ids[1]);
    assert_int_equal(calls_of(&experts[0][PLAIN]), 1);
    assert_int_equal(stats_of(&s).hedges, 1);
    scene_end(&s);
}

/* B78: training twice is worse than not at all. */
static void a_backward_is_never_hedged(void **state)
{
    (void)state;
    struct scene s = scene_new(PLAIN);
    struct skep_call_options options = {
        .timeout_ms = 2000, .hedge_after_ms = 20, .peer_id = peer_ids[0]};
    struct skep_error err;

    connect_to(&s, 0);
    experts[0][PLAIN].backward = FAKE_HANG;
    assert_int_equal(end(&s, start(&s, true, &options), NULL, &err), SKEP_DEADLINE_EXCEEDED);
    assert_true(err.outcome_unknown);
    assert_int_equal(experts[0][PLAIN].backward_calls, 1);
    assert_int_equal(experts[1][PLAIN].backward_calls, 0);
    assert_int_equal(stats_of(&s).hedges, 0);
    scene_end(&s);
}

static void a_hedge_that_fails_leaves_the_first_its_time(void **state)
{
    (void)state;
    static const enum fake_way ways[] = {FAKE_REFUSE, FAKE_ERROR, FAKE_CUT};
    struct skep_call_options options = {.hedge_after_ms = 20, .peer_id = peer_ids[0]};

    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        struct scene s = scene_new(PLAIN);
        struct skep_error err;
        char peer_id[PEER_ID_HEX_BYTES];
        experts[0][PLAIN].forward = FAKE_LATE;
        experts[1][PLAIN].forward = ways[w];
        struct skep_call *call = start(&s, false, &options);
        assert_true(NET_UNTIL(calls_of(&experts[1][PLAIN]) >= 1));
        assert_true(
            NET_UNTIL(({ /* its failure has been taken note of */
                         pthread_mutex_lock(&s.client->lock);
                         struct latency_cost cost = latency_cost(
                             &s.client->latencies,
                             latency_key(nodes[1].net.identity.peer_id, "forward", uids[PLAIN]), 0);
                         pthread_mutex_unlock(&s.client->lock);
                         cost.waiting == 0;
            })));
        /* Its own connection may have taken longer than all that. */
        assert_true(NET_UNTIL(fake_holds(&nodes[0], 1)));
        fake_release(&nodes[0]);
        if (end(&s, call, peer_id, &err) != SKEP_OK)
            fail_msg("way %d: %s", ways[w], err.message);
        assert_string_equal(peer_id, peer_ids[0]);
        assert_int_equal(stats_of(&s).hedges, 1);
        assert_int_equal(stats_of(&s).hedge_wins, 0);
        scene_end(&s);
        all_good(NULL);
    }
}

/* Makes the expert forget all but the first node. */
static void know_only_the_first(struct skep_remote_expert *expert)
{
    struct provider_list known;

    assert_true(remote_expert_snapshot(expert, &known));
    for (size_t i = 0; i < known.count; i++)
        if (memcmp(known.items[i].peer_id, nodes[0].net.identity.peer_id, PEER_ID_BYTES) == 0)
            remote_expert_update(expert, &known.items[i], 1);
    mem_free(known.items);
    assert_int_equal(skep_remote_expert_providers(expert, NULL, 0), 1);
}

/* A look-up may miss one of two records; then this call has nobody else to ask, and the next has.
 */
static void a_second_node_is_looked_up_for_a_hedge(void **state)
{
    (void)state;
    struct scene s = scene_new(PLAIN);
    struct skep_call_options options = {.timeout_ms = 2000, .hedge_after_ms = HEDGE_MS};
    struct skep_error err;
    char peer_id[PEER_ID_HEX_BYTES] = "";

    experts[0][PLAIN].forward = FAKE_HANG;
    assert_true(NET_UNTIL(({
        know_only_the_first(s.expert);
        end(&s, start(&s, false, &options), peer_id, &err) == SKEP_OK;
    })));
    assert_string_equal(peer_id, peer_ids[1]);
    assert_true(stats_of(&s).hedges >= 1); /* or its answer came too late before */
    scene_end(&s);
}

static void both_silent_ends_in_time(void **state)
{
    (void)state;
    struct scene s = scene_new(PLAIN);
    struct skep_call_options options = {.timeout_ms = 1000, .hedge_after_ms = 50};
    struct skep_error err;

    experts[0][PLAIN].forward = experts[1][PLAIN].forward = FAKE_HANG;
    assert_int_equal(end(&s, start(&s, false, &options), NULL, &err), SKEP_DEADLINE_EXCEEDED);
    assert_int_equal(stats_of(&s).requests, 2);
    scene_end(&s);
}

static void cancelling_ends_both(void **state)
{
    (void)state;
    struct scene s = scene_new(PLAIN);
    struct skep_call_options options = {.hedge_after_ms = 20};
    struct skep_error err;

    experts[0][PLAIN].forward = experts[1][PLAIN].forward = FAKE_HANG;
    struct skep_call *call = start(&s, false, &options);
    assert_true(NET_UNTIL(calls_of(&experts[0][PLAIN]) == 1 && calls_of(&experts[1][PLAIN]) == 1));
    skep_call_cancel(call);
    assert_int_equal(end(&s, call, NULL, &err), SKEP_CANCELLED);
    scene_end(&s);
}

/* The clients' option, through a mixture. */
static void a_mixture_hedges_as_it_is_told(void **state)
{
    (void)state;
    struct scene s = scene_new(PLAIN);
    struct skep_moe_options o;
    struct skep_moe *moe;
    struct skep_moe_pass *pass = NULL;
    DLManagedTensor *y = NULL, *scores;
    int64_t shape[2] = {2, 1};
    struct skep_error err;

    skep_moe_options_init(&o);
    o.grid = (struct skep_grid){.prefix = "rep.", .dims = 1, .sizes = {1}};
    o.k_best = 1;
    o.hedge_after_ms = HEDGE_MS;
    assert_int_equal(skep_tensor_new(DTYPE_F32, 2, shape, &scores, NULL), SKEP_OK);
    fake_write(&scores->dl_tensor, 0, 0);
    fake_write(&scores->dl_tensor, 1, 0);
    const DLTensor *lines[1] = {&scores->dl_tensor};
    connect_to(&s, 0);
    connect_to(&s, 1);
    /* The one that hangs is asked first, because the other was slow so far. */
    set_latencies(&s, 1, 100000);
    experts[0][PLAIN].forward = FAKE_HANG;
    if (skep_moe_new(s.client, &o, &moe, &err) != SKEP_OK ||
        skep_moe_forward(moe, &s.x->dl_tensor, lines, &pass, &y, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(skep_moe_pass_answers(pass, 0), 1);
    assert_true(NET_UNTIL(calls_of(&experts[0][PLAIN]) == 1));
    assert_int_equal(stats_of(&s).hedge_wins, 1);

    /* Backward goes to who answered, whatever the other's pace: replicas have weights of their own.
     */
    struct skep_moe_grads grads;
    pthread_mutex_lock(&s.client->lock);
    uint64_t key = latency_key(nodes[1].net.identity.peer_id, "backward", uids[PLAIN]);
    latency_began(&s.client->latencies, key);
    latency_answered(&s.client->latencies, key, 1000000);
    memset(&s.client->backoff, 0, sizeof(s.client->backoff));
    pthread_mutex_unlock(&s.client->lock);
    if (skep_moe_backward(pass, &y->dl_tensor, &grads, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(experts[1][PLAIN].backward_calls, 1);
    assert_int_equal(experts[0][PLAIN].backward_calls, 0);
    skep_moe_grads_free(&grads);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    skep_tensor_free(scores);
    skep_moe_free(moe);
    scene_end(&s);
}

/* ---- choosing */

enum { CALLS = 40 };

/* Calls one after the other; a late node is made to answer after a while. */
static void call_many(struct scene *s, struct fake_node *late)
{
    struct skep_error err;

    for (int i = 0; i < CALLS; i++) {
        struct skep_call *call = start(s, false, NULL);
        if (!skep_call_wait(call, 1000)) /* far above what the other takes */
            fake_release(late);
        if (end(s, call, NULL, &err) != SKEP_OK)
            fail_msg("call %d: %s", i, err.message);
    }
}

static void one_slow_replica_does_not_set_the_pace(void **state)
{
    (void)state;
    struct scene s = scene_new(PLAIN);

    for (size_t slow = 0; slow < NODES; slow++) {
        experts[slow][PLAIN].forward = FAKE_LATE;
        call_many(&s, &nodes[slow]);
        assert_int_equal(calls_of(&experts[0][PLAIN]) + calls_of(&experts[1][PLAIN]), CALLS);
        if (calls_of(&experts[slow][PLAIN]) > CALLS / 4)
            fail_msg("%u of %d calls went to the slow node", calls_of(&experts[slow][PLAIN]),
                     CALLS);
        all_good(NULL);
    }
    scene_end(&s);
}

static void expect_loaded_asked_less(struct scene *s, size_t expert)
{
    call_many(s, &nodes[0]);
    if (calls_of(&experts[0][expert]) > CALLS / 4)
        fail_msg("%s: %u of %d calls went to the loaded node", uids[expert],
                 calls_of(&experts[0][expert]), CALLS);
}

static void a_loaded_replica_is_asked_less(void **state)
{
    (void)state;
    struct scene s = scene_new(LOADED);

    expect_loaded_asked_less(&s, LOADED);
    scene_end(&s);
}

static void a_loaded_replica_is_asked_less_under_a_watch(void **state)
{
    (void)state;
    struct scene s = scene_new(LOADED);
    struct skep_watch *watch;
    struct skep_error err;

    skep_remote_expert_free(s.expert);
    if (skep_watch_new(s.client, "rep.", NULL, NULL, &watch, &err) != SKEP_OK ||
        skep_watch_wait_ready(watch, FAKE_PATIENCE_MS, &err) != SKEP_OK ||
        skep_client_find(s.client, uids[LOADED], FAKE_PATIENCE_MS, &s.expert, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(skep_remote_expert_providers(s.expert, NULL, 0), NODES);
    expect_loaded_asked_less(&s, LOADED);
    skep_watch_free(watch);
    scene_end(&s);
}

/* What a search returns knows of both nodes and of their load, also if it has looked up the expert,
 * which ends with the first answer. */
static void a_loaded_replica_is_asked_less_after_a_search(void **state)
{
    (void)state;
    const struct skep_grid grid = {.prefix = "rep.", .dims = 2, .sizes = {3, 1}};
    struct skep_beam_options options;
    DLManagedTensor *scores[2];
    int64_t shapes[2][2] = {{1, 3}, {1, 1}};

    for (size_t d = 0; d < 2; d++) {
        assert_int_equal(skep_tensor_new(DTYPE_F32, 2, shapes[d], &scores[d], NULL), SKEP_OK);
        memset(skep_tensor_data(&scores[d]->dl_tensor), 0, (d == 0 ? 3 : 1) * sizeof(float));
    }
    const DLTensor *const views[] = {&scores[0]->dl_tensor, &scores[1]->dl_tensor};
    skep_beam_options_init(&options);
    options.k = 1;
    for (int unchecked = 0; unchecked < 2; unchecked++) {
        struct scene s = scene_new(IN_GRID);
        struct skep_client *cold = fake_client(net_port(&nodes[0].net));
        struct skep_remote_expert *found = s.expert;
        struct skep_beam_search *search;
        struct skep_beam_hit hit;
        struct skep_error err;
        options.unchecked = unchecked;
        if (skep_beam_search_run(cold, &grid, views, &options, &search, &err) != SKEP_OK)
            fail_msg("%s", err.message);
        assert_true(skep_beam_search_hit(search, 0, 0, &hit));
        assert_string_equal(hit.uid, uids[IN_GRID]);
        assert_int_equal(skep_remote_expert_providers(hit.expert, NULL, 0), NODES);
        s.expert = hit.expert;
        expect_loaded_asked_less(&s, IN_GRID);
        s.expert = found;
        skep_beam_search_free(search);
        skep_client_free(cold);
        scene_end(&s);
        all_good(NULL);
    }
    for (size_t d = 0; d < 2; d++)
        skep_tensor_free(scores[d]);
}

static void calls_at_once_are_spread_evenly(void **state)
{
    (void)state;
    struct scene s = scene_new(PLAIN);
    struct skep_call *calls[CALLS];
    struct skep_error err;

    set_latencies(&s, 1000, 1000); /* or the round trips of two connections would decide */
    experts[0][PLAIN].forward = experts[1][PLAIN].forward = FAKE_LATE;
    for (int i = 0; i < CALLS; i++)
        calls[i] = start(&s, false, NULL);
    assert_true(NET_UNTIL(calls_of(&experts[0][PLAIN]) + calls_of(&experts[1][PLAIN]) == CALLS));
    assert_int_equal(calls_of(&experts[0][PLAIN]), CALLS / 2);
    for (int i = 0; i < CALLS; i++) {
        NET_UNTIL(({
            fake_release(&nodes[0]);
            fake_release(&nodes[1]);
            skep_call_wait(calls[i], 1);
        }));
        if (end(&s, calls[i], NULL, &err) != SKEP_OK)
            fail_msg("%s", err.message);
    }
    scene_end(&s);
}

static void a_bad_peer_id_is_refused(void **state)
{
    (void)state;
    struct scene s = scene_new(PLAIN);
    struct skep_call_options options = {.peer_id = "abc"};
    const DLTensor *x = &s.x->dl_tensor;
    struct skep_call *call;
    struct skep_error err;

    assert_int_equal(
        skep_remote_expert_forward_start(s.expert, &x, 1, &options, NULL, NULL, &call, &err),
        SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "abc"));
    assert_null(call);
    scene_end(&s);
}

/* ---- dying at any moment (B78, B80) */

/* B78 (a): it died before the request: another takes it, and steps once. */
static void a_backward_that_was_not_sent_goes_elsewhere(void **state)
{
    (void)state;
    struct scene s = scene_new(PLAIN);
    struct skep_call_options options = {.peer_id = peer_ids[0]};
    struct skep_error err;
    char peer_id[PEER_ID_HEX_BYTES];

    cutter_cut_each(&nodes[0].cutter, CUTTER_CLIENT, 0);
    if (end(&s, start(&s, true, &options), peer_id, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    assert_string_equal(peer_id, peer_ids[1]);
    assert_int_equal(experts[0][PLAIN].backward_calls, 0);
    assert_int_equal(experts[1][PLAIN].backward_calls, 1);
    scene_end(&s);
}

/* B78 (b): it had stepped when it died: the caller is told that nobody knows, and no other steps.
 * A forward goes elsewhere. */
static void a_backward_that_may_have_stepped_does_not_go_elsewhere(void **state)
{
    (void)state;
    struct scene s = scene_new(PLAIN);
    struct skep_call_options options = {.peer_id = peer_ids[0]};
    struct skep_error err;
    char peer_id[PEER_ID_HEX_BYTES];

    experts[0][PLAIN].backward = experts[0][PLAIN].forward = FAKE_CUT;
    assert_int_equal(end(&s, start(&s, true, &options), NULL, &err), SKEP_UNAVAILABLE);
    assert_true(err.outcome_unknown);
    assert_int_equal(experts[0][PLAIN].backward_calls, 1);
    assert_int_equal(experts[1][PLAIN].backward_calls, 0);
    fake_mend(&nodes[0]);
    pthread_mutex_lock(&s.client->lock);
    memset(&s.client->backoff, 0, sizeof(s.client->backoff));
    pthread_mutex_unlock(&s.client->lock);
    if (end(&s, start(&s, false, &options), peer_id, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    assert_string_equal(peer_id, peer_ids[1]);
    assert_int_equal(calls_of(&experts[0][PLAIN]), 1);
    assert_int_equal(cutter_cuts(&nodes[0].cutter) >= 2, true);
    scene_end(&s);
}

/* One call over a connection that ends after so many bytes of a side. @return whether it succeeded;
 * *may_step tells whether its caller must think that it may have stepped. */
static bool call_over_cut(struct scene *s, enum cutter_side side, int64_t bytes, bool backward,
                          bool *may_step)
{
    struct skep_error err = {0};

    cutter_cut_each(&nodes[0].cutter, side, bytes);
    skep_status rc = end(s, start(s, backward, NULL), NULL, &err);
    if (rc != SKEP_OK && rc != SKEP_UNAVAILABLE)
        fail_msg("cut after byte %d: %s", (int)bytes, err.message);
    *may_step = backward && (rc == SKEP_OK || err.outcome_unknown);
    return rc == SKEP_OK;
}

/* B80: the connection is lost after each number of bytes: an error every time, and never more steps
 * than the caller has been told of. */
static void the_loss_of_a_connection_at_any_byte_is_an_error(void **state)
{
    (void)state;
    struct scene s = scene_new(PLAIN);
    struct fake_expert *e = &experts[0][PLAIN];
    char endpoint[32];
    unsigned told = 0;

    snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%u", (unsigned)nodes[0].cutter.port);
    skep_remote_expert_free(s.expert);
    assert_int_equal(
        skep_client_expert_at(s.client, uids[PLAIN], endpoint, peer_ids[0], &s.expert, NULL),
        SKEP_OK);
    e->steps = 0;
    for (int turn = 0; turn < 4; turn++) {
        enum cutter_side side = turn % 2 == 0 ? CUTTER_CLIENT : CUTTER_SERVER;
        int64_t bytes = 0;
        bool may_step, succeeded;
        do {
            succeeded = call_over_cut(&s, side, bytes++, turn >= 2, &may_step);
            told += may_step;
        } while (!succeeded && bytes < 4096);
        assert_true(succeeded);
        assert_true(bytes > 100); /* handshake and all */
        all_good(NULL);
    }
    scene_end(&s);
    assert_true(e->steps >= 2 && e->steps <= told);
    pthread_mutex_lock(&nodes[0].lock);
    unsigned repeats = e->repeats;
    pthread_mutex_unlock(&nodes[0].lock);
    assert_int_equal(repeats, 0);
}

#define TEST(f) cmocka_unit_test_setup(f, all_good)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_node_that_hangs_is_overtaken),
        TEST(without_hedging_one_node_has_half_of_the_time),
        TEST(a_backward_is_never_hedged),
        TEST(a_hedge_that_fails_leaves_the_first_its_time),
        TEST(a_second_node_is_looked_up_for_a_hedge),
        TEST(both_silent_ends_in_time),
        TEST(cancelling_ends_both),
        TEST(a_mixture_hedges_as_it_is_told),
        TEST(one_slow_replica_does_not_set_the_pace),
        TEST(a_loaded_replica_is_asked_less),
        TEST(a_loaded_replica_is_asked_less_under_a_watch),
        TEST(a_loaded_replica_is_asked_less_after_a_search),
        TEST(calls_at_once_are_spread_evenly),
        TEST(a_bad_peer_id_is_refused),
        TEST(a_backward_that_was_not_sent_goes_elsewhere),
        TEST(a_backward_that_may_have_stepped_does_not_go_elsewhere),
        TEST(the_loss_of_a_connection_at_any_byte_is_an_error),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("replicas", tests, start_swarm, stop_swarm);
}
