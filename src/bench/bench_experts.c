/*
 * skep bench experts: what experts cost over the bare work they can't do without: their matrix
 * products by oneDNN, the memory traffic of an optimizer's sweep, the first touch of their memory.
 *
 * In every run an expert and its baseline take turns, and the fastest turn of each counts: other
 * processes can only add to a time.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/tensor.h"
#include "bench/bench.h"
#include "bench/bench_frame.h"
#include "bench/bench_gemm.h"
#include "experts/expert.h"
#include "experts/half.h"
#include "experts/optimizer.h"
#include "experts/parallel.h"
#include "experts/product.h"
#include "experts/workspace.h"

enum {
    MAX_GEMMS = 4,
    WARMUP_TURNS = 12, /* also more than bfloat16's packed weights are waited for */
    MIN_TURNS = 3,
    TURN_NS = 250000000, /* of both sides together, in a run */
    BACKWARD_ROWS = 512,
    TRANSFORMER_ROWS = 8,
    TRANSFORMER_SEQ = 128,
    INIT_EXPERTS = 16,
};

static const struct option_spec specs[] = {
    BENCH_OPTION_RUNS(
        BENCH_MAX_RUNS, "5",
        "measured runs of each case, in which expert and baseline take turns; medians are "
        "shown"),
    {.name = "hidden-dim",
     .kind = OPTION_INT,
     .min = 16,
     .max = 8192,
     .default_text = "1024",
     .help = "of ffn experts; half of it, in multiples of 16, for the transformer"},
    {.name = "only",
     .kind = OPTION_STRING,
     .placeholder = "TEXT",
     .help = "measure only cases whose name holds this, such as 'backward' or 'bfloat16'"},
    BENCH_OPTION_JSON,
};

static const struct option_table table = {
    .command = "bench experts",
    .summary = "Measures experts in this process: ffn forward and backward, transformer, one Adam "
               "step, each against the bare oneDNN products or copies of the same run; then how "
               "long 16 experts take to make.",
    .example = "skep bench experts\nskep bench experts --runs 3 --hidden-dim 256 --json",
    .specs = specs,
    .count = OPTION_COUNT(specs),
};

struct bench {
    struct bench_frame *frame;
    int64_t hidden;
    const char *only; /* borrowed; NULL: all cases */
};

static bool is_wanted(const struct bench *b, const char *name)
{
    return b->only == NULL || strstr(name, b->only) != NULL;
}

/* ---- an expert with its tensors, and the products that it is made of */

struct subject {
    struct expert *expert;
    DLManagedTensor *x, *y, *dy;
    struct bench_gemm *gemms[MAX_GEMMS];
    size_t gemm_count;
    double flops;       /* of a forward pass */
    double gemms_share; /* of them, those of the gemms; the rest is counted at their speed */
};

static void subject_free(struct subject *s)
{
    for (size_t i = 0; i < s->gemm_count; i++)
        bench_gemm_free(s->gemms[i]);
    skep_tensor_free(s->x);
    skep_tensor_free(s->y);
    skep_tensor_free(s->dy);
    expert_free(s->expert);
    *s = (struct subject){0};
}

static skep_status make_tensor(int ndim, const int64_t *shape, DLManagedTensor **out,
                               struct skep_error *err)
{
    size_t bytes = 0;
    skep_status rc = skep_tensor_new(DTYPE_F32, ndim, shape, out, err);

    if (rc == SKEP_OK)
        rc = skep_tensor_bytes(&(*out)->dl_tensor, &bytes, err);
    if (rc != SKEP_OK)
        return rc;
    float *x = skep_tensor_data(&(*out)->dl_tensor);
    for (size_t i = 0; i < bytes / sizeof(*x); i++)
        x[i] = (float)((i * 2654435761u) % 1000) * 2e-3f - 1.0f;
    return SKEP_OK;
}

static skep_status add_gemm(struct subject *s, size_t rows, int64_t in, int64_t out, bool bf16,
                            struct skep_error *err)
{
    s->flops += 2.0 * (double)rows * (double)in * (double)out;
    skep_status rc =
        bench_gemm_new(rows, (size_t)in, (size_t)out, bf16, &s->gemms[s->gemm_count], err);
    s->gemm_count += rc == SKEP_OK;
    return rc;
}

