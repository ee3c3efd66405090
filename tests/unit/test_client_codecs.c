/* Compression from the caller's options to the node's counters, over a `nop` expert, which gives
 * back what it is sent. */
#include "unit.h"
#include "own_swarm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <skep/client.h>
#include <skep/moe.h>
#include <skep/node.h>
#include "base/tensor.h"

enum { HIDDEN = 256, ROWS = 64, NUMBERS = HIDDEN * ROWS };

struct scene {
    struct skep_node *node;
    struct skep_client *client;
    struct skep_remote_expert *expert;
    DLManagedTensor *x; /* owned; -1 to 1 */
    struct skep_node_stats before;
};

/* Settings of node and client; in each, activations then gradients. */
struct settings {
    enum skep_compression node[2], client[2];
};

static void scene_init_in(struct scene *s, struct settings settings, bool in_swarm)
{
    struct skep_node_options node;
    struct skep_client_options client;
    struct skep_expert_options expert;
    int64_t shape[2] = {ROWS, HIDDEN};
    struct skep_error err;

    skep_node_options_init(&node);

    node.swarm = own_swarm();
    node.listen = "127.0.0.1:*";
    node.no_dht = !in_swarm;
    node.no_tracker = true;
    node.compression = settings.node[0];
    node.grad_compression = settings.node[1];
    skep_expert_options_init(&expert);
    expert.cls = "nop";
    expert.hidden_dim = HIDDEN;
    if (skep_node_new(&node, &s->node, &err) != SKEP_OK ||
        skep_node_add_expert(s->node, "t.1", &expert, &err) != SKEP_OK ||
        skep_node_start(s->node, &err) != SKEP_OK)
        fail_msg("node: %s", err.message);
    skep_client_options_init(&client);
    client.swarm = own_swarm();
    const char *peer = skep_node_initial_peer(s->node);
    client.no_dht = !in_swarm;
    client.initial_peers = &peer;
    client.initial_peer_count = in_swarm ? 1 : 0;
    client.compression = settings.client[0];
    client.grad_compression = settings.client[1];
    if (skep_client_new(&client, &s->client, &err) != SKEP_OK ||
        skep_client_expert_at(s->client, "t.1", skep_node_endpoint(s->node),
                              skep_node_peer_id(s->node), &s->expert, &err) != SKEP_OK)
        fail_msg("client: %s", err.message);
    assert_int_equal(skep_tensor_new(DTYPE_F32, 2, shape, &s->x, NULL), SKEP_OK);
    float *x = skep_tensor_data(&s->x->dl_tensor);
    for (int i = 0; i < NUMBERS; i++)
        x[i] = (float)(i % 1001) / 500.0f - 1.0f;
}

static void scene_init(struct scene *s, struct settings settings)
{
    scene_init_in(s, settings, false);
}

static void scene_end(struct scene *s)
{
    skep_tensor_free(s->x);
    skep_remote_expert_free(s->expert);
    skep_client_free(s->client);
    skep_node_free(s->node);
}

/* A small call that is refused: once it is answered, all that was sent before has been counted. */
static void settle(struct scene *s)
{
    float number = 0.0f;
    int64_t shape[2] = {1, 1};
    const DLTensor wrong = {.data = &number,
                            .device = {.device_type = kDLCPU},
                            .ndim = 2,
                            .dtype = DTYPE_F32,
                            .shape = shape};
    const DLTensor *inputs[1] = {&wrong};
    DLManagedTensor *y;
    size_t count;

    assert_int_equal(skep_remote_expert_forward(s->expert, inputs, 1, NULL, &y, 1, &count, NULL),
                     SKEP_INVALID_ARGUMENT);
    skep_node_stats(s->node, &s->before);
}

/* Expects about so many bytes a number in the requests and the replies since the last time. */
static void expect_traffic(struct scene *s, double in, double out)
{
    struct skep_node_stats before = s->before;

    settle(s);
    double seen_in = (double)(s->before.bytes_in - before.bytes_in) / NUMBERS;
    double seen_out = (double)(s->before.bytes_out - before.bytes_out) / NUMBERS;
    if (fabs(seen_in - in) > 0.5 || fabs(seen_out - out) > 0.5)
        fail_msg("%.2f bytes a number in, %.2f out, expected %.2f and %.2f", seen_in, seen_out, in,
                 out);
}

