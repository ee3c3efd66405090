/* Mixture layers against experts that answer, and against experts that fail in every way. */
#include "moe_grid.h"

/* What y should be, from the weights of those that answered. */
static void expect_output(const struct skep_moe_pass *pass, const struct batch *b,
                          const DLManagedTensor *y, double tolerance)
{
    for (int64_t s = 0; s < b->samples; s++) {
        double expected[WIDTH] = {0}, sum = 0;
        struct skep_moe_choice c;
        for (size_t r = 0; skep_moe_pass_choice(pass, (size_t)s, r, &c); r++)
            sum += c.status == SKEP_OK ? exp(c.score) : 0;
        for (size_t r = 0; skep_moe_pass_choice(pass, (size_t)s, r, &c); r++) {
            double weight = c.status == SKEP_OK ? exp(c.score) / sum : 0;
            assert_true(fabs(c.weight - weight) < 1e-9);
            for (int64_t i = 0; i < WIDTH; i++)
                expected[i] +=
                    weight * fake_value(expert_of(c.uid),
                                        fake_read(&b->x->dl_tensor, (size_t)(s * WIDTH + i)));
        }
        for (int64_t i = 0; i < WIDTH; i++)
            assert_true(fabs(fake_read(&y->dl_tensor, (size_t)(s * WIDTH + i)) - expected[i]) <
                        tolerance);
    }
}

/* ---- tests */

static void outputs_equal_a_local_computation(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct skep_moe *moe = layer(&o);

    for (unsigned bits = 32; bits <= 64; bits += 32) {
        struct batch b = batch_new(MAX_SAMPLES, bits);
        DLManagedTensor *y;
        struct skep_moe_pass *pass = forward(moe, &b, &y);
        for (size_t s = 0; s < MAX_SAMPLES; s++)
            assert_int_equal(skep_moe_pass_answers(pass, s), 4);
        expect_output(pass, &b, y, bits == 64 ? 1e-9 : 1e-5);
        skep_moe_pass_free(pass);
        skep_tensor_free(y);
        batch_free(&b);
    }
    skep_moe_free(moe);
}

static void samples_of_one_expert_travel_in_one_call(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct skep_moe *moe = layer(&o);
    struct batch b = batch_new(MAX_SAMPLES, 32);
    DLManagedTensor *y;
    unsigned rows = 0;

    struct skep_moe_pass *pass = forward(moe, &b, &y);
    for (size_t n = 0; n < NODES; n++)
        for (size_t i = 0; i < nodes[n].expert_count; i++) {
            assert_true(nodes[n].experts[i].forward_calls <= 1);
            rows += nodes[n].experts[i].rows;
        }
    assert_int_equal(rows, MAX_SAMPLES * 4);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    skep_moe_free(moe);

    /* Unless there are too many of them. */
    all_good();
    o.max_rows = 3;
    moe = layer(&o);
    pass = forward(moe, &b, &y);
    expect_output(pass, &b, y, 1e-5);
    for (size_t n = 0; n < NODES; n++)
        for (size_t i = 0; i < nodes[n].expert_count; i++)
            assert_int_equal(nodes[n].experts[i].forward_calls, (nodes[n].experts[i].rows + 2) / 3);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    batch_free(&b);
    skep_moe_free(moe);
}

/* The loss of a forward pass: the dot product of y and the fixed gradient. */
static double loss_of(struct skep_moe *moe, const struct batch *b, const DLTensor *const *scores)
{
    struct skep_moe_pass *pass;
    DLManagedTensor *y;
    struct skep_error err;
    double loss = 0;

    if (skep_moe_forward(moe, &b->x->dl_tensor, scores, &pass, &y, &err) != SKEP_OK)
        fail_msg("forward: %s", err.message);
    for (size_t i = 0; i < fake_count(&y->dl_tensor); i++)
        loss += fake_read(&y->dl_tensor, i) * fake_read(&b->grad->dl_tensor, i);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    return loss;
}

