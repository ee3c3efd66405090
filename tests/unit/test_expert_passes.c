/* Forward and backward passes: for any rows, and what a step must never do. Numbers of PyTorch:
 * test_golden_experts.c. */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "expert_fixture.h"
#include "experts/workspace.h"

/* One forward into a new tensor. */
static DLManagedTensor *run_forward(struct expert *e, DLManagedTensor *x)
{
    DLManagedTensor *y = tensor_of(x->dl_tensor.shape[0], x->dl_tensor.shape[1], 99);
    struct skep_error err;

    if (expert_forward(e, &x->dl_tensor, &y->dl_tensor, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    return y;
}

static skep_status run_backward(struct expert *e, DLManagedTensor *x, DLManagedTensor *dy,
                                DLManagedTensor *dx, struct skep_error *err)
{
    return expert_backward(e, &x->dl_tensor, &dy->dl_tensor, &dx->dl_tensor, err);
}

static void steps_with_bad_gradients_change_nothing(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e30f};
    struct expert *a = create_default(3);
    struct expert *b = create_default(3);
    DLManagedTensor *x = tensor_of(ROWS, HIDDEN, 1);
    DLManagedTensor *dy = tensor_of(ROWS, HIDDEN, 2);
    DLManagedTensor *bad_dy = tensor_of(ROWS, HIDDEN, 2);
    DLManagedTensor *dx = tensor_of(ROWS, HIDDEN, 3);
    struct skep_error err;

    assert_int_equal(run_backward(a, x, dy, dx, &err), SKEP_OK);
    assert_int_equal(run_backward(b, x, dy, dx, &err), SKEP_OK);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        data_of(bad_dy)[HIDDEN + 3] = bad[i];
        assert_int_equal(run_backward(a, x, bad_dy, dx, &err), SKEP_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "no step was done"));
        assert_true(same_parameters(a, b));
    }
    assert_int_equal(expert_update_count(a), 1);
    assert_int_equal(expert_skipped_count(a), 4);
    /* The optimizer's state is the same too: the next step gives the same parameters. */
    assert_int_equal(run_backward(a, x, dy, dx, &err), SKEP_OK);
    assert_int_equal(run_backward(b, x, dy, dx, &err), SKEP_OK);
    assert_true(same_parameters(a, b));
    skep_tensor_free(x);
    skep_tensor_free(dy);
    skep_tensor_free(bad_dy);
    skep_tensor_free(dx);
    expert_free(a);
    expert_free(b);
}

static void optimizer_none_leaves_parameters_alone(void **state)
{
    (void)state;
    struct skep_expert_options o = default_options("ffn");
    DLManagedTensor *x = tensor_of(ROWS, HIDDEN, 1);
    DLManagedTensor *dx = tensor_of(ROWS, HIDDEN, 3);

    o.optimizer = "none";
    struct expert *a = create(&o);
    struct expert *b = create(&o);
    assert_int_equal(run_backward(a, x, x, dx, NULL), SKEP_OK);
    assert_true(same_parameters(a, b));
    assert_int_equal(expert_update_count(a), 1);
    skep_tensor_free(x);
    skep_tensor_free(dx);
    expert_free(a);
    expert_free(b);
}

/* y = x + ..., in double, one row at a time: a slow, obvious ffn for any number of rows. */
static void slow_linear(const DLTensor *w, const DLTensor *b, const double *x, double *y)
{
    const float *weight = skep_tensor_data(w);
    const float *bias = skep_tensor_data(b);

    for (int64_t o = 0; o < w->shape[0]; o++) {
        y[o] = (double)bias[o];
        for (int64_t i = 0; i < w->shape[1]; i++)
            y[o] += (double)weight[o * w->shape[1] + i] * x[i];
    }
}