static skep_status subject_make(struct subject *s, const char *cls, int64_t hidden, bool bf16,
                                int ndim, const int64_t *shape, struct skep_error *err)
{
    struct skep_expert_options o;

    *s = (struct subject){.gemms_share = 1.0};
    skep_expert_options_init(&o);
    o.cls = cls;
    o.hidden_dim = hidden;
    o.learning_rate = 1e-6;
    o.precision = bf16 ? "bfloat16" : "float32";
    skep_status rc = expert_new(&o, &s->expert, err);
    if (rc == SKEP_OK)
        rc = make_tensor(ndim, shape, &s->x, err);
    if (rc == SKEP_OK)
        rc = make_tensor(ndim, shape, &s->y, err);
    if (rc == SKEP_OK)
        rc = make_tensor(ndim, shape, &s->dy, err);
    return rc;
}

static skep_status subject_ffn(struct subject *s, size_t rows, int64_t hidden, bool bf16,
                               struct skep_error *err)
{
    const int64_t shape[2] = {(int64_t)rows, hidden};
    skep_status rc = subject_make(s, "ffn", hidden, bf16, 2, shape, err);

    if (rc == SKEP_OK)
        rc = add_gemm(s, rows, hidden, 4 * hidden, bf16, err);
    if (rc == SKEP_OK)
        rc = add_gemm(s, rows, 4 * hidden, 4 * hidden, bf16, err);
    if (rc == SKEP_OK)
        rc = add_gemm(s, rows, 4 * hidden, hidden, bf16, err);
    return rc;
}

static skep_status subject_transformer(struct subject *s, int64_t h, bool bf16,
                                       struct skep_error *err)
{
    const int64_t shape[3] = {TRANSFORMER_ROWS, TRANSFORMER_SEQ, h};
    const size_t n = (size_t)TRANSFORMER_ROWS * TRANSFORMER_SEQ;
    skep_status rc = subject_make(s, "transformer", h, bf16, 3, shape, err);

    if (rc == SKEP_OK)
        rc = add_gemm(s, n, h, 3 * h, bf16, err);
    if (rc == SKEP_OK)
        rc = add_gemm(s, n, h, h, bf16, err);
    if (rc == SKEP_OK)
        rc = add_gemm(s, n, h, 4 * h, bf16, err);
    if (rc == SKEP_OK)
        rc = add_gemm(s, n, 4 * h, h, bf16, err);
    /* The products inside the heads, q k^T and weights v. */
    double attention = 4.0 * (double)n * (double)TRANSFORMER_SEQ * (double)h;
    s->gemms_share = s->flops / (s->flops + attention);
    s->flops += attention;
    return rc;
}

/* ---- taking turns */

/* One side of a comparison: does its work once and says how long it took. */
typedef skep_status (*turn_fn)(void *arg, double *ns, struct skep_error *err);

struct side {
    turn_fn turn;
    void *arg;
    double best_ns; /* of this run */
};

static skep_status take_turn(struct side *side, struct skep_error *err)
{
    double ns = 0.0;
    skep_status rc = side->turn(side->arg, &ns, err);

    if (rc == SKEP_OK && ns < side->best_ns)
        side->best_ns = ns;
    return rc;
}

static skep_status run_sides(struct side *sides, size_t count, struct skep_error *err)
{
    uint64_t start = bench_now_ns();
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < count; i++)
        sides[i].best_ns = INFINITY;
    for (int turns = 0; rc == SKEP_OK && (turns < MIN_TURNS || bench_now_ns() - start < TURN_NS);
         turns++)
        for (size_t i = 0; i < count && rc == SKEP_OK; i++)
            rc = take_turn(&sides[i], err);
    return rc;
}

static skep_status warm_up(struct side *sides, size_t count, struct skep_error *err)
{
    double ns;
    skep_status rc = SKEP_OK;

    for (int turn = 0; turn < WARMUP_TURNS && rc == SKEP_OK; turn++)
        for (size_t i = 0; i < count && rc == SKEP_OK; i++)
            rc = sides[i].turn(sides[i].arg, &ns, err);
    return rc;
}

static skep_status turn_forward(void *arg, double *ns, struct skep_error *err)
{
    struct subject *s = arg;
    uint64_t start = bench_now_ns();
    skep_status rc = expert_forward(s->expert, &s->x->dl_tensor, &s->y->dl_tensor, err);

    *ns = (double)(bench_now_ns() - start);
    return rc;
}