/* Compares a gradient with central differences of the loss, at some elements. */
static void expect_slopes(struct skep_moe *moe, const struct batch *b,
                          const DLTensor *const *scores, DLTensor *value, const DLTensor *grad,
                          const char *what)
{
    const double step = 1e-5;

    assert_int_equal(fake_count(value), fake_count(grad));
    for (int n = 0; n < 12; n++) {
        size_t i = (size_t)rand() % fake_count(value);
        double at = fake_read(value, i);
        fake_write(value, i, at + step);
        double up = loss_of(moe, b, scores);
        fake_write(value, i, at - step);
        double down = loss_of(moe, b, scores);
        fake_write(value, i, at);
        double slope = (up - down) / (2 * step), told = fake_read(grad, i);
        if (fabs(slope - told) > 1e-7 * (1 + fabs(slope)))
            fail_msg("seed %u: gradient %zu of %s is %.10g, by differences %.10g", seed, i, what,
                     told, slope);
    }
}

static void gradients_equal_numerical_ones(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct skep_moe *moe = layer(&o);
    struct batch b = batch_new(5, 64);
    struct skep_moe_grads grads;
    DLManagedTensor *y;
    struct skep_error err;

    struct skep_moe_pass *pass = forward(moe, &b, &y);
    if (skep_moe_backward(pass, &b.grad->dl_tensor, &grads, &err) != SKEP_OK)
        fail_msg("backward: %s", err.message);
    expect_slopes(moe, &b, b.scores, &b.x->dl_tensor, &grads.x->dl_tensor, "x");
    for (int d = 0; d < 2; d++)
        expect_slopes(moe, &b, b.scores, &b.lines[d]->dl_tensor, &grads.scores[d]->dl_tensor,
                      "scores");
    assert_null(grads.weight);

    /* Each expert got the gradients of its samples times its weight. */
    for (int64_t i = 0; i < EXPERTS; i++) {
        struct fake_expert *e = expert_at(i / SIDE, i % SIDE);
        double expected = 0;
        struct skep_moe_choice c;
        for (int64_t s = 0; s < b.samples; s++)
            for (size_t r = 0; skep_moe_pass_choice(pass, (size_t)s, r, &c); r++)
                for (int64_t n = 0; strcmp(c.uid, e->uid) == 0 && n < WIDTH; n++)
                    expected += c.weight * fake_read(&b.grad->dl_tensor, (size_t)(s * WIDTH + n));
        struct fake_node *node = &nodes[i % NODES];
        pthread_mutex_lock(&node->lock);
        double sum = e->grad_sum;
        pthread_mutex_unlock(&node->lock);
        if (e->backward_calls > 0)
            assert_true(fabs(sum - expected) < 1e-9);
        else
            assert_true(expected == 0);
    }
    skep_moe_grads_free(&grads);
    assert_int_equal(skep_moe_backward(pass, &b.grad->dl_tensor, &grads, &err),
                     SKEP_FAILED_PRECONDITION);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    batch_free(&b);
    skep_moe_free(moe);
}

/* Pairs of a sample and an expert are numbered in 32 bits; samples without columns cost nothing. */
static void a_batch_of_too_many_pairs_is_refused(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    o.k_best = 1024;
    o.beam_width = 0;
    struct skep_moe *moe = layer(&o);
    struct batch b = batch_new(1, 64);
    int64_t shape[2] = {(INT64_C(1) << 22) + 1, 0};
    DLTensor x = b.x->dl_tensor;
    struct skep_moe_pass *pass;
    DLManagedTensor *y;
    struct skep_error err;

    x.shape = shape;
    assert_int_equal(skep_moe_forward(moe, &x, b.scores, &pass, &y, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "pairs"));
    batch_free(&b);
    skep_moe_free(moe);
}