static void slow_norm_relu(const DLTensor *w, const DLTensor *b, double *x)
{
    const float *weight = skep_tensor_data(w);
    const float *bias = skep_tensor_data(b);
    int64_t n = w->shape[0];
    double mean = 0.0;
    double var = 0.0;

    for (int64_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (int64_t i = 0; i < n; i++)
        x[i] = fmax(0.0, (x[i] - mean) / sqrt(var + 1e-5) * (double)weight[i] + (double)bias[i]);
}

static void slow_ffn(const DLTensor *p, const float *x, double *y)
{
    enum { WIDE = 4 * HIDDEN };
    double in[HIDDEN];
    double a[WIDE];
    double b[WIDE];

    for (int i = 0; i < HIDDEN; i++)
        in[i] = (double)x[i];
    slow_linear(&p[0], &p[1], in, a);
    slow_norm_relu(&p[2], &p[3], a);
    slow_linear(&p[4], &p[5], a, b);
    slow_norm_relu(&p[6], &p[7], b);
    slow_linear(&p[8], &p[9], b, y);
    for (int i = 0; i < HIDDEN; i++)
        y[i] += in[i];
}

/* The row counts lie around every change of method in kernels.c. */
static void any_number_of_rows_gives_the_same_function(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 2, 7, 8, 9, 16, 31, 33, 100, 1023, 1024, 1500};
    struct expert *e = create_default(11);
    DLTensor p[EXPERT_MAX_PARAMETERS];

    assert_int_equal(expert_parameters(e, NULL, p, EXPERT_MAX_PARAMETERS), 10);
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        DLManagedTensor *x = tensor_of(counts[k], HIDDEN, (unsigned)k);
        DLManagedTensor *y = run_forward(e, x);
        for (int64_t r = 0; r < counts[k]; r++) {
            double want[HIDDEN];
            slow_ffn(p, data_of(x) + r * HIDDEN, want);
            for (int64_t i = 0; i < HIDDEN; i++)
                if (!(fabs((double)data_of(y)[r * HIDDEN + i] - want[i]) < 5e-6))
                    fail_msg("%lld rows: row %lld is wrong", (long long)counts[k], (long long)r);
        }
        skep_tensor_free(x);
        skep_tensor_free(y);
    }
    expert_free(e);
}

/* Gradients of a batch are the sums of its rows' gradients, whatever way each is computed. */
static void gradients_of_a_batch_are_sums_over_rows(void **state)
{
    (void)state;
    enum { BATCH = 1100 };
    struct expert *e = create_default(12);
    DLTensor p[EXPERT_MAX_PARAMETERS];
    float *whole[EXPERT_MAX_PARAMETERS];
    float *part[EXPERT_MAX_PARAMETERS];
    double *sum[EXPERT_MAX_PARAMETERS];
    size_t count[EXPERT_MAX_PARAMETERS];
    DLManagedTensor *x = tensor_of(BATCH, HIDDEN, 5);
    DLManagedTensor *dy = tensor_of(BATCH, HIDDEN, 6);
    DLManagedTensor *dx = tensor_of(BATCH, HIDDEN, 7);
    DLManagedTensor *dx_part = tensor_of(BATCH, HIDDEN, 8);
    size_t n = expert_parameters(e, NULL, p, EXPERT_MAX_PARAMETERS);

    for (size_t i = 0; i < n; i++) {
        assert_true(shape_count(p[i].ndim, p[i].shape, &count[i]));
        whole[i] = mem_alloc(count[i] * sizeof(float));
        part[i] = mem_alloc(count[i] * sizeof(float));
        sum[i] = mem_calloc(count[i], sizeof(double));
    }
    assert_int_equal(
        expert_gradients(e, &x->dl_tensor, &dy->dl_tensor, &dx->dl_tensor, whole, NULL), SKEP_OK);
    for (int64_t first = 0, rows = 1; first < BATCH; first += rows, rows = 1 + first % 97) {
        DLManagedTensor *slices[3];
        if (rows > BATCH - first)
            rows = BATCH - first;
        assert_int_equal(tensor_slice(x, first, rows, &slices[0], NULL), SKEP_OK);
        assert_int_equal(tensor_slice(dy, first, rows, &slices[1], NULL), SKEP_OK);
        assert_int_equal(tensor_slice(dx_part, first, rows, &slices[2], NULL), SKEP_OK);
        assert_int_equal(expert_gradients(e, &slices[0]->dl_tensor, &slices[1]->dl_tensor,
                                          &slices[2]->dl_tensor, part, NULL),
                         SKEP_OK);
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < count[i]; k++)
                sum[i][k] += (double)part[i][k];
        for (int i = 0; i < 3; i++)
            skep_tensor_free(slices[i]);
    }
    for (size_t i = 0; i < n; i++) {
        double max = 0.0;
        for (size_t k = 0; k < count[i]; k++)
            max = fmax(max, fabs(sum[i][k]));
        for (size_t k = 0; k < count[i]; k++)
            assert_true(fabs((double)whole[i][k] - sum[i][k]) <= 1e-5 * max);
        mem_free(whole[i]);
        mem_free(part[i]);
        mem_free(sum[i]);
    }
    for (int64_t i = 0; i < BATCH * HIDDEN; i++)
        assert_true(fabsf(data_of(dx)[i] - data_of(dx_part)[i]) < 1e-5f);
    skep_tensor_free(x);
    skep_tensor_free(dy);
    skep_tensor_free(dx);
    skep_tensor_free(dx_part);
    expert_free(e);
}

