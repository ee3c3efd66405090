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

/* ---- dropout and jitter, each alone */

static DLManagedTensor *run(struct skep_switch_moe *moe, const struct batch *b,
                            const DLTensor *const *scores, bool training,
                            struct skep_switch_moe_pass **pass)
{
    DLManagedTensor *y;
    double loss;
    struct skep_error err;

    if (skep_switch_moe_forward(moe, &b->x->dl_tensor, scores, training, pass, &y, &loss, &err) !=
        SKEP_OK)
        fail_msg("seed %u: switch forward: %s", seed, err.message);
    for (size_t s = 0; s < (size_t)b->samples; s++)
        assert_int_equal(skep_moe_pass_answers(skep_switch_moe_pass_choices(*pass), s), 1);
    return y;
}

static bool are_equal(const DLManagedTensor *a, const DLManagedTensor *b)
{
    for (size_t i = 0; i < fake_count(&a->dl_tensor); i++)
        if (fake_read(&a->dl_tensor, i) != fake_read(&b->dl_tensor, i))
            return false;
    return true;
}

static int64_t row_of_sample(const struct skep_switch_moe_pass *pass, size_t sample)
{
    struct skep_moe_choice c;
    struct uid uid;

    assert_true(skep_moe_pass_choice(skep_switch_moe_pass_choices(pass), sample, 0, &c));
    assert_int_equal(uid_parse(&uid, c.uid, NULL), SKEP_OK);
    return uid.coords[0];
}

/* All samples want row 2. In training it is switched off now and then, for all of a batch alike. */
static void dropout_is_of_training_only(void **state)
{
    (void)state;
    enum { PASSES = 30 }; /* that row 2 stays in all: below 1e-9 */
    struct skep_switch_moe_options o = switch_options();
    struct batch b = batch_new(8, 64);
    unsigned dropped[2] = {0, 0};

    choose_row(&b, 2);
    o.grid_keep = 0.3;
    o.jitter_eps = 0;
    struct skep_switch_moe *moe = switch_layer(&o);
    for (int training = 0; training < 2; training++)
        for (int i = 0; i < PASSES; i++) {
            struct skep_switch_moe_pass *pass;
            skep_tensor_free(run(moe, &b, b.scores, training, &pass));
            int64_t row = row_of_sample(pass, 0);
            dropped[training] += row != 2;
            for (size_t s = 1; s < 8; s++)
                assert_int_equal(row_of_sample(pass, s) != 2, row != 2);
            skep_switch_moe_pass_free(pass);
        }
    assert_int_equal(dropped[false], 0);
    assert_true(dropped[true] > 0);
    skep_switch_moe_free(moe);
    batch_free(&b);
}

/* What the projection gives for the coordinates of a sample's expert, and how far from it jitter
 * may lead at most. */
static void expect_score_near(const struct skep_switch_moe *moe, const struct batch *b,
                              const struct skep_switch_moe_pass *pass, size_t sample, double eps)
{
    const DLTensor *weight = skep_switch_moe_weight(moe), *bias = skep_switch_moe_bias(moe);
    double score = 0, most = 0;
    struct skep_moe_choice c;
    struct uid uid;

    assert_true(skep_moe_pass_choice(skep_switch_moe_pass_choices(pass), sample, 0, &c));
    assert_int_equal(uid_parse(&uid, c.uid, NULL), SKEP_OK);
    for (size_t d = 0; d < 2; d++) {
        size_t at = d * SIDE + (size_t)uid.coords[d];
        score += fake_read(bias, at);
        for (size_t n = 0; n < WIDTH; n++) {
            double part =
                fake_read(weight, at * WIDTH + n) * fake_read(&b->x->dl_tensor, sample * WIDTH + n);
            score += part;
            most += eps * fabs(part);
        }
    }
    assert_true(fabs(c.score - score) <= most + 1e-12);
}

static struct skep_switch_moe_options with_projection(void)
{
    struct skep_switch_moe_options o = switch_options();

    o.moe.in_features = WIDTH;
    o.moe.projection_dtype = (DLDataType){.code = kDLFloat, .bits = 64, .lanes = 1};
    return o;
}

static void jitter_is_of_training_only_and_stays_within_its_bounds(void **state)
{
    (void)state;
    struct skep_switch_moe_options o = with_projection();
    struct batch b = batch_new(8, 64);
    struct skep_switch_moe_pass *pass;
    DLManagedTensor *y[4];

    o.jitter_eps = 0.2; /* and nothing is dropped */
    struct skep_switch_moe *moe = switch_layer(&o);
    for (int i = 0; i < 4; i++) {
        y[i] = run(moe, &b, NULL, i >= 2, &pass);
        for (size_t s = 0; s < 8; s++)
            expect_score_near(moe, &b, pass, s, i >= 2 ? o.jitter_eps : 0);
        skep_switch_moe_pass_free(pass);
    }
    assert_true(are_equal(y[0], y[1]));
    assert_false(are_equal(y[0], y[2]));
    assert_false(are_equal(y[2], y[3]));
    for (int i = 0; i < 4; i++)
        skep_tensor_free(y[i]);
    skep_switch_moe_free(moe);
    batch_free(&b);
}