static void a_projection_has_gradients_of_its_own(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    o.in_features = WIDTH;
    o.projection_dtype = (DLDataType){.code = kDLFloat, .bits = 64, .lanes = 1};
    o.seed = 1 + (uint64_t)rand();
    struct skep_moe *moe = layer(&o);
    struct batch b = batch_new(5, 64);
    struct skep_moe_grads grads;
    struct skep_moe_pass *pass;
    DLManagedTensor *y;
    struct skep_error err;

    assert_int_equal(skep_moe_forward(moe, &b.x->dl_tensor, b.scores, &pass, &y, &err),
                     SKEP_INVALID_ARGUMENT);
    if (skep_moe_forward(moe, &b.x->dl_tensor, NULL, &pass, &y, &err) != SKEP_OK ||
        skep_moe_backward(pass, &b.grad->dl_tensor, &grads, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    DLTensor weight = *skep_moe_weight(moe), bias = *skep_moe_bias(moe);
    assert_int_equal(weight.shape[0], 2 * SIDE);
    assert_int_equal(weight.shape[1], WIDTH);
    expect_slopes(moe, &b, NULL, &b.x->dl_tensor, &grads.x->dl_tensor, "x");
    expect_slopes(moe, &b, NULL, &weight, &grads.weight->dl_tensor, "weight");
    expect_slopes(moe, &b, NULL, &bias, &grads.bias->dl_tensor, "bias");
    skep_moe_grads_free(&grads);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    batch_free(&b);
    skep_moe_free(moe);
}

/* ---- failures */

static const enum fake_way failures[] = {FAKE_REFUSE,     FAKE_ERROR,       FAKE_NAN,
                                         FAKE_INF,        FAKE_WRONG_WIDTH, FAKE_WRONG_ROWS,
                                         FAKE_WRONG_TYPE, FAKE_TWO_TENSORS, FAKE_NO_TENSOR};
enum { FAILURES = sizeof(failures) / sizeof(failures[0]) };

static void experts_that_fail_in_forward_are_absent(void **state)
{
    (void)state;
    struct skep_moe_options o = options();

    for (size_t f = 0; f < FAILURES; f++) {
        struct skep_moe *moe = layer(&o);
        struct batch b = batch_new(4, 64);
        struct skep_moe_grads grads;
        struct skep_error err;
        DLManagedTensor *y;
        choose_row(&b, 1);
        break_forward(1, 2, failures[f]);
        struct skep_moe_pass *pass = forward(moe, &b, &y);
        for (size_t s = 0; s < 4; s++)
            assert_int_equal(skep_moe_pass_answers(pass, s), 3);
        expect_output(pass, &b, y, 1e-9);
        assert_true(skep_moe_pass_failure(pass, &err));
        assert_non_null(strstr(err.message, "ffn.1.2"));
        assert_int_equal(skep_moe_backward(pass, &b.grad->dl_tensor, &grads, &err), SKEP_OK);
        assert_int_equal(expert_at(1, 2)->backward_calls, 0);
        for (size_t s = 0; s < 4; s++) {
            double sum = 0; /* weights add up to 1 whatever the scores: their gradients cancel */
            for (size_t c = 0; c < SIDE; c++)
                sum += fake_read(&grads.scores[1]->dl_tensor, s * SIDE + c);
            assert_true(fabs(sum) < 1e-12);
            assert_true(fake_read(&grads.scores[1]->dl_tensor, s * SIDE + 2) == 0);
        }
        skep_moe_grads_free(&grads);
        skep_moe_pass_free(pass);
        skep_tensor_free(y);
        batch_free(&b);
        skep_moe_free(moe);
        forget(NULL);
    }
}

static void experts_that_fail_in_backward_are_constants(void **state)
{
    (void)state;
    struct skep_moe_options o = options();

    for (size_t f = 0; f < FAILURES; f++) {
        struct skep_moe *moe = layer(&o);
        struct batch b = batch_new(4, 64);
        struct skep_moe_grads grads;
        struct skep_error err;
        DLManagedTensor *y;
        choose_row(&b, 1);
        expert_at(1, 2)->backward = failures[f];
        struct skep_moe_pass *pass = forward(moe, &b, &y);
        if (skep_moe_backward(pass, &b.grad->dl_tensor, &grads, &err) != SKEP_OK)
            fail_msg("backward: %s", err.message);
        for (size_t s = 0; s < 4; s++)
            for (size_t i = 0; i < WIDTH; i++) {
                double expected = 0, x = fake_read(&b.x->dl_tensor, s * WIDTH + i);
                struct skep_moe_choice c;
                for (size_t r = 0; skep_moe_pass_choice(pass, s, r, &c); r++)
                    if (strcmp(c.uid, "ffn.1.2") != 0)
                        expected += c.weight * fake_slope(expert_of(c.uid), x) *
                                    fake_read(&b.grad->dl_tensor, s * WIDTH + i);
                    else
                        assert_int_not_equal(c.backward_status, SKEP_OK);
                assert_true(fabs(fake_read(&grads.x->dl_tensor, s * WIDTH + i) - expected) < 1e-9);
            }
        /* As a constant it still has its part in the gradient of the scores. */
        assert_true(fake_read(&grads.scores[1]->dl_tensor, 2) != 0);
        skep_moe_grads_free(&grads);
        skep_moe_pass_free(pass);
        skep_tensor_free(y);
        batch_free(&b);
        skep_moe_free(moe);
        forget(NULL);
    }
}

/* Nobody but the four of row 2 may be asked. */
static void mask_other_rows(struct batch *b)
{
    for (int64_t s = 0; s < b->samples; s++)
        for (int64_t row = 0; row < SIDE; row++)
            if (row != 2)
                fake_write(&b->lines[0]->dl_tensor, (size_t)(s * SIDE + row), -INFINITY);
}

static void break_row_2(void)
{
    break_forward(2, 0, FAKE_NAN);
    break_forward(2, 1, FAKE_INF);
    break_forward(2, 2, FAKE_WRONG_WIDTH);
    break_forward(2, 3, FAKE_HANG);
}

/* B77: nothing usable at all. */
static void k_min_decides_what_succeeds(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct batch b = batch_new(3, 64);
    struct skep_moe_pass *pass = NULL;
    DLManagedTensor *y = NULL;
    struct skep_error err;

    mask_other_rows(&b);
    break_row_2();
    o.forward_timeout_ms = 1500;
    struct skep_moe *moe = layer(&o);
    assert_int_equal(skep_moe_forward(moe, &b.x->dl_tensor, b.scores, &pass, &y, &err),
                     SKEP_UNAVAILABLE);
    assert_non_null(strstr(err.message, "3 of 3 samples"));
    assert_null(pass);
    assert_null(y);
    skep_moe_free(moe);

    forget(NULL); /* so that those nodes are asked again */
    break_row_2();
    o.allow_missing = true;
    moe = layer(&o);
    pass = forward(moe, &b, &y);
    struct skep_moe_grads grads;
    assert_int_equal(skep_moe_backward(pass, &b.grad->dl_tensor, &grads, &err), SKEP_OK);
    for (size_t i = 0; i < 3 * WIDTH; i++) {
        assert_true(fake_read(&y->dl_tensor, i) == 0);
        assert_true(fake_read(&grads.x->dl_tensor, i) == 0);
    }
    skep_moe_grads_free(&grads);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    skep_moe_free(moe);
    batch_free(&b);
}

static void stragglers_are_not_waited_for_long(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct batch b = batch_new(4, 64);
    struct skep_moe_grads grads;
    struct skep_error err;
    DLManagedTensor *y;

    choose_row(&b, 3);
    break_forward(3, 1, FAKE_HANG);
    break_forward(3, 2, FAKE_LATE);
    expert_at(3, 0)->backward = FAKE_HANG;
    o.timeout_after_k_min_ms = 1000; /* enough for those that answer */
    struct skep_moe *moe = layer(&o);
    uint64_t deadline = clock_deadline_us(FAKE_PATIENCE_MS / 2);
    struct skep_moe_pass *pass = forward(moe, &b, &y);
    for (size_t s = 0; s < 4; s++)
        assert_int_equal(skep_moe_pass_answers(pass, s), 2);
    fake_release(&nodes[(3 * SIDE + 2) % NODES]); /* the late answer finds nobody */
    assert_int_equal(skep_moe_backward(pass, &b.grad->dl_tensor, &grads, &err), SKEP_OK);
    assert_true(clock_mono_us() < deadline); /* not the timeouts of forward and backward */
    skep_moe_grads_free(&grads);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);

    /* And their nodes are passed over for a while: nobody asks the one that hangs again. */
    unsigned before = expert_at(3, 1)->forward_calls;
    pass = forward(moe, &b, &y);
    assert_int_equal(expert_at(3, 1)->forward_calls, before);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);

    test_time_us += BACKOFF_FIRST_MS * UINT64_C(1000);
    pass = forward(moe, &b, &y);
    assert_int_equal(expert_at(3, 1)->forward_calls, before + 1);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    skep_moe_free(moe);
    batch_free(&b);
}

