/* Mixture layers against experts that answer, and against experts that fail in every way. */
#include "moe_net.h"

#include <jansson.h>
#include <time.h>

#include "client/client_internal.h"

enum { NODES = 4, SIDE = 4, EXPERTS = SIDE * SIDE, WIDTH = 6, MAX_SAMPLES = 32 };

/* A 4x4 grid "ffn.", expert i on node i % NODES. */
static struct fake_node nodes[NODES];
static struct fake_expert experts[NODES][EXPERTS];
static struct skep_client *client;
static unsigned seed;

static double uniform(void)
{
    return (double)rand() / RAND_MAX * 2 - 1;
}

static struct fake_expert *expert_at(int64_t i, int64_t k)
{
    char uid[32];

    snprintf(uid, sizeof(uid), "ffn.%" PRId64 ".%" PRId64, i, k);
    return fake_find(&nodes[(i * SIDE + k) % NODES], uid);
}

static struct fake_expert *expert_of(const char *uid)
{
    struct uid parsed;

    assert_int_equal(uid_parse(&parsed, uid, NULL), SKEP_OK);
    return expert_at(parsed.coords[0], parsed.coords[1]);
}

/* ---- life: one swarm and one client for all tests, which inherits no grudges from test to test */

static void all_good(void)
{
    for (size_t n = 0; n < NODES; n++)
        for (size_t i = 0; i < nodes[n].expert_count; i++) {
            struct fake_expert *e = &nodes[n].experts[i];
            e->forward = e->backward = FAKE_GOOD;
            e->forward_calls = e->backward_calls = e->rows = 0;
        }
}

static void start_node(size_t n)
{
    size_t count = 0;

    for (size_t i = n; i < EXPERTS; i += NODES) {
        struct fake_expert *e = &experts[n][count++];
        snprintf(e->uid, sizeof(e->uid), "ffn.%zu.%zu", i / SIDE, i % SIDE);
        e->a = 0.5 + 0.5 * fabs(uniform());
        e->b = 0.3 * uniform();
    }
    fake_start(&nodes[n], n > 0 ? net_port(&nodes[0].net) : 0, experts[n], count);
}

static int start_swarm(void **state)
{
    (void)state;
    seed = (unsigned)time(NULL);
    printf("seed %u\n", seed);
    srand(seed);
    for (size_t n = 0; n < NODES; n++)
        start_node(n);
    client = fake_client(net_port(&nodes[0].net));
    return 0;
}

static int stop_swarm(void **state)
{
    (void)state;
    skep_client_free(client);
    for (size_t n = NODES; n-- > 0;)
        fake_stop(&nodes[n]);
    return 0;
}

static int forget(void **state)
{
    (void)state;
    for (size_t n = 0; n < NODES; n++)
        fake_release(&nodes[n]);
    all_good();
    pthread_mutex_lock(&client->lock);
    memset(&client->avoid, 0, sizeof(client->avoid));
    pthread_mutex_unlock(&client->lock);
    return 0;
}

/* ---- tensors */

static DLManagedTensor *tensor(unsigned bits, int ndim, int64_t n, int64_t m)
{
    DLManagedTensor *t;
    int64_t shape[2] = {n, m};
    DLDataType dtype = {.code = kDLFloat, .bits = (uint8_t)bits, .lanes = 1};

    assert_int_equal(skep_tensor_new(dtype, ndim, shape, &t, NULL), SKEP_OK);
    for (size_t i = 0; i < fake_count(&t->dl_tensor); i++)
        fake_write(&t->dl_tensor, i, uniform());
    return t;
}

/* A batch with its scores, and a fixed gradient. */
struct batch {
    int64_t samples;
    DLManagedTensor *x, *grad, *lines[2];
    const DLTensor *scores[2];
};

static struct batch batch_new(int64_t samples, unsigned bits)
{
    struct batch b = {.samples = samples};