static double worst_error(const struct scene *s, const DLManagedTensor *y)
{
    const float *x = skep_tensor_data(&s->x->dl_tensor);
    const float *back = skep_tensor_data(&y->dl_tensor);
    double worst = 0.0;

    assert_true(dtype_equal(y->dl_tensor.dtype, DTYPE_F32));
    assert_int_equal(y->dl_tensor.ndim, 2);
    assert_int_equal(y->dl_tensor.shape[0], ROWS);
    for (int i = 0; i < NUMBERS; i++)
        worst = fmax(worst, fabs((double)back[i] - (double)x[i]));
    return worst;
}

static double forward(struct scene *s, enum skep_compression compression)
{
    const DLTensor *inputs[1] = {&s->x->dl_tensor};
    struct skep_call_options options = {.compression = compression};
    struct skep_error err;
    DLManagedTensor *y;
    size_t count;

    if (skep_remote_expert_forward(s->expert, inputs, 1, &options, &y, 1, &count, &err) != SKEP_OK)
        fail_msg("forward: %s", err.message);
    double error = worst_error(s, y);
    skep_tensor_free(y);
    return error;
}

static double backward(struct scene *s, enum skep_compression compression,
                       enum skep_compression grad_compression)
{
    const DLTensor *inputs[1] = {&s->x->dl_tensor};
    struct skep_call_options options = {.compression = compression,
                                        .grad_compression = grad_compression};
    struct skep_error err;
    DLManagedTensor *y;
    size_t count;

    if (skep_remote_expert_backward(s->expert, inputs, 1, inputs, 1, &options, &y, 1, &count,
                                    &err) != SKEP_OK)
        fail_msg("backward: %s", err.message);
    double error = worst_error(s, y);
    skep_tensor_free(y);
    return error;
}

/* ---- */

static void each_call_may_choose(void **state)
{
    static const struct {
        enum skep_compression compression;
        double bytes, error;
    } rows[] = {
        {SKEP_COMPRESSION_DEFAULT, 4, 0},      {SKEP_COMPRESSION_NONE, 4, 0},
        {SKEP_COMPRESSION_FLOAT16, 2, 5e-4},   {SKEP_COMPRESSION_BFLOAT16, 2, 4e-3},
        {SKEP_COMPRESSION_MEANSTD16, 2, 2e-3}, {SKEP_COMPRESSION_UNIFORM8, 1, 2e-2},
        {SKEP_COMPRESSION_QUANTILE8, 1, 2e-2}, {SKEP_COMPRESSION_BLOCKWISE8, 1, 1e-2},
    };
    struct scene s = {0};

    (void)state;
    scene_init(&s, (struct settings){0});
    settle(&s); /* the handshake, too */
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double error = forward(&s, rows[i].compression);
        if (!(error <= rows[i].error) || (rows[i].error > 0 && error == 0.0))
            fail_msg("%s: error %g", skep_compression_name(rows[i].compression), error);
        expect_traffic(&s, rows[i].bytes, rows[i].bytes);
    }
    assert_int_equal(skep_client_not_compressed(s.client), 0);
    assert_int_equal(s.before.not_compressed, 0);
    scene_end(&s);
}

static void gradients_may_differ_from_activations(void **state)
{
    struct scene s = {0};

    (void)state;
    scene_init(&s, (struct settings){0});
    settle(&s);
    assert_true(backward(&s, SKEP_COMPRESSION_DEFAULT, SKEP_COMPRESSION_DEFAULT) == 0.0);
    expect_traffic(&s, 4 + 4, 4);
    assert_true(backward(&s, SKEP_COMPRESSION_FLOAT16, SKEP_COMPRESSION_DEFAULT) == 0.0);
    expect_traffic(&s, 2 + 4, 4);
    assert_true(backward(&s, SKEP_COMPRESSION_NONE, SKEP_COMPRESSION_BLOCKWISE8) > 0.0);
    expect_traffic(&s, 4 + 1, 1);
    assert_true(backward(&s, SKEP_COMPRESSION_FLOAT16, SKEP_COMPRESSION_UNIFORM8) > 0.0);
    expect_traffic(&s, 2 + 1, 1);
    scene_end(&s);
}