static skep_status turn_backward(void *arg, double *ns, struct skep_error *err)
{
    struct subject *s = arg;
    uint64_t start = bench_now_ns();
    skep_status rc =
        expert_backward(s->expert, &s->x->dl_tensor, &s->dy->dl_tensor, &s->y->dl_tensor, err);

    *ns = (double)(bench_now_ns() - start);
    return rc;
}

/* All products of one forward pass. */
static skep_status turn_gemms(void *arg, double *ns, struct skep_error *err)
{
    struct subject *s = arg;
    skep_status rc = SKEP_OK;

    *ns = 0.0;
    for (size_t i = 0; i < s->gemm_count && rc == SKEP_OK; i++) {
        double one = 0.0;
        rc = bench_gemm_run(s->gemms[i], &one, err);
        *ns += one;
    }
    *ns /= s->gemms_share;
    return rc;
}

/* ---- one Adam step, which is also what an expert does after its gradients, and a copy */

struct adam {
    struct optimizer optimizer;
    struct half half; /* written along with the parameters where an expert has one */
    size_t count;
    float *params, *grads, *copy; /* owned */
};

static void adam_free(struct adam *a)
{
    optimizer_fini(&a->optimizer);
    half_fini(&a->half);
    mem_free(a->params);
    mem_free(a->grads);
    mem_free(a->copy);
}