    b.x = tensor(bits, 2, samples, WIDTH);
    b.grad = tensor(bits, 2, samples, WIDTH);
    for (int d = 0; d < 2; d++) {
        b.lines[d] = tensor(bits, 2, samples, SIDE);
        b.scores[d] = &b.lines[d]->dl_tensor;
    }
    return b;
}

static void batch_free(struct batch *b)
{
    skep_tensor_free(b->x);
    skep_tensor_free(b->grad);
    skep_tensor_free(b->lines[0]);
    skep_tensor_free(b->lines[1]);
}

/* ---- layers */

static struct skep_moe_options options(void)
{
    struct skep_moe_options o;

    skep_moe_options_init(&o);
    o.grid = (struct skep_grid){.prefix = "ffn.", .dims = 2, .sizes = {SIDE, SIDE}};
    o.beam_width = 16;
    o.forward_timeout_ms = o.backward_timeout_ms = FAKE_PATIENCE_MS;
    o.timeout_after_k_min_ms = 0;
    return o;
}

static struct skep_moe *layer(const struct skep_moe_options *o)
{
    struct skep_moe *moe;
    struct skep_error err;

    if (skep_moe_new(client, o, &moe, &err) != SKEP_OK)
        fail_msg("skep_moe_new: %s", err.message);
    return moe;
}

static struct skep_moe_pass *forward(struct skep_moe *moe, const struct batch *b,
                                     DLManagedTensor **y)
{
    struct skep_moe_pass *pass;
    struct skep_error err;

    if (skep_moe_forward(moe, &b->x->dl_tensor, b->scores, &pass, y, &err) != SKEP_OK)
        fail_msg("forward: %s", err.message);
    return pass;
}

/* Every expert published: passes until all 16 are found. */
static void wait_for_grid(void)
{
    struct skep_beam_options o;
    struct batch b = batch_new(1, 64);
    struct skep_grid grid = options().grid;
    bool all = false;

    skep_beam_options_init(&o);
    o.k = o.beam_width = EXPERTS;
    assert_true(NET_UNTIL(({
        struct skep_beam_search *s;
        if (skep_beam_search_run(client, &grid, b.scores, &o, &s, NULL) == SKEP_OK) {
            all = skep_beam_search_count(s, 0) == EXPERTS;
            skep_beam_search_free(s);
        }
        all;
    })));
    batch_free(&b);
}

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

    wait_for_grid();
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