/* Of two experts of one node one is broken: the other's answers do not speak for it. */
static void a_healthy_sibling_does_not_clear_a_broken_expert(void **state)
{
    (void)state;
    const enum fake_way ways[] = {FAKE_NAN, FAKE_WRONG_WIDTH, FAKE_ERROR};
    struct skep_moe_options o = options();
    struct batch b = batch_new(MAX_SAMPLES, 32);
    struct skep_error err;
    struct skep_moe_pass *pass;
    DLManagedTensor *y;

    /* The two best of all, both of node 0. */
    for (size_t s = 0; s < MAX_SAMPLES; s++) {
        fake_write(&b.lines[0]->dl_tensor, s * SIDE, 50);
        fake_write(&b.lines[0]->dl_tensor, s * SIDE + 1, 40);
        fake_write(&b.lines[1]->dl_tensor, s * SIDE, 100);
    }
    o.k_best = 3;
    o.k_min = 1;
    o.max_rows = MAX_SAMPLES / 4; /* several calls to each */
    struct skep_moe *moe = layer(&o);
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        struct fake_expert *e = expert_at(0, 0), *sibling = expert_at(1, 0);
        e->forward = ways[w];
        for (int round = 0; round < 5; round++) {
            if (skep_moe_forward(moe, &b.x->dl_tensor, b.scores, &pass, &y, &err) != SKEP_OK)
                fail_msg("way %d: %s", (int)ways[w], err.message);
            skep_moe_pass_free(pass);
            skep_tensor_free(y);
        }
        assert_int_equal(e->forward_calls, 4); /* of the first pass */
        assert_int_equal(sibling->forward_calls, 5 * 4);
        test_time_us += BACKOFF_FIRST_MS * UINT64_C(1000);
        pass = forward(moe, &b, &y);
        assert_int_equal(e->forward_calls, 2 * 4);
        skep_moe_pass_free(pass);
        skep_tensor_free(y);
        forget(NULL);
    }
    skep_moe_free(moe);
    batch_free(&b);
}

