/* Switch layers. */
#include "moe_grid.h"

static struct skep_switch_moe_options switch_options(void)
{
    struct skep_switch_moe_options o;

    skep_switch_moe_options_init(&o);
    o.moe.grid = options().grid;
    o.moe.beam_width = 16;
    o.moe.seed = 1 + (uint64_t)rand();
    return o;
}

static struct skep_switch_moe *switch_layer(const struct skep_switch_moe_options *o)
{
    struct skep_switch_moe *moe;
    struct skep_error err;

    if (skep_switch_moe_new(client, o, &moe, &err) != SKEP_OK)
        fail_msg("skep_switch_moe_new: %s", err.message);
    return moe;
}

/* The whole loss: y times the fixed gradient, and the balancing loss times its weight. */
static double switch_loss(struct skep_switch_moe *moe, const struct batch *b, double weight)
{
    struct skep_switch_moe_pass *pass;
    DLManagedTensor *y;
    double loss;
    struct skep_error err;

    if (skep_switch_moe_forward(moe, &b->x->dl_tensor, b->scores, false, &pass, &y, &loss, &err) !=
        SKEP_OK)
        fail_msg("switch forward: %s", err.message);
    loss *= weight;
    for (size_t i = 0; i < fake_count(&y->dl_tensor); i++)
        loss += fake_read(&y->dl_tensor, i) * fake_read(&b->grad->dl_tensor, i);
    skep_switch_moe_pass_free(pass);
    skep_tensor_free(y);
    return loss;
}

static void switch_gradients_equal_numerical_ones(void **state)
{
    (void)state;
    const double weight = 0.7, step = 1e-5;
    struct skep_switch_moe_options o = switch_options();
    struct skep_switch_moe *moe = switch_layer(&o);
    struct batch b = batch_new(6, 64);
    struct skep_switch_moe_pass *pass;
    struct skep_moe_grads grads;
    DLManagedTensor *y;
    double loss;
    struct skep_error err;

    /* An uneven estimate first: an even one makes the balancing loss flat. */
    assert_int_equal(
        skep_switch_moe_forward(moe, &b.x->dl_tensor, b.scores, true, &pass, &y, &loss, NULL),
        SKEP_OK);
    skep_switch_moe_pass_free(pass);
    skep_tensor_free(y);
    assert_int_equal(
        skep_switch_moe_forward(moe, &b.x->dl_tensor, b.scores, false, &pass, &y, &loss, NULL),
        SKEP_OK);
    if (skep_switch_moe_backward(pass, &b.grad->dl_tensor, weight, &grads, &err) != SKEP_OK)
        fail_msg("switch backward: %s", err.message);
    DLTensor *values[3] = {&b.x->dl_tensor, &b.lines[0]->dl_tensor, &b.lines[1]->dl_tensor};
    DLTensor *told[3] = {&grads.x->dl_tensor, &grads.scores[0]->dl_tensor,
                         &grads.scores[1]->dl_tensor};
    for (int v = 0; v < 3; v++)
        for (int n = 0; n < 12; n++) {
            size_t i = (size_t)rand() % fake_count(values[v]);
            double at = fake_read(values[v], i);
            fake_write(values[v], i, at + step);
            double up = switch_loss(moe, &b, weight);
            fake_write(values[v], i, at - step);
            double down = switch_loss(moe, &b, weight);
            fake_write(values[v], i, at);
            double slope = (up - down) / (2 * step);
            if (fabs(slope - fake_read(told[v], i)) > 1e-7 * (1 + fabs(slope)))
                fail_msg("seed %u: gradient %zu of tensor %d is %.10g, by differences %.10g", seed,
                         i, v, fake_read(told[v], i), slope);
        }
    skep_moe_grads_free(&grads);
    skep_switch_moe_pass_free(pass);
    skep_tensor_free(y);
    batch_free(&b);
    skep_switch_moe_free(moe);
}

static void utilization_follows_where_samples_go(void **state)
{
    (void)state;
    struct skep_switch_moe_options o = switch_options();
    struct skep_switch_moe *moe = switch_layer(&o);
    struct batch b = batch_new(4, 64);
    struct skep_switch_moe_pass *pass;
    DLManagedTensor *y;
    double loss, even, u[SIDE];

    /* Even estimate: 1 for each dimension, whatever the scores. */
    assert_int_equal(
        skep_switch_moe_forward(moe, &b.x->dl_tensor, b.scores, false, &pass, &y, &even, NULL),
        SKEP_OK);
    skep_switch_moe_pass_free(pass);
    skep_tensor_free(y);
    assert_true(fabs(even - 2) < 1e-12);
    choose_row(&b, 2);
    assert_int_equal(
        skep_switch_moe_forward(moe, &b.x->dl_tensor, b.scores, true, &pass, &y, &loss, NULL),
        SKEP_OK);
    struct skep_moe_choice c;
    assert_true(skep_moe_pass_choice(skep_switch_moe_pass_choices(pass), 0, 0, &c));
    assert_false(skep_moe_pass_choice(skep_switch_moe_pass_choices(pass), 0, 1, &c));
    skep_switch_moe_utilization(moe, 0, u);
    assert_true(fabs(u[2] - (0.9 * 0.25 + 0.1)) < 1e-12);
    assert_true(fabs(u[0] - 0.9 * 0.25) < 1e-12);
    assert_true(loss > even); /* all in one row: the loss pushes away from it */
    skep_switch_moe_pass_free(pass);
    skep_tensor_free(y);
    batch_free(&b);
    skep_switch_moe_free(moe);
}