static void weights_equal_the_golden_ones(void **state)
{
    (void)state;
    const char *base = getenv("SKEP_GOLDEN_DIR");
    char path[512];
    json_t *sample, *line, *score, *one;
    size_t n, d, c, i;
    struct skep_moe_options o = options();
    struct skep_moe *moe = layer(&o);

    snprintf(path, sizeof(path), "%s/moe/grid_4x4.json", base != NULL ? base : "tests/golden");
    json_t *root = json_load_file(path, 0, NULL);
    json_t *scenario = json_array_get(json_object_get(root, "scenarios"), 1);
    assert_string_equal(json_string_value(json_object_get(scenario, "name")), "all_alive");
    json_array_foreach(json_object_get(scenario, "samples"), n, sample)
    {
        struct batch b = batch_new(1, 64);
        DLManagedTensor *y;
        json_array_foreach(json_object_get(sample, "grid_scores"), d, line)
            json_array_foreach(line, c, score)
                fake_write(&b.lines[d]->dl_tensor, c, json_real_value(score));
        struct skep_moe_pass *pass = forward(moe, &b, &y);
        json_array_foreach(json_object_get(sample, "expected"), i, one)
        {
            struct skep_moe_choice choice;
            assert_true(skep_moe_pass_choice(pass, 0, i, &choice));
            assert_string_equal(choice.uid, json_string_value(json_object_get(one, "uid")));
            assert_true(fabs(choice.weight - json_real_value(json_object_get(one, "weight"))) <
                        1e-5);
        }
        skep_moe_pass_free(pass);
        skep_tensor_free(y);
        batch_free(&b);
    }
    json_decref(root);
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

static void break_forward(int64_t i, int64_t k, enum fake_way way)
{
    expert_at(i, k)->forward = way;
}

/* The first coordinate alone decides: for each sample the four experts of row `row` are chosen. */
static void choose_row(struct batch *b, int64_t row)
{
    for (int64_t s = 0; s < b->samples; s++)
        fake_write(&b->lines[0]->dl_tensor, (size_t)(s * SIDE + row), 50);
}

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

    choose_row(&b, 2);
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
    o.timeout_after_k_min_ms = 300;
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

/* 30% of the experts fail in one way: every sample that has a live expert succeeds, in time. */
static void a_third_of_the_experts_may_fail(void **state)
{
    static const enum fake_way ways[] = {FAKE_REFUSE, FAKE_HANG, FAKE_NAN, FAKE_WRONG_WIDTH,
                                         FAKE_LATE};
    (void)state;
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        struct skep_moe_options o = options();
        struct batch b = batch_new(MAX_SAMPLES, 32);
        DLManagedTensor *y;
        o.k_best = EXPERTS * 3 / 10 + 1; /* so each sample has a live one */
        o.timeout_after_k_min_ms = 200;
        o.forward_timeout_ms = o.backward_timeout_ms = 5000;
        for (int n = 0, broken = 0; broken < EXPERTS * 3 / 10; n++) {
            struct fake_expert *e = expert_at(rand() % SIDE, rand() % SIDE);
            broken += e->forward == FAKE_GOOD;
            e->forward = e->backward = ways[w];
        }
        struct skep_moe *moe = layer(&o);
        for (int round = 0; round < 3; round++) {
            uint64_t deadline = clock_deadline_us(2 * o.forward_timeout_ms);
            struct skep_moe_grads grads;
            struct skep_error err;
            struct skep_moe_pass *pass = NULL;
            skep_status rc = skep_moe_forward(moe, &b.x->dl_tensor, b.scores, &pass, &y, &err);
            assert_true(clock_mono_us() < deadline);
            if (rc != SKEP_OK)
                fail_msg("seed %u: %s", seed, err.message);
            for (size_t s = 0; s < MAX_SAMPLES; s++)
                assert_true(skep_moe_pass_answers(pass, s) >= 1);
            expect_output(pass, &b, y, 1e-5);
            if (skep_moe_backward(pass, &b.grad->dl_tensor, &grads, &err) != SKEP_OK)
                fail_msg("seed %u: %s", seed, err.message);
            skep_moe_grads_free(&grads);
            skep_moe_pass_free(pass);
            skep_tensor_free(y);
        }
        skep_moe_free(moe);
        batch_free(&b);
        forget(NULL);
    }
}

/* ---- switch layers */

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

#define TEST(f) cmocka_unit_test_setup(f, forget)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(outputs_equal_a_local_computation),
        TEST(samples_of_one_expert_travel_in_one_call),
        TEST(weights_equal_the_golden_ones),
        TEST(gradients_equal_numerical_ones),
        TEST(a_projection_has_gradients_of_its_own),
        TEST(experts_that_fail_in_forward_are_absent),
        TEST(experts_that_fail_in_backward_are_constants),
        TEST(k_min_decides_what_succeeds),
        TEST(stragglers_are_not_waited_for_long),
        TEST(a_backward_with_too_few_answers_fails),
        TEST(nobody_found_is_one_error_that_says_where_and_how_long),
        TEST(bad_arguments_are_named),
        TEST(masked_experts_are_never_asked),
        TEST(a_third_of_the_experts_may_fail),
        TEST(switch_gradients_equal_numerical_ones),
        TEST(utilization_follows_where_samples_go),
        TEST(switch_samples_without_an_answer_pass_as_zeros),
        TEST(dropout_and_jitter_are_of_training_only),
        TEST(a_node_that_dies_with_the_call_is_absent),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("moe", tests, start_swarm, stop_swarm);
}