/* The two best of a small grid answer errors, the other two are well: they are asked in the same
 * pass, and alone in those that follow. */
static void nodes_that_answer_errors_are_passed_over(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct batch b = batch_new(4, 32);
    struct skep_moe_pass *pass;
    DLManagedTensor *y;

    for (int64_t s = 0; s < 4; s++)
        for (int d = 0; d < 2; d++) {
            for (int64_t c = 2; c < SIDE; c++)
                fake_write(&b.lines[d]->dl_tensor, (size_t)(s * SIDE + c), -INFINITY);
            for (int64_t c = 0; c < 2; c++)
                fake_write(&b.lines[d]->dl_tensor, (size_t)(s * SIDE + c),
                           (d == 0 ? -10. : -1.) * (double)c);
        }
    o.k_best = 2;
    struct skep_moe *moe = layer(&o);
    break_forward(0, 0, FAKE_ERROR);
    break_forward(0, 1, FAKE_ERROR);
    for (int round = 0; round < 5; round++) {
        pass = forward(moe, &b, &y);
        assert_int_equal(skep_moe_pass_answers(pass, 0), 2);
        skep_moe_pass_free(pass);
        skep_tensor_free(y);
    }
    assert_int_equal(expert_at(0, 0)->forward_calls, 1);
    assert_int_equal(expert_at(0, 1)->forward_calls, 1);
    skep_moe_free(moe);
    batch_free(&b);
}