static void the_client_decides_where_the_call_does_not(void **state)
{
    struct scene s = {0};

    (void)state;
    scene_init(&s,
               (struct settings){.client = {SKEP_COMPRESSION_FLOAT16, SKEP_COMPRESSION_UNIFORM8}});
    settle(&s);
    forward(&s, SKEP_COMPRESSION_DEFAULT);
    expect_traffic(&s, 2, 2);
    backward(&s, SKEP_COMPRESSION_DEFAULT, SKEP_COMPRESSION_DEFAULT);
    expect_traffic(&s, 2 + 1, 1);
    assert_true(forward(&s, SKEP_COMPRESSION_NONE) == 0.0);
    expect_traffic(&s, 4, 4);
    scene_end(&s);
}

static void the_node_decides_where_the_caller_does_not(void **state)
{
    struct scene s = {0};

    (void)state;
    scene_init(&s,
               (struct settings){.node = {SKEP_COMPRESSION_BLOCKWISE8, SKEP_COMPRESSION_BFLOAT16}});
    settle(&s);
    forward(&s, SKEP_COMPRESSION_DEFAULT);
    expect_traffic(&s, 4, 1);
    backward(&s, SKEP_COMPRESSION_DEFAULT, SKEP_COMPRESSION_DEFAULT);
    expect_traffic(&s, 4 + 4, 2);
    assert_true(forward(&s, SKEP_COMPRESSION_NONE) == 0.0);
    expect_traffic(&s, 4, 4);
    scene_end(&s);
}

static void requests_follow_the_schema_once_it_is_known(void **state)
{
    struct scene s = {0};
    struct skep_expert_info info;
    struct skep_error err;

    (void)state;
    scene_init(&s,
               (struct settings){.node = {SKEP_COMPRESSION_FLOAT16, SKEP_COMPRESSION_BLOCKWISE8}});
    if (skep_remote_expert_info(s.expert, 0, &info, &err) != SKEP_OK)
        fail_msg("info: %s", err.message);
    assert_int_equal(info.compression, SKEP_COMPRESSION_FLOAT16);
    assert_int_equal(info.grad_compression, SKEP_COMPRESSION_BLOCKWISE8);
    settle(&s);
    forward(&s, SKEP_COMPRESSION_DEFAULT);
    expect_traffic(&s, 2, 2);
    backward(&s, SKEP_COMPRESSION_DEFAULT, SKEP_COMPRESSION_DEFAULT);
    expect_traffic(&s, 2 + 1, 1);
    assert_true(forward(&s, SKEP_COMPRESSION_NONE) == 0.0);
    expect_traffic(&s, 4, 4);
    scene_end(&s);
}

/* One pass of a mixture there and back, over the one expert. */
static void pass_of_mixture(struct scene *s, struct skep_moe *moe)
{
    static float scores[ROWS * 2]; /* of coordinates 0 and 1 */
    int64_t shape[2] = {ROWS, 2};
    const DLTensor line = {.data = scores,
                           .device = {.device_type = kDLCPU},
                           .ndim = 2,
                           .dtype = DTYPE_F32,
                           .shape = shape};
    const DLTensor *const lines[1] = {&line};
    struct skep_moe_pass *pass;
    struct skep_moe_grads grads;
    DLManagedTensor *y;
    struct skep_error err;

    if (skep_moe_forward(moe, &s->x->dl_tensor, lines, &pass, &y, &err) != SKEP_OK ||
        skep_moe_backward(pass, &s->x->dl_tensor, &grads, &err) != SKEP_OK)
        fail_msg("mixture: %s", err.message);
    skep_moe_grads_free(&grads);
    skep_moe_pass_free(pass);
    skep_tensor_free(y);
}