static skep_status adam_make(struct adam *a, size_t count, bool bf16, struct skep_error *err)
{
    struct skep_expert_options o;

    *a = (struct adam){.count = count};
    skep_expert_options_init(&o);
    o.learning_rate = 1e-6;
    skep_status rc = optimizer_init(&a->optimizer, &o, count, err);
    if (rc == SKEP_OK && bf16)
        rc = half_init(&a->half, count, NULL, 0, err);
    if (rc != SKEP_OK)
        return rc;
    if (bf16)
        a->optimizer.follower = &a->half;
    a->params = floats_new(count);
    a->grads = floats_new(count);
    a->copy = floats_new(count);
    if (a->params == NULL || a->grads == NULL || a->copy == NULL)
        return error_no_memory(err, "benchmark", 3 * count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        a->params[i] = a->grads[i] = (float)(i % 1000) * 1e-3f;
    return SKEP_OK;
}

static skep_status turn_adam(void *arg, double *ns, struct skep_error *err)
{
    struct adam *a = arg;
    uint64_t start = bench_now_ns();
    skep_status rc = optimizer_step(&a->optimizer, a->params, a->grads, err);

    *ns = (double)(bench_now_ns() - start);
    return rc;
}

static void copy_range(void *arg, size_t first, size_t last, unsigned part)
{
    struct adam *a = arg;

    (void)part;
    memcpy(a->copy + first, a->grads + first, (last - first) * sizeof(float));
}

static skep_status turn_copy(void *arg, double *ns, struct skep_error *err)
{
    struct adam *a = arg;
    uint64_t start = bench_now_ns();

    (void)err;
    parallel_range(a->count, 65536, 16, copy_range, a);
    *ns = (double)(bench_now_ns() - start);
    return SKEP_OK;
}

/* ---- cases */

static const char *precision_name(bool bf16)
{
    return bf16 ? "bfloat16" : "float32";
}

/* Two sides, and what makes a figure of the time of each: what it does, in the unit, a second. */
struct speeds {
    struct side sides[2];
    double work[2];
};

static skep_status turn_speeds(void *arg, double *value, double *baseline, struct skep_error *err)
{
    struct speeds *s = arg;
    skep_status rc = run_sides(s->sides, 2, err);

    *value = s->work[0] / s->sides[0].best_ns;
    *baseline = s->work[1] / s->sides[1].best_ns;
    return rc;
}

static skep_status measure_speeds(struct bench *b, struct speeds *s, const char *name,
                                  const char *unit, struct skep_error *err)
{
    const struct bench_case what = {name, unit, NULL};
    skep_status rc = warm_up(s->sides, 2, err);

    return rc == SKEP_OK ? bench_frame_turns(b->frame, &what, turn_speeds, s, err) : rc;
}

/* Speed of forward and of its products. */
static skep_status measure_forward(struct bench *b, struct subject *s, const char *name,
                                   struct skep_error *err)
{
    struct speeds speeds = {{{turn_forward, s, 0.0}, {turn_gemms, s, 0.0}}, {s->flops, s->flops}};

    return measure_speeds(b, &speeds, name, "GFLOP/s", err);
}

static skep_status measure_ffn_forward(struct bench *b, size_t rows, bool bf16,
                                       struct skep_error *err)
{
    char name[BENCH_CASE_BYTES];
    struct subject s;

    snprintf(name, sizeof(name), "ffn forward, %zu rows, %s; its 3 products", rows,
             precision_name(bf16));
    if (!is_wanted(b, name))
        return SKEP_OK;
    skep_status rc = subject_ffn(&s, rows, b->hidden, bf16, err);
    if (rc == SKEP_OK)
        rc = measure_forward(b, &s, name, err);
    subject_free(&s);
    return rc;
}

static skep_status measure_transformer(struct bench *b, bool bf16, struct skep_error *err)
{
    char name[BENCH_CASE_BYTES];
    int64_t hidden = b->hidden / 2 / 16 * 16;
    struct subject s;

    snprintf(name, sizeof(name), "transformer forward, %d x %d, %s; its products", TRANSFORMER_ROWS,
             TRANSFORMER_SEQ, precision_name(bf16));
    if (!is_wanted(b, name))
        return SKEP_OK;
    skep_status rc = subject_transformer(&s, hidden > 0 ? hidden : 16, bf16, err);
    if (rc == SKEP_OK)
        rc = measure_forward(b, &s, name, err);
    subject_free(&s);
    return rc;
}

/* The two precisions beside each other. */
static skep_status measure_gain(struct bench *b, struct skep_error *err)
{
    static const char name[] = "ffn forward, 512 rows, bfloat16; float32";
    struct subject half = {0};
    struct subject full = {0};

    if (!is_wanted(b, name))
        return SKEP_OK;
    skep_status rc = subject_ffn(&half, BACKWARD_ROWS, b->hidden, true, err);

    if (rc == SKEP_OK)
        rc = subject_ffn(&full, BACKWARD_ROWS, b->hidden, false, err);
    struct speeds speeds = {{{turn_forward, &half, 0.0}, {turn_forward, &full, 0.0}},
                            {half.flops, full.flops}};
    if (rc == SKEP_OK)
        rc = measure_speeds(b, &speeds, name, "GFLOP/s", err);
    subject_free(&half);
    subject_free(&full);
    return rc;
}

static skep_status turn_without_adam(void *arg, double *value, double *baseline,
                                     struct skep_error *err)
{
    struct side *sides = arg;
    skep_status rc = run_sides(sides, 3, err);

    *value = (sides[0].best_ns - sides[2].best_ns) / 1e6;
    *baseline = sides[1].best_ns / 1e6;
    return rc;
}

/* Backward without its optimizer step, against the products of one forward pass. */
static skep_status measure_backward(struct bench *b, bool bf16, struct skep_error *err)
{
    char name[BENCH_CASE_BYTES];
    const struct bench_case what = {name, "ms", NULL};
    struct subject s;
    struct adam a = {0};

    snprintf(name, sizeof(name), "ffn backward, %d rows, %s, without Adam; 3 products",
             BACKWARD_ROWS, precision_name(bf16));
    if (!is_wanted(b, name))
        return SKEP_OK;
    skep_status rc = subject_ffn(&s, BACKWARD_ROWS, b->hidden, bf16, err);
    if (rc == SKEP_OK)
        rc = adam_make(&a, (size_t)expert_parameter_count(s.expert), bf16, err);
    struct side sides[3] = {{turn_backward, &s, 0.0}, {turn_gemms, &s, 0.0}, {turn_adam, &a, 0.0}};
    if (rc == SKEP_OK)
        rc = warm_up(sides, 3, err);
    if (rc == SKEP_OK)
        rc = bench_frame_turns(b->frame, &what, turn_without_adam, sides, err);
    adam_free(&a);
    subject_free(&s);
    return rc;
}

/* Bytes that an Adam step reads and writes (p, m, v, g; p, m, v) against those of a copy. */
static skep_status measure_adam(struct bench *b, struct skep_error *err)
{
    static const char name[] = "Adam step of an ffn's parameters; copy";
    struct adam a;

    if (!is_wanted(b, name))
        return SKEP_OK;
    skep_status rc = adam_make(&a, (size_t)(24 * b->hidden * b->hidden), false, err);
    double floats = sizeof(float) * (double)a.count;
    struct speeds speeds = {{{turn_adam, &a, 0.0}, {turn_copy, &a, 0.0}},
                            {7.0 * floats, 2.0 * floats}};
    if (rc == SKEP_OK)
        rc = measure_speeds(b, &speeds, name, "GB/s", err);
    adam_free(&a);
    return rc;
}

/* ---- starting */

static void touch_range(void *arg, size_t first, size_t last, unsigned part)
{
    (void)part;
    memset((float *)arg + first, 1, (last - first) * sizeof(float));
}

static skep_status time_touch(size_t floats, double *seconds, struct skep_error *err)
{
    uint64_t start = bench_now_ns();
    float *memory = floats_new(floats);

    if (memory == NULL)
        return error_no_memory(err, "benchmark", floats * sizeof(float));
    parallel_range(floats, 65536, 16, touch_range, memory);
    *seconds = (double)(bench_now_ns() - start) / 1e9;
    mem_free(memory);
    return SKEP_OK;
}

static skep_status time_start(void *arg, double *seconds, double *touch, struct skep_error *err)
{
    const struct bench *b = arg;
    struct expert *experts[INIT_EXPERTS] = {NULL};
    struct skep_expert_options o;
    skep_status rc = SKEP_OK;
    uint64_t floats = 0;
    uint64_t start = bench_now_ns();

    skep_expert_options_init(&o);
    o.hidden_dim = b->hidden;
    for (int i = 0; i < INIT_EXPERTS && rc == SKEP_OK; i++) {
        o.seed = (uint64_t)i;
        rc = expert_new(&o, &experts[i], err);
        floats += rc == SKEP_OK ? expert_parameter_count(experts[i]) : 0;
    }
    *seconds = (double)(bench_now_ns() - start) / 1e9;
    for (int i = 0; i < INIT_EXPERTS; i++)
        expert_free(experts[i]);
    return rc == SKEP_OK ? time_touch((size_t)floats, touch, err) : rc;
}

static skep_status measure_start(struct bench *b, struct skep_error *err)
{
    static const struct bench_case what = {"16 ffn experts, made; first touch of their memory", "s",
                                           NULL};

    return is_wanted(b, what.name) ? bench_frame_turns(b->frame, &what, time_start, b, err)
                                   : SKEP_OK;
}

static skep_status measure_all(struct bench *b, struct skep_error *err)
{
    static const size_t rows[] = {32, 512, 2048};
    /* Elsewhere rounded numbers are multiplied in float32, and there is nothing to measure. */
    const int precisions = product_available() ? 2 : 1;
    skep_status rc = SKEP_OK;

    for (int half = 0; half < precisions && rc == SKEP_OK; half++)
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && rc == SKEP_OK; i++)
            rc = measure_ffn_forward(b, rows[i], half == 1, err);
    if (rc == SKEP_OK && precisions == 2)
        rc = measure_gain(b, err);
    for (int half = 0; half < precisions && rc == SKEP_OK; half++)
        rc = measure_backward(b, half == 1, err);
    for (int half = 0; half < precisions && rc == SKEP_OK; half++)
        rc = measure_transformer(b, half == 1, err);
    if (rc == SKEP_OK)
        rc = measure_adam(b, err);
    if (rc == SKEP_OK)
        rc = measure_start(b, err);
    return rc;
}

static skep_status measure_experts(struct bench_frame *frame, const struct options *o,
                                   struct skep_error *err)
{
    struct bench b = {
        .frame = frame,
        .hidden = options_int(o, "hidden-dim"),
        .only = options_string(o, "only"),
    };
    size_t cases = product_available() ? 13 : 7;

    bench_frame_expect(frame, cases * frame->runs);
    skep_status rc = measure_all(&b, err);
    if (rc == SKEP_OK && frame->report.count == 0)
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "--only %s: no case has that in its name",
                       b.only);
    return rc;
}

const struct bench_command bench_experts = {.options = &table, .measure = measure_experts};