/* All of a grid answer errors: who is asked in the place of others fails as well, and that ends. */
static void a_pass_ends_when_there_is_nobody_more_to_ask(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct batch b = batch_new(MAX_SAMPLES, 32);
    struct skep_moe_pass *pass;
    DLManagedTensor *y;
    struct skep_error err;
    unsigned calls = 0;

    for (int64_t i = 0; i < SIDE; i++)
        for (int64_t k = 0; k < SIDE; k++)
            break_forward(i, k, FAKE_ERROR);
    o.k_best = 1;
    struct skep_moe *moe = layer(&o);
    uint64_t deadline_us = clock_deadline_us(FAKE_PATIENCE_MS / 2);
    assert_int_equal(skep_moe_forward(moe, &b.x->dl_tensor, b.scores, &pass, &y, &err),
                     SKEP_UNAVAILABLE);
    assert_true(clock_mono_us() < deadline_us);
    assert_non_null(strstr(err.message, "broken"));
    for (int64_t i = 0; i < SIDE; i++)
        for (int64_t k = 0; k < SIDE; k++)
            calls += expert_at(i, k)->forward_calls;
    assert_true(calls > EXPERTS / 2 && calls <= 5 * MAX_SAMPLES);
    skep_moe_free(moe);
    batch_free(&b);
}

static void a_backward_with_too_few_answers_fails(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct batch b = batch_new(2, 64);
    struct skep_moe_grads grads;
    struct skep_error err;
    DLManagedTensor *y;

    choose_row(&b, 0);
    for (int64_t k = 0; k < 3; k++)
        expert_at(0, k)->backward = FAKE_ERROR;
    o.backward_k_min = 2;
    struct skep_moe *moe = layer(&o);
    struct skep_moe_pass *pass = forward(moe, &b, &y);
    assert_int_equal(skep_moe_backward(pass, &b.grad->dl_tensor, &grads, &err), SKEP_UNAVAILABLE);
    assert_non_null(strstr(err.message, "backward"));
    assert_null(grads.x);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    skep_moe_free(moe);
    batch_free(&b);
}

/* B71. */
static void nobody_found_is_one_error_that_says_where_and_how_long(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct batch b = batch_new(2, 32);
    struct skep_moe_pass *pass;
    DLManagedTensor *y;
    struct skep_error err;

    o.grid.prefix = "wrong.";
    struct skep_moe *moe = layer(&o);
    assert_int_equal(skep_moe_forward(moe, &b.x->dl_tensor, b.scores, &pass, &y, &err),
                     SKEP_NOT_FOUND);
    assert_non_null(strstr(err.message, "wrong.[4, 4]"));
    assert_non_null(strstr(err.message, " ms"));
    skep_moe_free(moe);
    batch_free(&b);
}

/* ---- grids of another size */

static struct {
    unsigned lines;
    char last[256];
} heard;

static void hear(enum skep_log_level level, const char *line, void *arg)
{
    (void)arg;
    if (level != SKEP_LOG_WARNING || strstr(line, "outside") == NULL)
        return;
    heard.lines++;
    snprintf(heard.last, sizeof(heard.last), "%s", line);
}