static void mixtures_follow_the_schema_as_answers_show_it(void **state)
{
    struct scene s = {0};
    struct skep_moe_options options;
    struct skep_moe *moe = NULL;
    struct skep_error err;

    (void)state;
    scene_init_in(
        &s, (struct settings){.node = {SKEP_COMPRESSION_FLOAT16, SKEP_COMPRESSION_BLOCKWISE8}},
        true);
    skep_moe_options_init(&options);
    options.grid = (struct skep_grid){.prefix = "t.", .dims = 1, .sizes = {2}};
    if (skep_node_wait_ready(s.node, 10000, &err) != SKEP_OK ||
        skep_moe_new(s.client, &options, &moe, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    settle(&s);
    struct skep_client_stats before, after;
    skep_client_stats(s.client, &before);
    pass_of_mixture(&s, moe); /* the gradient goes as it is; that of the inputs comes back short */
    expect_traffic(&s, 4 + (2 + 4), 2 + 1);
    pass_of_mixture(&s, moe);
    expect_traffic(&s, 2 + (2 + 1), 2 + 1);
    skep_client_stats(s.client, &after);
    assert_int_equal(after.requests - before.requests, 2 * 2 + 2); /* and those of settle() */
    skep_moe_free(moe);

    /* But for what the layer says. */
    options.compression = options.grad_compression = SKEP_COMPRESSION_NONE;
    assert_int_equal(skep_moe_new(s.client, &options, &moe, &err), SKEP_OK);
    pass_of_mixture(&s, moe);
    expect_traffic(&s, 4 + (4 + 4), 4 + 4);
    skep_moe_free(moe);
    scene_end(&s);
}

/* What a program has asked for serves its mixtures as well. */
static void mixtures_know_what_info_has_told(void **state)
{
    struct scene s = {0};
    struct skep_moe_options options;
    struct skep_moe *moe = NULL;
    struct skep_expert_info info;
    struct skep_error err;

    (void)state;
    scene_init_in(
        &s, (struct settings){.node = {SKEP_COMPRESSION_FLOAT16, SKEP_COMPRESSION_BLOCKWISE8}},
        true);
    skep_moe_options_init(&options);
    options.grid = (struct skep_grid){.prefix = "t.", .dims = 1, .sizes = {2}};
    if (skep_node_wait_ready(s.node, 10000, &err) != SKEP_OK ||
        skep_remote_expert_info(s.expert, 0, &info, &err) != SKEP_OK ||
        skep_moe_new(s.client, &options, &moe, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    settle(&s);
    pass_of_mixture(&s, moe);
    expect_traffic(&s, 2 + (2 + 1), 2 + 1);
    skep_moe_free(moe);
    scene_end(&s);
}

static void not_finite_goes_as_float32_and_is_counted_on_both_sides(void **state)
{
    struct scene s = {0};
    const DLTensor *inputs[1];
    struct skep_call_options options = {.compression = SKEP_COMPRESSION_QUANTILE8};
    DLManagedTensor *y;
    size_t count;

    (void)state;
    scene_init(&s, (struct settings){0});
    inputs[0] = &s.x->dl_tensor;
    ((float *)s.x->dl_tensor.data)[77] = INFINITY;
    assert_int_equal(skep_remote_expert_forward(s.expert, inputs, 1, &options, &y, 1, &count, NULL),
                     SKEP_OK);
    assert_memory_equal(y->dl_tensor.data, s.x->dl_tensor.data, NUMBERS * sizeof(float));
    skep_tensor_free(y);
    skep_node_stats(s.node, &s.before);
    assert_int_equal(skep_client_not_compressed(s.client), 1);
    assert_int_equal(s.before.not_compressed, 1);
    scene_end(&s);
}

static void unknown_settings_are_refused(void **state)
{
    struct scene s = {0};
    struct skep_client_options client;
    struct skep_node_options node;
    struct skep_client *no_client;
    struct skep_node *no_node;
    struct skep_call *call;
    struct skep_error err;

    (void)state;
    scene_init(&s, (struct settings){0});
    const DLTensor *inputs[1] = {&s.x->dl_tensor};
    struct skep_call_options options = {.compression = (enum skep_compression)8};
    assert_int_equal(
        skep_remote_expert_forward_start(s.expert, inputs, 1, &options, NULL, NULL, &call, &err),
        SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "compression: 8, expected 0 to 7"));
    skep_client_options_init(&client);
    client.swarm = own_swarm();
    client.no_dht = true;
    client.grad_compression = (enum skep_compression)99;
    assert_int_equal(skep_client_new(&client, &no_client, &err), SKEP_INVALID_ARGUMENT);
    assert_null(no_client);
    skep_node_options_init(&node);
    node.swarm = own_swarm();
    node.compression = (enum skep_compression)99;
    assert_int_equal(skep_node_new(&node, &no_node, &err), SKEP_INVALID_ARGUMENT);
    scene_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_may_choose),
        cmocka_unit_test(gradients_may_differ_from_activations),
        cmocka_unit_test(the_client_decides_where_the_call_does_not),
        cmocka_unit_test(the_node_decides_where_the_caller_does_not),
        cmocka_unit_test(requests_follow_the_schema_once_it_is_known),
        cmocka_unit_test(mixtures_follow_the_schema_as_answers_show_it),
        cmocka_unit_test(mixtures_know_what_info_has_told),
        cmocka_unit_test(not_finite_goes_as_float32_and_is_counted_on_both_sides),
        cmocka_unit_test(unknown_settings_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
