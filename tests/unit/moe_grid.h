/* A grid "ffn." on several nodes and a client: what the tests of mixture layers share. 4x4 on four
 * nodes, unless MOE_NODES, MOE_ROWS and MOE_COLUMNS say otherwise. */
#ifndef SKEP_TESTS_MOE_GRID_H
#define SKEP_TESTS_MOE_GRID_H

#include "moe_net.h"

#include <time.h>

#include "client/client_internal.h"

#ifndef MOE_NODES
enum { MOE_NODES = 4, MOE_ROWS = 4, MOE_COLUMNS = 4 };
#endif
enum {
    NODES = MOE_NODES,
    SIDE = MOE_COLUMNS,
    EXPERTS = MOE_ROWS * MOE_COLUMNS,
    WIDTH = 6,
    MAX_SAMPLES = 32,
};

/* Expert i is on node i % NODES. */
static struct fake_node nodes[NODES];
static struct fake_expert experts[NODES][EXPERTS];
static struct skep_client *client;
static unsigned seed;

static inline double uniform(void)
{
    return (double)rand() / RAND_MAX * 2 - 1;
}

static inline struct fake_expert *expert_at(int64_t i, int64_t k)
{
    char uid[32];

    snprintf(uid, sizeof(uid), "ffn.%" PRId64 ".%" PRId64, i, k);
    return fake_find(&nodes[(i * SIDE + k) % NODES], uid);
}

static inline struct fake_expert *expert_of(const char *uid)
{
    struct uid parsed;

    assert_int_equal(uid_parse(&parsed, uid, NULL), SKEP_OK);
    return expert_at(parsed.coords[0], parsed.coords[1]);
}

/* A clock for back-offs: it stands still but for what a test adds. */
static _Atomic uint64_t test_time_us = 1000000;

static inline uint64_t test_clock(void)
{
    return test_time_us;
}

/* ---- life: one swarm and one client for all tests, which inherits no grudges from test to test */

static inline void all_good(void)
{
    for (size_t n = 0; n < NODES; n++)
        for (size_t i = 0; i < nodes[n].expert_count; i++) {
            struct fake_expert *e = &nodes[n].experts[i];
            e->forward = e->backward = FAKE_GOOD;
            e->forward_calls = e->backward_calls = e->rows = 0;
        }
}

static inline void start_node(size_t n)
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

static inline int stop_swarm(void **state)
{
    (void)state;
    skep_client_free(client);
    for (size_t n = NODES; n-- > 0;)
        fake_stop(&nodes[n]);
    return 0;
}

static inline uint32_t calls_under_way(void)
{
    pthread_mutex_lock(&client->lock);
    uint32_t count = client->in_flight;
    pthread_mutex_unlock(&client->lock);
    return count;
}

static inline int forget(void **state)
{
    (void)state;
    /* What was given up ends by itself, and may yet speak against its node. */
    assert_true(NET_UNTIL(calls_under_way() == 0));
    for (size_t n = 0; n < NODES; n++) {
        fake_release(&nodes[n]);
        fake_mend(&nodes[n]);
    }
    all_good();
    pthread_mutex_lock(&client->lock);
    memset(&client->backoff, 0, sizeof(client->backoff));
    client->backoff.now_us = test_clock;
    pthread_mutex_unlock(&client->lock);
    return 0;
}

/* ---- tensors */

static inline DLManagedTensor *tensor(unsigned bits, int ndim, int64_t n, int64_t m)
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

static inline struct batch batch_new(int64_t samples, unsigned bits)
{
    struct batch b = {.samples = samples};

    b.x = tensor(bits, 2, samples, WIDTH);
    b.grad = tensor(bits, 2, samples, WIDTH);
    for (int d = 0; d < 2; d++) {
        b.lines[d] = tensor(bits, 2, samples, d == 0 ? (int)MOE_ROWS : (int)MOE_COLUMNS);
        b.scores[d] = &b.lines[d]->dl_tensor;
    }
    return b;
}

static inline void batch_free(struct batch *b)
{
    skep_tensor_free(b->x);
    skep_tensor_free(b->grad);
    skep_tensor_free(b->lines[0]);
    skep_tensor_free(b->lines[1]);
}

/* ---- layers */

static inline struct skep_moe_options options(void)
{
    struct skep_moe_options o;

    skep_moe_options_init(&o);
    o.grid = (struct skep_grid){.prefix = "ffn.", .dims = 2, .sizes = {MOE_ROWS, MOE_COLUMNS}};
    o.beam_width = EXPERTS;
    o.forward_timeout_ms = o.backward_timeout_ms = FAKE_PATIENCE_MS;
    o.timeout_after_k_min_ms = 0;
    return o;
}

static inline struct skep_moe *layer(const struct skep_moe_options *o)
{
    struct skep_moe *moe;
    struct skep_error err;

    if (skep_moe_new(client, o, &moe, &err) != SKEP_OK)
        fail_msg("skep_moe_new: %s", err.message);
    return moe;
}

static inline struct skep_moe_pass *forward(struct skep_moe *moe, const struct batch *b,
                                            DLManagedTensor **y)
{
    struct skep_moe_pass *pass;
    struct skep_error err;

    if (skep_moe_forward(moe, &b->x->dl_tensor, b->scores, &pass, y, &err) != SKEP_OK)
        fail_msg("forward: %s", err.message);
    return pass;
}

static inline void break_forward(int64_t i, int64_t k, enum fake_way way)
{
    expert_at(i, k)->forward = way;
}

/* The first coordinate alone decides: for each sample the four experts of row `row` are chosen. */
static inline void choose_row(struct batch *b, int64_t row)
{
    for (int64_t s = 0; s < b->samples; s++)
        fake_write(&b->lines[0]->dl_tensor, (size_t)(s * MOE_ROWS + row), 50);
}

/* Waits until all experts are found. */
static inline void wait_for_grid(void)
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

static inline int start_swarm(void **state)
{
    (void)state;
    seed = (unsigned)time(NULL);
    printf("seed %u\n", seed);
    srand(seed);
    for (size_t n = 0; n < NODES; n++)
        start_node(n);
    client = fake_client(net_port(&nodes[0].net));
    wait_for_grid();
    return 0;
}

#define TEST(f) cmocka_unit_test_setup(f, forget)

#endif