/* B76: what lies outside is ignored with a count, and logged once. */
static void coordinates_outside_the_grid_are_counted_and_told_once(void **state)
{
    (void)state;
    const struct skep_grid grid = {.prefix = "ffn.", .dims = 2, .sizes = {SIDE, SIDE - 2}};
    struct skep_client *newcomer = fake_client(net_port(&nodes[0].net));
    struct batch b = batch_new(3, 32);
    int64_t shape[2] = {3, SIDE - 2};
    DLManagedTensor *narrow;

    assert_int_equal(skep_tensor_new(DTYPE_F32, 2, shape, &narrow, NULL), SKEP_OK);
    memset(skep_tensor_data(&narrow->dl_tensor), 0, (SIDE - 2) * 3 * sizeof(float));
    const DLTensor *scores[] = {&b.lines[0]->dl_tensor, &narrow->dl_tensor};
    memset(&heard, 0, sizeof(heard));
    skep_log_set(SKEP_LOG_WARNING, hear, NULL);
    for (int i = 0; i < 2; i++) {
        struct skep_beam_search *search;
        struct skep_error err;
        if (skep_beam_search_run(newcomer, &grid, scores, NULL, &search, &err) != SKEP_OK)
            fail_msg("%s", err.message);
        /* Two under each of the four prefixes, however many samples share these. */
        assert_int_equal(skep_beam_search_outside(search), 2 * SIDE);
        for (size_t s = 0; s < 3; s++)
            assert_int_equal(skep_beam_search_count(search, s), 4);
        skep_beam_search_free(search);
    }
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    assert_int_equal(heard.lines, 1);
    assert_non_null(strstr(heard.last, "ffn.[4, 2]"));
    skep_tensor_free(narrow);
    batch_free(&b);
    skep_client_free(newcomer);
}

