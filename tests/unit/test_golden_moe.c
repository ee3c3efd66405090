/* Mixtures against the golden grids: which experts a sample gets, and with what weights. Each
 * scenario is one test, on a grid of its own of experts that answer. */
#include "moe_net.h"

#include "golden_moe.h"

enum { NODES = 3, WIDTH = 4 };

static struct golden_moe golden;
static struct fake_node nodes[NODES];
static struct fake_expert experts[NODES][FAKE_EXPERTS];
static struct skep_client *client;

static void prefix_of(const struct golden_scenario *s, char prefix[static 16])
{
    snprintf(prefix, 16, "g%zu.", (size_t)(s - golden.scenarios));
}

static int start_swarm(void **state)
{
    size_t counts[NODES] = {0}, next = 0;

    (void)state;
    for (size_t i = 0; i < golden.count; i++) {
        const struct golden_scenario *s = &golden.scenarios[i];
        char prefix[16];
        json_t *uid;
        size_t k;
        prefix_of(s, prefix);
        json_array_foreach(s->alive, k, uid)
        {
            size_t n = next++ % NODES;
            assert_true(counts[n] < FAKE_EXPERTS);
            struct fake_expert *e = &experts[n][counts[n]++];
            snprintf(e->uid, sizeof(e->uid), "%s%s", prefix,
                     strchr(json_string_value(uid), '.') + 1);
            e->a = 1;
        }
    }
    for (size_t n = 0; n < NODES; n++)
        fake_start(&nodes[n], n > 0 ? net_port(&nodes[0].net) : 0, experts[n], counts[n]);
    for (size_t n = 0; n < NODES; n++)
        assert_true(nodes[n].handler == NULL ||
                    handler_wait_first_round(nodes[n].handler, net_deadline()));
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

static DLManagedTensor *tensor_new(int64_t rows, int64_t columns)
{
    DLManagedTensor *t;
    int64_t shape[2] = {rows, columns};

    assert_int_equal(skep_tensor_new(((DLDataType){kDLFloat, 64, 1}), 2, shape, &t, NULL), SKEP_OK);
    memset(skep_tensor_data(&t->dl_tensor), 0, (size_t)(rows * columns) * sizeof(double));
    return t;
}

static void expect_choices(const struct golden_scenario *s, const struct skep_moe_pass *pass,
                           size_t sample)
{
    const json_t *expected = golden_expected(s, sample);
    json_t *one;
    struct skep_moe_choice choice;
    size_t i;

    json_array_foreach(expected, i, one)
    {
        const char *uid = json_string_value(json_object_get(one, "uid"));
        double weight = json_number_value(json_object_get(one, "weight"));
        assert_true(skep_moe_pass_choice(pass, sample, i, &choice));
        assert_string_equal(strchr(choice.uid, '.'), strchr(uid, '.'));
        if (!(fabs(choice.weight - weight) < 1e-5))
            fail_msg("%s, sample %zu: %s weighs %g, expected %g", s->label, sample, uid,
                     choice.weight, weight);
    }
    assert_false(skep_moe_pass_choice(pass, sample, i, &choice));
}

static void choices_and_weights_equal_the_golden_ones(void **state)
{
    const struct golden_scenario *s = *state;
    size_t samples = json_array_size(s->samples), most = 0;
    DLManagedTensor *x = tensor_new((int64_t)samples, WIDTH), *lines[BEAM_MAX_DIMS], *y = NULL;
    const DLTensor *scores[BEAM_MAX_DIMS];
    struct skep_moe_options o;
    struct skep_moe_pass *pass = NULL;
    struct skep_moe *moe;
    struct skep_error err;
    char prefix[16];

    prefix_of(s, prefix);
    skep_moe_options_init(&o);
    o.grid = (struct skep_grid){.prefix = prefix, .dims = (int)s->dims};
    memcpy(o.grid.sizes, s->sizes, s->dims * sizeof(*s->sizes));
    o.k_best = (uint32_t)s->k;
    o.beam_width = 64; /* wide enough to be exact */
    o.forward_timeout_ms = FAKE_PATIENCE_MS;
    o.timeout_after_k_min_ms = 0;
    for (size_t d = 0; d < s->dims; d++) {
        lines[d] = tensor_new((int64_t)samples, s->sizes[d]);
        scores[d] = &lines[d]->dl_tensor;
        for (size_t i = 0; i < samples; i++)
            golden_scores(s, i, d,
                          (double *)skep_tensor_data(&lines[d]->dl_tensor) +
                              i * (size_t)s->sizes[d]);
    }
    for (size_t i = 0; i < samples; i++)
        if (json_array_size(golden_expected(s, i)) > most)
            most = json_array_size(golden_expected(s, i));
    assert_int_equal(skep_moe_new(client, &o, &moe, &err), SKEP_OK);
    skep_status rc = skep_moe_forward(moe, &x->dl_tensor, scores, &pass, &y, &err);
    if (rc != (most > 0 ? SKEP_OK : SKEP_NOT_FOUND))
        fail_msg("%s: %s", s->label, rc != SKEP_OK ? err.message : "experts that are not there");
    for (size_t i = 0; rc == SKEP_OK && i < samples; i++)
        expect_choices(s, pass, i);
    skep_moe_pass_free(pass);
    skep_moe_free(moe);
    skep_tensor_free(y);
    skep_tensor_free(x);
    for (size_t d = 0; d < s->dims; d++)
        skep_tensor_free(lines[d]);
}

int main(void)
{
    static struct CMUnitTest tests[GOLDEN_MAX_SCENARIOS];

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    golden_moe_load(&golden);
    for (size_t i = 0; i < golden.count; i++)
        tests[i] = (struct CMUnitTest){
            .name = golden.scenarios[i].label,
            .test_func = choices_and_weights_equal_the_golden_ones,
            .initial_state = &golden.scenarios[i],
        };
    int failed =
        _cmocka_run_group_tests("golden moe", tests, golden.count, start_swarm, stop_swarm);
    golden_moe_free(&golden);
    return failed;
}