static void switch_samples_without_an_answer_pass_as_zeros(void **state)
{
    (void)state;
    struct skep_switch_moe_options o = switch_options();
    struct batch b = batch_new(3, 32);
    struct skep_switch_moe_pass *pass;
    DLManagedTensor *y;
    struct skep_moe_grads grads;
    double loss;

    choose_row(&b, 1);
    for (int64_t k = 0; k < SIDE; k++)
        break_forward(1, k, FAKE_ERROR);
    struct skep_switch_moe *moe = switch_layer(&o);
    assert_int_equal(
        skep_switch_moe_forward(moe, &b.x->dl_tensor, b.scores, true, &pass, &y, &loss, NULL),
        SKEP_OK);
    assert_int_equal(skep_switch_moe_backward(pass, &b.grad->dl_tensor, 0.01, &grads, NULL),
                     SKEP_OK);
    for (size_t i = 0; i < 3 * WIDTH; i++) {
        assert_true(fake_read(&y->dl_tensor, i) == 0);
        assert_true(fake_read(&grads.x->dl_tensor, i) == 0);
    }
    skep_moe_grads_free(&grads);
    skep_switch_moe_pass_free(pass);
    skep_tensor_free(y);
    skep_switch_moe_free(moe);
    batch_free(&b);
}

/* With k_min 1 the next best expert gets the sample, with its own probability. */
static void switch_samples_that_need_an_answer_go_to_the_next_best(void **state)
{
    (void)state;
    struct skep_switch_moe_options o = switch_options();
    struct batch b = batch_new(3, 64);
    struct skep_switch_moe_pass *pass;
    DLManagedTensor *y;
    struct skep_moe_choice c;
    struct skep_error err;
    double loss, u[SIDE];

    choose_row(&b, 1);
    for (size_t s = 0; s < 3; s++) {
        fake_write(&b.lines[1]->dl_tensor, s * SIDE, 3);
        fake_write(&b.lines[1]->dl_tensor, s * SIDE + 2, 2);
    }
    break_forward(1, 0, FAKE_ERROR);
    o.moe.k_min = 1;
    struct skep_switch_moe *moe = switch_layer(&o);
    if (skep_switch_moe_forward(moe, &b.x->dl_tensor, b.scores, true, &pass, &y, &loss, &err) !=
        SKEP_OK)
        fail_msg("%s", err.message);
    for (size_t s = 0; s < 3; s++) {
        double sum = 0;
        for (size_t k = 0; k < SIDE; k++)
            sum += exp(fake_read(&b.lines[1]->dl_tensor, s * SIDE + k));
        assert_int_equal(skep_moe_pass_answers(skep_switch_moe_pass_choices(pass), s), 1);
        assert_true(skep_moe_pass_choice(skep_switch_moe_pass_choices(pass), s, 0, &c));
        assert_int_equal(c.status, SKEP_INTERNAL);
        assert_true(skep_moe_pass_choice(skep_switch_moe_pass_choices(pass), s, 1, &c));
        assert_string_equal(c.uid, "ffn.1.2");
        assert_true(fabs(c.weight - exp(2) / sum) < 1e-9);
        for (size_t i = 0; i < WIDTH; i++)
            assert_true(fabs(fake_read(&y->dl_tensor, s * WIDTH + i) -
                             c.weight * fake_value(expert_at(1, 2),
                                                   fake_read(&b.x->dl_tensor, s * WIDTH + i))) <
                        1e-9);
    }
    skep_switch_moe_utilization(moe, 1, u);
    assert_true(fabs(u[2] - (0.9 * 0.25 + 0.1)) < 1e-12);
    skep_switch_moe_pass_free(pass);
    skep_tensor_free(y);
    skep_switch_moe_free(moe);
    batch_free(&b);
}

static void dropout_and_jitter_are_of_training_only(void **state)
{
    (void)state;
    struct skep_switch_moe_options o = switch_options();
    struct batch b = batch_new(8, 64);
    struct skep_switch_moe_pass *pass;
    DLManagedTensor *y[4];
    double loss;
    bool differs = false;

    o.grid_keep = 0.3;
    o.jitter_eps = 0.2;
    o.moe.in_features = WIDTH;
    o.moe.projection_dtype = (DLDataType){.code = kDLFloat, .bits = 64, .lanes = 1};
    struct skep_switch_moe *moe = switch_layer(&o);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(
            skep_switch_moe_forward(moe, &b.x->dl_tensor, NULL, i >= 2, &pass, &y[i], &loss, NULL),
            SKEP_OK);
        for (size_t s = 0; s < 8; s++)
            assert_int_equal(skep_moe_pass_answers(skep_switch_moe_pass_choices(pass), s), 1);
        skep_switch_moe_pass_free(pass);
    }
    for (size_t i = 0; i < 8 * WIDTH; i++) {
        assert_true(fake_read(&y[0]->dl_tensor, i) == fake_read(&y[1]->dl_tensor, i));
        differs = differs || fake_read(&y[2]->dl_tensor, i) != fake_read(&y[3]->dl_tensor, i);
    }
    assert_true(differs);
    for (int i = 0; i < 4; i++)
        skep_tensor_free(y[i]);
    skep_switch_moe_free(moe);
    batch_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(switch_gradients_equal_numerical_ones),
        TEST(utilization_follows_where_samples_go),
        TEST(switch_samples_without_an_answer_pass_as_zeros),
        TEST(switch_samples_that_need_an_answer_go_to_the_next_best),
        TEST(dropout_and_jitter_are_of_training_only),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("switch_moe", tests, start_swarm, stop_swarm);
}