static void bad_arguments_are_named(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct batch b = batch_new(2, 64);
    struct skep_moe *moe;
    struct skep_moe_pass *pass;
    DLManagedTensor *y;
    struct skep_error err;

    o.k_min = 5;
    assert_int_equal(skep_moe_new(client, &o, &moe, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "k_min 5"));
    assert_null(moe);
    o = options();
    o.grid.sizes[1] = 0;
    assert_int_equal(skep_moe_new(client, &o, &moe, &err), SKEP_INVALID_ARGUMENT);
    o = options();
    o.size++;
    assert_int_equal(skep_moe_new(client, &o, &moe, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "skep_moe_options_init"));
    assert_null(moe);
    struct skep_beam_options beam = {.size = 0, .k = 1};
    struct skep_beam_search *search;
    assert_int_equal(skep_beam_search_run(client, &o.grid, b.scores, &beam, &search, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "skep_beam_options_init"));
    assert_null(search);
    struct skep_switch_moe_options s;
    struct skep_switch_moe *switch_moe;
    skep_switch_moe_options_init(&s);
    s.moe.grid = o.grid;
    s.moe.size--;
    assert_int_equal(skep_switch_moe_new(client, &s, &switch_moe, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "skep_switch_moe_options_init"));
    assert_null(switch_moe);
    o = options();
    moe = layer(&o);
    const DLTensor *swapped[2] = {b.scores[0], &b.x->dl_tensor};
    assert_int_equal(skep_moe_forward(moe, &b.x->dl_tensor, swapped, &pass, &y, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "dimension 1"));
    fake_write(&b.x->dl_tensor, 3, NAN);
    assert_int_equal(skep_moe_forward(moe, &b.x->dl_tensor, b.scores, &pass, &y, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "NaN"));
    fake_write(&b.x->dl_tensor, 3, 0);
    pass = forward(moe, &b, &y);
    struct skep_moe_grads grads;
    fake_write(&b.grad->dl_tensor, 0, INFINITY);
    assert_int_equal(skep_moe_backward(pass, &b.grad->dl_tensor, &grads, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_int_equal(skep_moe_backward(pass, b.scores[0], &grads, &err), SKEP_INVALID_ARGUMENT);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    skep_moe_free(moe);
    batch_free(&b);
}

static void tensors_travel_as_the_layer_says(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct batch b = batch_new(4, 32);
    struct skep_moe_grads grads;
    struct skep_error err;
    DLManagedTensor *y;

    choose_row(&b, 1);
    o.compression = SKEP_COMPRESSION_FLOAT16;
    o.grad_compression = SKEP_COMPRESSION_BFLOAT16;
    struct skep_moe *moe = layer(&o);
    struct skep_moe_pass *pass = forward(moe, &b, &y);
    expect_output(pass, &b, y, 1e-2);
    assert_int_equal(skep_moe_backward(pass, &b.grad->dl_tensor, &grads, &err), SKEP_OK);
    for (int64_t k = 0; k < SIDE; k++) {
        struct fake_expert *e = expert_at(1, k);
        struct fake_node *node = &nodes[(SIDE + k) % NODES];
        pthread_mutex_lock(&node->lock);
        enum tensor_encoding seen[] = {e->came[0][0], e->wished[0], e->came[1][0], e->came[1][1],
                                       e->wished[1]};
        pthread_mutex_unlock(&node->lock);
        assert_int_equal(seen[0], ENCODING_FLOAT16);
        assert_int_equal(seen[1], ENCODING_FLOAT16);
        assert_int_equal(seen[2], ENCODING_FLOAT16);
        assert_int_equal(seen[3], ENCODING_BFLOAT16);
        assert_int_equal(seen[4], ENCODING_BFLOAT16);
    }
    skep_moe_grads_free(&grads);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    skep_moe_free(moe);
    o.compression = (enum skep_compression)99;
    assert_int_equal(skep_moe_new(client, &o, &moe, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "compression"));
    batch_free(&b);
}

static void masked_experts_are_never_asked(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct batch b = batch_new(1, 64);
    DLManagedTensor *y;

    for (size_t c = 1; c < SIDE; c++) {
        fake_write(&b.lines[0]->dl_tensor, c, -INFINITY);
        if (c > 1)
            fake_write(&b.lines[1]->dl_tensor, c, -INFINITY);
    }
    struct skep_moe *moe = layer(&o);
    struct skep_moe_pass *pass = forward(moe, &b, &y);
    unsigned calls = 0;
    for (size_t n = 0; n < NODES; n++)
        for (size_t i = 0; i < nodes[n].expert_count; i++)
            calls += nodes[n].experts[i].forward_calls;
    assert_int_equal(calls, 2);
    assert_int_equal(skep_moe_pass_answers(pass, 0), 2);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    skep_moe_free(moe);
    batch_free(&b);
}

/* The last: a node does not come back from it. */
static void a_node_that_dies_with_the_call_is_absent(void **state)
{
    (void)state;
    struct skep_moe_options o = options();
    struct batch b = batch_new(MAX_SAMPLES, 32);
    DLManagedTensor *y;

    o.k_best = SIDE + 1; /* one more than the node has */
    for (size_t i = 0; i < nodes[NODES - 1].expert_count; i++)
        nodes[NODES - 1].experts[i].forward = FAKE_DIE;
    struct skep_moe *moe = layer(&o);
    struct skep_moe_pass *pass = forward(moe, &b, &y);
    for (size_t s = 0; s < MAX_SAMPLES; s++)
        assert_true(skep_moe_pass_answers(pass, s) >= 1);
    expect_output(pass, &b, y, 1e-5);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
    skep_moe_free(moe);
    batch_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(outputs_equal_a_local_computation),
        TEST(samples_of_one_expert_travel_in_one_call),
        TEST(gradients_equal_numerical_ones),
        TEST(a_batch_of_too_many_pairs_is_refused),
        TEST(a_projection_has_gradients_of_its_own),
        TEST(experts_that_fail_in_forward_are_absent),
        TEST(experts_that_fail_in_backward_are_constants),
        TEST(k_min_decides_what_succeeds),
        TEST(stragglers_are_not_waited_for_long),
        TEST(a_healthy_sibling_does_not_clear_a_broken_expert),
        TEST(nodes_that_answer_errors_are_passed_over),
        TEST(a_pass_ends_when_there_is_nobody_more_to_ask),
        TEST(a_backward_with_too_few_answers_fails),
        TEST(nobody_found_is_one_error_that_says_where_and_how_long),
        TEST(coordinates_outside_the_grid_are_counted_and_told_once),
        TEST(bad_arguments_are_named),
        TEST(tensors_travel_as_the_layer_says),
        TEST(masked_experts_are_never_asked),
        TEST(a_node_that_dies_with_the_call_is_absent),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("moe", tests, start_swarm, stop_swarm);
}