static void equal_calls_give_equal_bits(void **state)
{
    (void)state;
    struct skep_expert_options o = default_options("ffn");

    o.hidden_dim = 160; /* enough work for several threads */
    struct expert *a = create(&o);
    struct expert *b = create(&o);
    DLManagedTensor *x = tensor_of(300, 160, 1);
    DLManagedTensor *dy = tensor_of(300, 160, 2);
    for (int step = 0; step < 3; step++) {
        DLManagedTensor *dx_a = tensor_of(300, 160, 3);
        DLManagedTensor *dx_b = tensor_of(300, 160, 4);
        assert_int_equal(run_backward(a, x, dy, dx_a, NULL), SKEP_OK);
        assert_int_equal(run_backward(b, x, dy, dx_b, NULL), SKEP_OK);
        assert_memory_equal(data_of(dx_a), data_of(dx_b), 300 * 160 * sizeof(float));
        assert_true(same_parameters(a, b));
        skep_tensor_free(dx_a);
        skep_tensor_free(dx_b);
    }
    skep_tensor_free(x);
    skep_tensor_free(dy);
    expert_free(a);
    expert_free(b);
}

/* A thread of its own with an expert of its own: scratch memory and workers are shared inside. */
struct trainee {
    struct thread thread;
    struct expert *expert;
    DLManagedTensor *x;
    DLManagedTensor *dx;
    bool ok;
};

static void train(void *arg)
{
    struct trainee *t = arg;

    t->ok = true;
    for (int step = 0; step < 8; step++)
        t->ok = run_backward(t->expert, t->x, t->x, t->dx, NULL) == SKEP_OK && t->ok;
}

