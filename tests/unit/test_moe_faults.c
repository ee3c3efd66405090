/* Mixtures of which 30% of the experts fail: ten experts, each on a node of its own, so that what
 * fails takes nothing else along. */
enum { MOE_NODES = 10, MOE_ROWS = 2, MOE_COLUMNS = 5 };
#define MOE_NODES MOE_NODES
#include "moe_grid.h"

enum { BROKEN = 3, K_MIN = 2, ROUNDS = 3, PASS_MS = 15000 };

/* How long answers may come after the first K_MIN. Where all of the good ones are wanted, far above
 * what they take. */
enum { STRAGGLER_MS = 200, LONG_STRAGGLER_MS = 2000 };

static const struct {
    enum fake_way way;
    const char *name;
} ways[] = {
    {FAKE_REFUSE, "refuse"},
    {FAKE_ERROR, "answer an error"},
    {FAKE_HANG, "hang"},
    {FAKE_CUT, "die in the middle of the answer"},
    {FAKE_NAN, "answer NaN"},
    {FAKE_WRONG_WIDTH, "answer a wrong shape"},
    {FAKE_WRONG_ROWS, "answer a wrong number of rows"},
    {FAKE_LATE, "answer after the deadline"},
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static struct skep_moe *moe;
static struct batch batch;
static struct fake_expert *broken[BROKEN];
static struct fake_node *broken_nodes[BROKEN];
static const char *now_failing;

static struct fake_expert *expert_number(size_t i)
{
    return expert_at((int64_t)i / MOE_COLUMNS, (int64_t)i % MOE_COLUMNS);
}

static void break_number(size_t i, size_t number, size_t way)
{
    now_failing = ways[way].name;
    broken[i] = expert_number(number);
    broken[i]->forward = broken[i]->backward = ways[way].way;
    broken_nodes[i] = &nodes[number % NODES];
}

static void break_some(size_t way)
{
    size_t order[EXPERTS];

    for (size_t i = 0; i < EXPERTS; i++)
        order[i] = i;
    for (size_t i = 0; i < BROKEN; i++) {
        size_t k = i + (size_t)rand() % (EXPERTS - i), picked = order[k];
        order[k] = order[i];
        break_number(i, picked, way);
    }
}

static void mend(void)
{
    for (size_t i = 0; i < BROKEN; i++) {
        fake_release(broken_nodes[i]);
        fake_mend(broken_nodes[i]);
    }
}

static unsigned calls_of_broken(void)
{
    unsigned calls = 0;

    for (size_t i = 0; i < BROKEN; i++)
        calls += broken[i]->forward_calls + broken[i]->backward_calls;
    return calls;
}

static void expect_good_outputs(const struct skep_moe_pass *pass, const DLManagedTensor *y)
{
    for (size_t s = 0; s < MAX_SAMPLES; s++) {
        struct skep_moe_choice c;
        for (size_t i = 0; i < WIDTH; i++) {
            double expected = 0, x = fake_read(&batch.x->dl_tensor, s * WIDTH + i);
            for (size_t r = 0; skep_moe_pass_choice(pass, s, r, &c); r++)
                expected += c.weight * fake_value(expert_of(c.uid), x);
            assert_true(fabs(fake_read(&y->dl_tensor, s * WIDTH + i) - expected) < 1e-5);
        }
    }
}

/* Of x: the sum of what each expert that answered twice gives. */
static void expect_good_gradients(const struct skep_moe_pass *pass,
                                  const struct skep_moe_grads *grads)
{
    for (size_t s = 0; s < MAX_SAMPLES; s++) {
        struct skep_moe_choice c;
        for (size_t i = 0; i < WIDTH; i++) {
            double expected = 0, x = fake_read(&batch.x->dl_tensor, s * WIDTH + i);
            for (size_t r = 0; skep_moe_pass_choice(pass, s, r, &c); r++)
                if (c.backward_status == SKEP_OK)
                    expected += c.weight * fake_slope(expert_of(c.uid), x) *
                                fake_read(&batch.grad->dl_tensor, s * WIDTH + i);
            assert_true(fabs(fake_read(&grads->x->dl_tensor, s * WIDTH + i) - expected) < 1e-5);
        }
    }
}

/* Forward and backward: both succeed, each within its deadline. @return how many answers the
 * samples got together. */
static size_t train(void)
{
    struct skep_moe_pass *pass;
    struct skep_moe_grads grads;
    struct skep_error err;
    DLManagedTensor *y;
    size_t answers = 0;

    uint64_t deadline_us = clock_deadline_us(PASS_MS);
    if (skep_moe_forward(moe, &batch.x->dl_tensor, batch.scores, &pass, &y, &err) != SKEP_OK)
        fail_msg("seed %u: experts %s: %s", seed, now_failing, err.message);
    assert_true(clock_mono_us() < deadline_us);
    for (size_t s = 0; s < MAX_SAMPLES; s++) {
        assert_true(skep_moe_pass_answers(pass, s) >= K_MIN);
        answers += skep_moe_pass_answers(pass, s);
    }
    expect_good_outputs(pass, y);
    mend(); /* what was late comes too late; connections hold again for backward */
    deadline_us = clock_deadline_us(PASS_MS);
    if (skep_moe_backward(pass, &batch.grad->dl_tensor, &grads, &err) != SKEP_OK)
        fail_msg("seed %u: experts %s: %s", seed, now_failing, err.message);
    assert_true(clock_mono_us() < deadline_us);
    assert_true(tensor_is_finite(&grads.x->dl_tensor));
    mend();
    skep_moe_grads_free(&grads);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    return answers;
}

static void start_layer(uint32_t straggler_ms)
{
    struct skep_moe_options o = options();
    struct skep_error err;

    o.k_best = BROKEN + K_MIN; /* so each sample has k_min live experts */
    o.k_min = K_MIN;
    o.backward_k_min = K_MIN;
    o.forward_timeout_ms = o.backward_timeout_ms = PASS_MS;
    o.timeout_after_k_min_ms = straggler_ms;
    if (skep_moe_new(client, &o, &moe, &err) != SKEP_OK)
        fail_msg("skep_moe_new: %s", err.message);
    batch = batch_new(MAX_SAMPLES, 32);
}

static void end_layer(void)
{
    skep_moe_free(moe);
    batch_free(&batch);
}

/* Every round falls into the trap anew: back-offs have passed. */
static void samples_with_enough_live_experts_succeed(void **state)
{
    (void)state;
    start_layer(STRAGGLER_MS);
    for (size_t w = 0; w < WAYS; w++) {
        break_some(w);
        for (int round = 0; round < ROUNDS; round++) {
            unsigned before = calls_of_broken();
            train();
            assert_true(calls_of_broken() > before);
            assert_true(NET_UNTIL(calls_under_way() == 0));
            test_time_us += BACKOFF_LONGEST_MS * UINT64_C(1000);
        }
        forget(NULL);
    }
    end_layer();
}

/* All that were chosen fail, and the next best one, too: others are asked within the pass. */
static void others_are_asked_in_the_place_of_those_that_fail(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct skep_moe_grads grads;
    struct skep_moe_pass *pass;
    struct skep_error err;
    DLManagedTensor *y;

    batch = batch_new(MAX_SAMPLES, 32);
    choose_row(&batch, 0);
    for (size_t s = 0; s < MAX_SAMPLES; s++)
        for (size_t i = 0; i < BROKEN; i++)
            fake_write(&batch.lines[1]->dl_tensor, s * MOE_COLUMNS + i, 10 - (double)i);
    o.k_best = BROKEN - 1;
    o.k_min = o.backward_k_min = 1;
    o.forward_timeout_ms = o.backward_timeout_ms = PASS_MS / 2;
    o.timeout_after_k_min_ms = STRAGGLER_MS;
    moe = layer(&o);
    for (size_t w = 0; w < WAYS; w++) {
        for (size_t i = 0; i < BROKEN; i++)
            break_number(i, i, w);
        uint64_t deadline_us = clock_deadline_us(PASS_MS / 2);
        if (skep_moe_forward(moe, &batch.x->dl_tensor, batch.scores, &pass, &y, &err) != SKEP_OK)
            fail_msg("experts %s: %s", now_failing, err.message);
        assert_true(clock_mono_us() < deadline_us);
        expect_good_outputs(pass, y);
        for (size_t s = 0; s < MAX_SAMPLES; s++) {
            struct skep_moe_choice c;
            assert_true(skep_moe_pass_answers(pass, s) >= 1);
            for (size_t r = 0; r < o.k_best; r++) {
                assert_true(skep_moe_pass_choice(pass, s, r, &c));
                assert_ptr_equal(expert_of(c.uid), broken[r]);
                assert_int_not_equal(c.status, SKEP_OK);
            }
        }
        mend();
        if (skep_moe_backward(pass, &batch.grad->dl_tensor, &grads, &err) != SKEP_OK)
            fail_msg("experts %s: %s", now_failing, err.message);
        expect_good_gradients(pass, &grads);
        skep_moe_grads_free(&grads);
        skep_moe_pass_free(pass);
        skep_tensor_free(y);
        forget(NULL);
    }
    end_layer();
}

/* ... and while they last, nobody asks those that failed, and all answers come. A queue that is
 * full once is no failure; twice in a row it is. */
static void failing_nodes_are_avoided_for_a_while(void **state)
{
    (void)state;
    start_layer(LONG_STRAGGLER_MS);
    for (size_t w = 0; w < WAYS; w++) {
        break_some(w);
        for (int times = ways[w].way == FAKE_REFUSE ? 2 : 1; times > 0; times--)
            train();
        assert_true(NET_UNTIL(calls_under_way() == 0));
        unsigned before = calls_of_broken();
        for (int round = 0; round < ROUNDS; round++)
            assert_int_equal(train(), MAX_SAMPLES * (BROKEN + K_MIN));
        if (calls_of_broken() != before)
            fail_msg("seed %u: experts %s: asked again %u times", seed, now_failing,
                     calls_of_broken() - before);
        forget(NULL);
    }
    end_layer();
}

/* One node fails again and again: each time it is avoided for twice as long; a success forgets. */
static void back_off_grows_and_is_reset_by_success(void **state)
{
    (void)state;
    uint64_t wait_us = BACKOFF_FIRST_MS * UINT64_C(1000);
    struct fake_expert *e = expert_number(0);

    start_layer(LONG_STRAGGLER_MS);
    /* It is the best one of all, for all. */
    for (size_t s = 0; s < MAX_SAMPLES; s++) {
        fake_write(&batch.lines[0]->dl_tensor, s * MOE_ROWS, 50);
        fake_write(&batch.lines[1]->dl_tensor, s * MOE_COLUMNS, 50);
    }
    break_some(0);
    for (size_t i = 0; i < BROKEN; i++)
        broken[i]->forward = broken[i]->backward = FAKE_GOOD;
    now_failing = "answer NaN";
    for (int failure = 0; failure < 4; failure++) {
        unsigned before = e->forward_calls;
        e->forward = FAKE_NAN;
        train();
        assert_int_equal(e->forward_calls, before + 1);
        test_time_us += wait_us - 1;
        train();
        assert_int_equal(e->forward_calls, before + 1);
        test_time_us += 1;
        wait_us *= 2;
    }
    e->forward = FAKE_GOOD;
    train();
    e->forward = FAKE_NAN;
    train();
    unsigned before = e->forward_calls;
    test_time_us += BACKOFF_FIRST_MS * UINT64_C(1000);
    train();
    assert_int_equal(e->forward_calls, before + 1);
    end_layer();
}

/* Keeps the client's look-ups from ending, as peers that have died with the node do for a while. */
struct blocker {
    struct net_event begun, released;
};

static void block(void *arg, const struct lookup_result *results, size_t count)
{
    struct blocker *blocker = arg;

    (void)results;
    net_event_set(&blocker->begun, count);
    (void)net_event_wait(&blocker->released, 1);
}

static void block_lookups(struct blocker *blocker)
{
    const char *uid = expert_number(EXPERTS - 1)->uid;

    net_event_init(&blocker->begun);
    net_event_init(&blocker->released);
    assert_int_equal(directory_get(swarm_directory(client->swarm), &uid, 1, 0, net_deadline(),
                                   block, blocker, NULL),
                     SKEP_OK);
    assert_true(net_event_wait(&blocker->begun, 1));
}

static void release_lookups(struct blocker *blocker)
{
    net_event_set(&blocker->released, 1);
    assert_true(NET_UNTIL(calls_under_way() == 0));
    net_event_fini(&blocker->begun);
    net_event_fini(&blocker->released);
}

/* One of the experts of every sample loses its connections, and the look-up for others that serve
 * it does not end. @return whether the pass succeeded. */
static bool pass_without_lookups(struct skep_moe *of, struct skep_error *err)
{
    struct skep_moe_pass *pass;
    struct blocker blocker;
    DLManagedTensor *y;

    pass = forward(of, &batch, &y); /* all that a search asks for is known then */
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    expert_number(0)->forward = FAKE_CUT;
    block_lookups(&blocker);
    bool good = skep_moe_forward(of, &batch.x->dl_tensor, batch.scores, &pass, &y, err) == SKEP_OK;
    release_lookups(&blocker);
    for (size_t s = 0; good && s < MAX_SAMPLES; s++) {
        struct skep_moe_choice c;
        assert_int_equal(skep_moe_pass_answers(pass, s), MOE_COLUMNS - 1);
        for (size_t r = 0; skep_moe_pass_choice(pass, s, r, &c); r++)
            assert_int_equal(c.status, strcmp(c.uid, expert_number(0)->uid) == 0 ? SKEP_UNAVAILABLE
                                                                                 : SKEP_OK);
    }
    if (good) {
        skep_moe_pass_free(pass);
        skep_tensor_free(y);
    }
    return good;
}

/* Even where stragglers are waited for until the timeout: there is nobody to wait for. */
static void who_else_serves_a_dead_nodes_expert_is_not_waited_for(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct skep_error err;

    batch = batch_new(MAX_SAMPLES, 32);
    choose_row(&batch, 0);
    o.k_best = MOE_COLUMNS;
    o.k_min = MOE_COLUMNS - 1;
    moe = layer(&o);
    if (!pass_without_lookups(moe, &err))
        fail_msg("%s", err.message);
    end_layer();
}

/* ... unless samples need it, as there are no others. */
static void a_sample_that_lacks_answers_waits_for_a_lookup(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct skep_error err;

    batch = batch_new(MAX_SAMPLES, 32);
    for (size_t n = 0; n < MAX_SAMPLES; n++) /* nobody else is to be asked instead */
        fake_write(&batch.lines[0]->dl_tensor, n * MOE_ROWS + 1, -INFINITY);
    o.k_best = o.k_min = MOE_COLUMNS;
    o.forward_timeout_ms = PASS_MS / 4;
    moe = layer(&o);
    uint64_t deadline_us = clock_deadline_us(o.forward_timeout_ms);
    assert_false(pass_without_lookups(moe, &err));
    assert_true(clock_mono_us() >= deadline_us);
    assert_non_null(strstr(err.message, expert_number(0)->uid));
    end_layer();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(samples_with_enough_live_experts_succeed),
        TEST(others_are_asked_in_the_place_of_those_that_fail),
        TEST(failing_nodes_are_avoided_for_a_while),
        TEST(back_off_grows_and_is_reset_by_success),
        TEST(who_else_serves_a_dead_nodes_expert_is_not_waited_for),
        TEST(a_sample_that_lacks_answers_waits_for_a_lookup),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("moe_faults", tests, start_swarm, stop_swarm);
}