/* Without either, training changes no output; nor does jitter where there is no projection. */
static void training_alone_changes_no_output(void **state)
{
    (void)state;
    struct batch b = batch_new(8, 64);
    struct skep_switch_moe_pass *pass;

    for (int projection = 0; projection < 2; projection++) {
        struct skep_switch_moe_options o = projection ? with_projection() : switch_options();
        o.jitter_eps = projection ? 0 : 0.2;
        struct skep_switch_moe *moe = switch_layer(&o);
        DLManagedTensor *y[2];
        for (int training = 0; training < 2; training++) {
            y[training] = run(moe, &b, projection ? NULL : b.scores, training, &pass);
            skep_switch_moe_pass_free(pass);
        }
        assert_true(are_equal(y[0], y[1]));
        skep_tensor_free(y[0]);
        skep_tensor_free(y[1]);
        skep_switch_moe_free(moe);
    }
    batch_free(&b);
}

/* The whole loss of a training pass. Layers of one seed draw the same jitter and drop the same
 * coordinates, so each is used once. `weight` and `bias` replace the layer's own. */
static double training_loss(const struct skep_switch_moe_options *o, const struct batch *b,
                            const DLTensor *weight, const DLTensor *bias, double loss_weight,
                            struct skep_moe_grads *grads)
{
    struct skep_switch_moe *moe = switch_layer(o);
    struct skep_switch_moe_pass *pass;
    DLManagedTensor *y;
    double loss;
    struct skep_error err;

    for (size_t i = 0; weight != NULL && i < fake_count(weight); i++)
        fake_write((DLTensor *)skep_switch_moe_weight(moe), i, fake_read(weight, i));
    for (size_t i = 0; bias != NULL && i < fake_count(bias); i++)
        fake_write((DLTensor *)skep_switch_moe_bias(moe), i, fake_read(bias, i));
    if (skep_switch_moe_forward(moe, &b->x->dl_tensor, NULL, true, &pass, &y, &loss, &err) !=
            SKEP_OK ||
        (grads != NULL &&
         skep_switch_moe_backward(pass, &b->grad->dl_tensor, loss_weight, grads, &err) != SKEP_OK))
        fail_msg("seed %u: %s", seed, err.message);
    loss *= loss_weight;
    for (size_t i = 0; i < fake_count(&y->dl_tensor); i++)
        loss += fake_read(&y->dl_tensor, i) * fake_read(&b->grad->dl_tensor, i);
    skep_switch_moe_pass_free(pass);
    skep_tensor_free(y);
    skep_switch_moe_free(moe);
    return loss;
}

static void gradients_through_projection_jitter_and_dropout_equal_numerical_ones(void **state)
{
    (void)state;
    const double loss_weight = 0.7, step = 1e-5;
    const double settings[][2] = {{0, 1}, {0.3, 1}, {0, 0.6}, {0.3, 0.6}}; /* jitter, keep */
    struct batch b = batch_new(5, 64);

    for (size_t k = 0; k < sizeof(settings) / sizeof(settings[0]); k++) {
        struct skep_switch_moe_options o = with_projection();
        struct skep_moe_grads grads;
        o.jitter_eps = settings[k][0];
        o.grid_keep = settings[k][1];
        DLManagedTensor *weight = tensor(64, 2, 2 * SIDE, WIDTH);
        DLManagedTensor *bias = tensor(64, 1, 2 * SIDE, 0);
        DLTensor *values[3] = {&b.x->dl_tensor, &weight->dl_tensor, &bias->dl_tensor};
        training_loss(&o, &b, values[1], values[2], loss_weight, &grads);
        const DLTensor *told[3] = {&grads.x->dl_tensor, &grads.weight->dl_tensor,
                                   &grads.bias->dl_tensor};
        for (int v = 0; v < 3; v++)
            for (int n = 0; n < 8; n++) {
                size_t i = (size_t)rand() % fake_count(values[v]);
                double at = fake_read(values[v], i);
                fake_write(values[v], i, at + step);
                double up = training_loss(&o, &b, values[1], values[2], loss_weight, NULL);
                fake_write(values[v], i, at - step);
                double down = training_loss(&o, &b, values[1], values[2], loss_weight, NULL);
                fake_write(values[v], i, at);
                double slope = (up - down) / (2 * step);
                if (fabs(slope - fake_read(told[v], i)) > 1e-7 * (1 + fabs(slope)))
                    fail_msg("seed %u: jitter %g, keep %g: gradient %zu of tensor %d is %.10g, by "
                             "differences %.10g",
                             seed, o.jitter_eps, o.grid_keep, i, v, fake_read(told[v], i), slope);
            }
        skep_moe_grads_free(&grads);
        skep_tensor_free(weight);
        skep_tensor_free(bias);
    }
    batch_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(switch_gradients_equal_numerical_ones),
        TEST(utilization_follows_where_samples_go),
        TEST(switch_samples_without_an_answer_pass_as_zeros),
        TEST(switch_samples_that_need_an_answer_go_to_the_next_best),
        TEST(dropout_is_of_training_only),
        TEST(jitter_is_of_training_only_and_stays_within_its_bounds),
        TEST(training_alone_changes_no_output),
        TEST(gradients_through_projection_jitter_and_dropout_equal_numerical_ones),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("switch_moe", tests, start_swarm, stop_swarm);
}