static void experts_of_several_threads_do_not_meet(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    struct trainee trainees[THREADS + 1] = {0};
    struct skep_expert_options o = default_options("ffn");

    o.hidden_dim = 96;
    for (int i = 0; i <= THREADS; i++) {
        trainees[i].expert = create(&o);
        trainees[i].x = tensor_of(250, 96, 1);
        trainees[i].dx = tensor_of(250, 96, 2);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(thread_start(&trainees[i].thread, "trainee", train, &trainees[i], NULL),
                         SKEP_OK);
    for (int i = 0; i < THREADS; i++)
        thread_join(&trainees[i].thread);
    train(&trainees[THREADS]);
    for (int i = 0; i < THREADS; i++) {
        assert_true(trainees[i].ok);
        assert_true(same_parameters(trainees[i].expert, trainees[THREADS].expert));
    }
    for (int i = 0; i <= THREADS; i++) {
        skep_tensor_free(trainees[i].x);
        skep_tensor_free(trainees[i].dx);
        expert_free(trainees[i].expert);
    }
}

/* A float tensor of any shape, filled as tensor_of() does. */
static DLManagedTensor *sequences(int64_t batch, int64_t seq, int64_t width, unsigned seed)
{
    const int64_t shape[3] = {batch, seq, width};
    DLManagedTensor *flat = tensor_of(batch * seq, width, seed);
    DLManagedTensor *t;

    assert_int_equal(skep_tensor_new(DTYPE_F32, 3, shape, &t, NULL), SKEP_OK);
    memcpy(data_of(t), data_of(flat), (size_t)(batch * seq * width) * sizeof(float));
    skep_tensor_free(flat);
    return t;
}

static void sequences_over_the_limit_are_refused(void **state)
{
    (void)state;
    struct skep_expert_options o = default_options("transformer");
    struct skep_error err;

    o.max_sequence = 9;
    struct expert *e = create(&o);
    DLManagedTensor *x = sequences(1, 10, HIDDEN, 1);
    DLManagedTensor *y = sequences(1, 10, HIDDEN, 2);
    assert_int_equal(expert_forward(e, &x->dl_tensor, &y->dl_tensor, &err), SKEP_INVALID_ARGUMENT);
    assert_string_equal(err.message, "input 0 (x): sequence length 10, expected at most 9");
    assert_false(expert_is_bounded(e));
    skep_tensor_free(x);
    skep_tensor_free(y);
    expert_free(e);
}

static void nop_passes_everything_through(void **state)
{
    (void)state;
    struct skep_expert_options o = default_options("nop");
    struct expert *e = create(&o);
    DLManagedTensor *x = tensor_of(ROWS, HIDDEN, 1);
    DLManagedTensor *dx = tensor_of(ROWS, HIDDEN, 2);
    DLTensor w;
    const char *name;

    data_of(x)[3] = NAN;
    DLManagedTensor *y = run_forward(e, x);
    assert_memory_equal(data_of(x), data_of(y), ROWS * HIDDEN * sizeof(float));
    assert_int_equal(run_backward(e, x, x, dx, NULL), SKEP_OK);
    assert_memory_equal(data_of(x), data_of(dx), ROWS * HIDDEN * sizeof(float));
    assert_int_equal(expert_parameters(e, &name, &w, 1), 1);
    assert_string_equal(name, "w");
    assert_int_equal(w.ndim, 1);
    assert_int_equal(w.shape[0], 0);
    assert_int_equal(expert_parameter_count(e), 0);
    skep_tensor_free(x);
    skep_tensor_free(y);
    skep_tensor_free(dx);
    expert_free(e);
}

static void a_pass_without_memory_fails_and_changes_nothing(void **state)
{
    (void)state;
    struct expert *a = create_default(1);
    struct expert *b = create_default(1);
    DLManagedTensor *x = tensor_of(ROWS, HIDDEN, 1);
    DLManagedTensor *y = tensor_of(ROWS, HIDDEN, 1);

    workspace_trim();
    mem_fail_at(1);
    assert_int_equal(run_backward(a, x, x, y, NULL), SKEP_RESOURCE_EXHAUSTED);
    mem_fail_at(1);
    assert_int_equal(expert_forward(a, &x->dl_tensor, &y->dl_tensor, NULL),
                     SKEP_RESOURCE_EXHAUSTED);
    mem_fail_at(0);
    assert_int_equal(expert_update_count(a), 0);
    assert_true(same_parameters(a, b));
    assert_int_equal(run_backward(a, x, x, y, NULL), SKEP_OK);
    skep_tensor_free(x);
    skep_tensor_free(y);
    expert_free(a);
    expert_free(b);
}

static void idle_scratch_memory_shrinks_after_a_peak(void **state)
{
    (void)state;
    const size_t mib = 1 << 20;
    struct workspace ws;

    workspace_trim();
    assert_int_equal(workspace_idle_bytes(), 0);
    assert_int_equal(workspace_take(64 * mib, &ws, NULL), SKEP_OK);
    workspace_give(&ws);
    assert_int_equal(workspace_idle_bytes(), 64 * mib);
    for (int i = 0; i < 600; i++) {
        assert_int_equal(workspace_take(mib, &ws, NULL), SKEP_OK);
        workspace_give(&ws);
    }
    assert_true(workspace_idle_bytes() <= 8 * mib);
    workspace_trim();
}

static DLManagedTensor *mask_of(int64_t batch, int64_t seq, uint8_t value)
{
    const int64_t shape[2] = {batch, seq};
    DLManagedTensor *t;

    assert_int_equal(skep_tensor_new((DLDataType){SKEP_DL_BOOL, 8, 1}, 2, shape, &t, NULL),
                     SKEP_OK);
    memset(skep_tensor_data(&t->dl_tensor), value, (size_t)(batch * seq));
    return t;
}

static struct expert *create_masked_transformer(void)
{
    struct skep_expert_options o = default_options("transformer");

    o.padding_mask = true;
    return create(&o);
}

/* Padding changes nothing about the positions that are not padding. */
static void ignored_keys_do_not_matter(void **state)
{
    (void)state;
    enum { SEQ = 70, LONG = 150 }; /* over one block of queries, and over two */
    struct expert *e = create_masked_transformer();
    DLManagedTensor *x = sequences(1, SEQ, HIDDEN, 1);
    DLManagedTensor *padded = sequences(1, LONG, HIDDEN, 2);
    DLManagedTensor *y = sequences(1, SEQ, HIDDEN, 3);
    DLManagedTensor *padded_y = sequences(1, LONG, HIDDEN, 4);
    DLManagedTensor *mask = mask_of(1, SEQ, 0);
    DLManagedTensor *padded_mask = mask_of(1, LONG, 1);
    const DLTensor in[2] = {x->dl_tensor, mask->dl_tensor};
    const DLTensor padded_in[2] = {padded->dl_tensor, padded_mask->dl_tensor};

    memcpy(data_of(padded), data_of(x), SEQ * HIDDEN * sizeof(float));
    memset(skep_tensor_data(&padded_mask->dl_tensor), 0, SEQ);
    assert_int_equal(expert_forward(e, in, &y->dl_tensor, NULL), SKEP_OK);
    assert_int_equal(expert_forward(e, padded_in, &padded_y->dl_tensor, NULL), SKEP_OK);
    for (int i = 0; i < SEQ * HIDDEN; i++)
        assert_true(fabsf(data_of(y)[i] - data_of(padded_y)[i]) < 1e-5f);
    skep_tensor_free(x);
    skep_tensor_free(padded);
    skep_tensor_free(y);
    skep_tensor_free(padded_y);
    skep_tensor_free(mask);
    skep_tensor_free(padded_mask);
    expert_free(e);
}

/* Strangers choose masks. */
static void a_mask_of_everything_gives_finite_numbers(void **state)
{
    (void)state;
    struct expert *e = create_masked_transformer();
    DLManagedTensor *x = sequences(2, 9, HIDDEN, 1);
    DLManagedTensor *dx = sequences(2, 9, HIDDEN, 1);
    DLManagedTensor *mask = mask_of(2, 9, 1);
    DLManagedTensor *d_mask = mask_of(2, 9, 1);
    const DLTensor in[2] = {x->dl_tensor, mask->dl_tensor};
    DLTensor grads[2] = {dx->dl_tensor, d_mask->dl_tensor};

    assert_int_equal(expert_backward(e, in, &x->dl_tensor, grads, NULL), SKEP_OK);
    assert_true(tensor_is_finite(&dx->dl_tensor));
    assert_int_equal(*(uint8_t *)skep_tensor_data(&d_mask->dl_tensor), 0);
    skep_tensor_free(x);
    skep_tensor_free(dx);
    skep_tensor_free(mask);
    skep_tensor_free(d_mask);
    expert_free(e);
}

static void a_mask_of_another_length_is_refused(void **state)
{
    (void)state;
    struct expert *e = create_masked_transformer();
    DLManagedTensor *x = sequences(2, 9, HIDDEN, 1);
    DLManagedTensor *y = sequences(2, 9, HIDDEN, 1);
    DLManagedTensor *mask = mask_of(2, 8, 0);
    const DLTensor in[2] = {x->dl_tensor, mask->dl_tensor};
    DLTensor grads[2] = {y->dl_tensor, mask->dl_tensor};
    struct skep_error err;

    assert_int_equal(expert_forward(e, in, &y->dl_tensor, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "length 8, expected 9"));
    assert_int_equal(expert_backward(e, in, &x->dl_tensor, grads, &err), SKEP_INVALID_ARGUMENT);
    assert_int_equal(expert_update_count(e), 0);
    skep_tensor_free(x);
    skep_tensor_free(y);
    skep_tensor_free(mask);
    expert_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_with_bad_gradients_change_nothing),
        cmocka_unit_test(optimizer_none_leaves_parameters_alone),
        cmocka_unit_test(any_number_of_rows_gives_the_same_function),
        cmocka_unit_test(gradients_of_a_batch_are_sums_over_rows),
        cmocka_unit_test(equal_calls_give_equal_bits),
        cmocka_unit_test(experts_of_several_threads_do_not_meet),
        cmocka_unit_test(sequences_over_the_limit_are_refused),
        cmocka_unit_test(nop_passes_everything_through),
        cmocka_unit_test(a_pass_without_memory_fails_and_changes_nothing),
        cmocka_unit_test(idle_scratch_memory_shrinks_after_a_peak),
        cmocka_unit_test(ignored_keys_do_not_matter),
        cmocka_unit_test(a_mask_of_everything_gives_finite_numbers),
        cmocka_unit_test(a_mask_of_another_length_is_refused),
    };
    return cmocka_run_group_tests_name("expert passes", tests, NULL, NULL);
}
