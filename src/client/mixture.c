/* Choosing, calling and adding up: what all mixture layers share. */
#include "client/mixture.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"

/* ---- layers */

static skep_status check_options(const struct skep_moe_options *o, struct skep_error *err)
{
    if (o->k_best < 1 || o->k_best > BEAM_MAX_WIDTH)
        return error_set(err, SKEP_INVALID_ARGUMENT, "k_best: %u, expected 1 to %d", o->k_best,
                         BEAM_MAX_WIDTH);
    if (o->k_min > o->k_best || o->backward_k_min > o->k_best)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "k_min %u, backward_k_min %u: expected at most k_best, %u", o->k_min,
                         o->backward_k_min, o->k_best);
    if (o->beam_width != 0 && (o->beam_width < o->k_best || o->beam_width > BEAM_MAX_WIDTH))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "beam_width: %u, expected 0 or k_best (%u) to %d", o->beam_width,
                         o->k_best, BEAM_MAX_WIDTH);
    skep_status rc = tensor_encoding_check("compression", o->compression, err);
    if (rc == SKEP_OK)
        rc = tensor_encoding_check("grad_compression", o->grad_compression, err);
    if (rc != SKEP_OK)
        return rc;
    if (o->max_rows == 0)
        return error_set(err, SKEP_INVALID_ARGUMENT, "max_rows: 0, expected 1 or more");
    if (o->out_ndim < -1 || o->out_ndim >= SKEP_TENSOR_MAX_DIMS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "out_ndim: %d, expected -1 to %d", o->out_ndim,
                         SKEP_TENSOR_MAX_DIMS - 1);
    for (int i = 0; i < o->out_ndim; i++)
        if (o->out_shape[i] < 0)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "out_shape[%d]: %" PRId64 ", expected 0 "
                             "or more",
                             i, o->out_shape[i]);
    if (o->in_features < 0 || o->in_features > INT32_MAX)
        return error_set(err, SKEP_INVALID_ARGUMENT, "in_features: %" PRId64 ", expected 0 to %d",
                         o->in_features, INT32_MAX);
    if (o->in_features > 0 && (o->projection_dtype.code != kDLFloat ||
                               (o->projection_dtype.bits != 32 && o->projection_dtype.bits != 64)))
        return error_set(err, SKEP_INVALID_ARGUMENT, "projection_dtype: expected F32 or F64");
    return SKEP_OK;
}

skep_status mixture_init(struct mixture *m, struct skep_client *client,
                         const struct skep_moe_options *given, struct skep_error *err)
{
    struct skep_moe_options known;
    const struct skep_moe_options *options = &known;

    *m = (struct mixture){.client = client};
    skep_moe_options_init(&known);
    skep_status rc =
        client_take_options(&known, sizeof(known), given, "skep_moe_options_init", err);
    if (rc == SKEP_OK && client->swarm == NULL)
        rc = error_set(err, SKEP_FAILED_PRECONDITION,
                       "client: started without the DHT, so no experts can be found");
    if (rc == SKEP_OK)
        rc = grid_check(&options->grid, err);
    if (rc == SKEP_OK)
        rc = check_options(options, err);
    if (rc != SKEP_OK)
        return rc;
    m->options = known;
    m->options.grid.prefix = mem_strdup(options->grid.prefix);
    if (m->options.grid.prefix == NULL)
        return error_no_memory(err, "mixture", strlen(options->grid.prefix));
    return gate_init(&m->gate, &m->options.grid, options->in_features, options->projection_dtype,
                     options->seed, err);
}

void mixture_fini(struct mixture *m)
{
    gate_fini(&m->gate);
    mem_free((char *)m->options.grid.prefix);
    m->options.grid.prefix = NULL;
}

/* ---- passes */

static skep_status check_input(const DLTensor *x, bool finite, const char *what,
                               struct skep_error *err)
{
    char text[128];
    size_t bytes;

    if (x == NULL || x->ndim < 1 || x->ndim > SKEP_TENSOR_MAX_DIMS || x->dtype.code != kDLFloat ||
        x->dtype.lanes != 1 || (x->dtype.bits != 32 && x->dtype.bits != 64))
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %s, expected [n, ...] F32 or F64", what,
                         x != NULL ? tensor_describe(x, text, sizeof(text)) : "none");
    skep_status rc = skep_tensor_bytes(x, &bytes, err);
    if (rc == SKEP_OK && finite && !tensor_is_finite(x))
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "%s: NaN or infinity in it", what);
    return rc;
}

static size_t width_of(int ndim, const int64_t *shape)
{
    size_t n = 1;

    for (int i = 1; i < ndim; i++)
        n *= (size_t)shape[i];
    return n;
}

static void take_shapes(struct skep_moe_pass *p, const DLTensor *x)
{
    const struct skep_moe_options *o = &p->mixture->options;

    p->samples = (size_t)x->shape[0];
    p->dtype = x->dtype;
    p->x_ndim = p->y_ndim = x->ndim;
    memcpy(p->x_shape, x->shape, (size_t)x->ndim * sizeof(*x->shape));
    memcpy(p->y_shape, p->x_shape, sizeof(p->y_shape));
    if (o->out_ndim >= 0) {
        p->y_ndim = o->out_ndim + 1;
        memcpy(p->y_shape + 1, o->out_shape, (size_t)o->out_ndim * sizeof(*o->out_shape));
    }
    p->x_width = width_of(p->x_ndim, p->x_shape);
    p->y_width = width_of(p->y_ndim, p->y_shape);
}

/* Where a sample needs no answer nobody is asked a second time. */
static size_t places_of(const struct skep_moe_options *o)
{
    size_t spares = o->k_best > MIXTURE_SPARES ? o->k_best : MIXTURE_SPARES;

    return o->k_min > 0 ? o->k_best + spares : o->k_best;
}

/* Pairs of a sample and a place, their rows and their calls are numbered in 32 bits. */
static skep_status check_pairs(const struct skep_moe_pass *p, struct skep_error *err)
{
    size_t pairs;

    if (size_mul(p->samples, p->k, &pairs) && pairs < FANOUT_NO_CALL)
        return SKEP_OK;
    return error_set(err, SKEP_INVALID_ARGUMENT,
                     "x: %zu samples of %zu experts each, expected fewer than %" PRIu32
                     " pairs of both; split the batch",
                     p->samples, p->k, (uint32_t)FANOUT_NO_CALL);
}

static bool allocate(struct skep_moe_pass *p)
{
    size_t pairs;

    if (!size_mul(p->samples, p->k, &pairs))
        return false; /* not so: check_pairs() */
    p->pairs = mem_calloc(pairs + 1, sizeof(*p->pairs));
    p->pair_calls = mem_calloc(pairs + 1, sizeof(*p->pair_calls));
    p->answers = mem_calloc(p->samples + 1, sizeof(*p->answers));
    p->row_pairs = mem_calloc(pairs + 1, sizeof(*p->row_pairs));
    p->hits = mem_calloc(pairs + 1, sizeof(*p->hits));
    p->hit_count = mem_calloc(p->samples + 1, sizeof(*p->hit_count));
    p->planned = mem_calloc(p->samples + 1, sizeof(*p->planned));
    p->wants = mem_calloc(p->samples + 1, sizeof(*p->wants));
    p->spent = mem_calloc(p->samples + 1, sizeof(*p->spent));
    if (p->pairs == NULL || p->pair_calls == NULL || p->answers == NULL || p->row_pairs == NULL ||
        p->hits == NULL || p->hit_count == NULL || p->planned == NULL || p->wants == NULL ||
        p->spent == NULL)
        return false;
    for (size_t i = 0; i < pairs; i++)
        p->pairs[i].call = FANOUT_NO_CALL;
    return true;
}

static skep_status take_scores(struct skep_moe_pass *p, const DLTensor *x,
                               const DLTensor *const *scores, const struct gate_jitter *jitter,
                               struct skep_error *err)
{
    const struct mixture *m = p->mixture;

    if (m->gate.in_features > 0 && scores == NULL)
        return gate_forward(&m->gate, &m->options.grid, x, jitter, &p->gate_input, &p->scores, err);
    if (m->gate.in_features > 0)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "scores: the layer has a projection of its own, expected none");
    skep_status rc = score_lines_read(&p->scores, &m->options.grid, scores, err);
    if (rc == SKEP_OK && p->scores.samples != p->samples)
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "scores: of %zu samples, expected %zu as in x",
                       p->scores.samples, p->samples);
    return rc;
}

static uint64_t deadline_of(const struct mixture *m, uint32_t timeout_ms)
{
    return clock_deadline_us(timeout_ms != 0 ? timeout_ms : m->client->timeout_ms);
}

skep_status pass_new(const struct mixture *m, const DLTensor *x, const DLTensor *const *scores,
                     const struct gate_jitter *jitter, struct skep_moe_pass **out,
                     struct skep_error *err)
{
    *out = NULL;
    skep_status rc = check_input(x, m->options.detect_anomalies, "inputs", err);
    if (rc != SKEP_OK)
        return rc;
    struct skep_moe_pass *p = mem_calloc(1, sizeof(*p));
    if (p == NULL)
        return error_no_memory(err, "pass", sizeof(*p));
    p->mixture = m;
    p->k = places_of(&m->options);
    p->started_us = clock_mono_us();
    p->deadline_us = deadline_of(m, m->options.forward_timeout_ms);
    take_shapes(p, x);
    rc = check_pairs(p, err);
    if (rc == SKEP_OK && !allocate(p))
        rc = error_no_memory(err, "pass", p->samples * p->k * sizeof(*p->pairs));
    if (rc == SKEP_OK)
        rc = take_scores(p, x, scores, jitter, err);
    if (rc == SKEP_OK)
        *out = p;
    else
        pass_free(p);
    return rc;
}

void pass_free(struct skep_moe_pass *p)
{
    if (p == NULL)
        return;
    fanout_fini(&p->forward);
    fanout_fini(&p->backward);
    for (size_t i = 0; p->inputs != NULL && i < p->call_count; i++)
        skep_tensor_free(p->inputs[i]);
    mem_free(p->inputs);
    mem_free(p->call_experts);
    mem_free(p->call_rows);
    for (size_t i = 0; p->experts != NULL && i < p->found.expert_count; i++)
        remote_expert_unref(p->experts[i]);
    mem_free(p->experts);
    beam_result_free(&p->found);
    gate_input_fini(&p->gate_input);
    score_lines_fini(&p->scores);
    mem_free(p->pairs);
    mem_free(p->pair_calls);
    mem_free(p->answers);
    mem_free(p->hits);
    mem_free(p->hit_count);
    mem_free(p->planned);
    mem_free(p->wants);
    mem_free(p->spent);
    mem_free(p->row_pairs);
    mem_free(p);
}

const int64_t *pass_coords(const struct skep_moe_pass *p, size_t sample, size_t rank)
{
    return p->found.experts[p->hits[sample * p->k + rank].expert].coords;
}

double pass_score(const struct skep_moe_pass *p, size_t sample, size_t rank)
{
    return p->hits[sample * p->k + rank].score;
}

/* ---- rows and calls */

/* More room in the list of calls. */
static bool reserve_calls(struct skep_moe_pass *p, size_t more)
{
    size_t count = p->call_count + more + 1;
    uint32_t *experts = mem_realloc(p->call_experts, count * sizeof(*experts));
    if (experts != NULL)
        p->call_experts = experts;
    uint32_t *rows = mem_realloc(p->call_rows, count * sizeof(*rows));
    if (rows != NULL)
        p->call_rows = rows;
    DLManagedTensor **inputs = mem_realloc(p->inputs, count * sizeof(*inputs));
    if (inputs != NULL)
        p->inputs = inputs;
    if (experts == NULL || rows == NULL || inputs == NULL)
        return false;
    if (p->call_count == 0)
        p->call_rows[0] = 0;
    memset(p->inputs + p->call_count, 0, (more + 1) * sizeof(*inputs));
    return true;
}

static bool is_to_be_called(const struct skep_moe_pass *p, size_t pair)
{
    size_t sample = pair / p->k, rank = pair % p->k;

    return rank >= p->planned[sample] && rank < p->hit_count[sample] &&
           isfinite(p->hits[pair].score);
}

/* Sorts pairs that have no calls yet by expert and cuts them into calls of at most max_rows, behind
 * those there are. */
static bool plan_calls(struct skep_moe_pass *p)
{
    size_t experts = p->found.expert_count, max_rows = p->mixture->options.max_rows, more = 0;
    size_t pairs = p->samples * p->k, at = p->call_count;
    size_t *first = mem_calloc(experts + 2, sizeof(*first));

    if (first == NULL)
        return false;
    for (size_t i = 0; i < pairs; i++)
        if (is_to_be_called(p, i))
            first[p->hits[i].expert + 2]++;
    for (size_t e = 0; e < experts; e++)
        more += (first[e + 2] + max_rows - 1) / max_rows;
    if (!reserve_calls(p, more)) {
        mem_free(first);
        return false;
    }
    first[1] = p->call_rows[at];
    for (size_t e = 0; e < experts; e++) {
        first[e + 2] += first[e + 1]; /* becomes where the rows of expert e + 1 begin */
        for (size_t row = first[e + 1]; row < first[e + 2]; row += max_rows) {
            p->call_experts[at] = (uint32_t)e;
            p->call_rows[at++] = (uint32_t)row;
        }
    }
    p->call_rows[at] = (uint32_t)first[experts + 1];
    for (size_t i = 0; i < pairs; i++)
        if (is_to_be_called(p, i))
            p->row_pairs[first[p->hits[i].expert + 1]++] = (uint32_t)i;
    mem_free(first);
    for (size_t c = p->call_count; c < at; c++)
        for (uint32_t row = p->call_rows[c]; row < p->call_rows[c + 1]; row++) {
            struct pair *pair = &p->pairs[p->row_pairs[row]];
            pair->call = (uint32_t)c;
            pair->row = row - p->call_rows[c];
        }
    p->call_count = at;
    memcpy(p->planned, p->hit_count, p->samples * sizeof(*p->planned));
    return true;
}

static struct rows rows_of(const DLTensor *t, size_t count, size_t width)
{
    return (struct rows){skep_tensor_data(t), count, width, t->dtype.bits == 64};
}

static uint32_t rows_in_call(const struct skep_moe_pass *p, size_t call)
{
    return p->call_rows[call + 1] - p->call_rows[call];
}

/* A tensor for the rows of a call, with the shape of x's or y's rows. */
static skep_status call_tensor(const struct skep_moe_pass *p, size_t call, bool of_x,
                               DLManagedTensor **out, struct skep_error *err)
{
    int64_t shape[SKEP_TENSOR_MAX_DIMS];

    memcpy(shape, of_x ? p->x_shape : p->y_shape, sizeof(shape));
    shape[0] = rows_in_call(p, call);
    return skep_tensor_new(p->dtype, of_x ? p->x_ndim : p->y_ndim, shape, out, err);
}

/* The samples of a call, in one piece. */
static skep_status gather(struct skep_moe_pass *p, size_t call, const DLTensor *x,
                          struct skep_error *err)
{
    skep_status rc = call_tensor(p, call, true, &p->inputs[call], err);

    if (rc != SKEP_OK)
        return rc;
    struct rows from = rows_of(x, p->samples, p->x_width);
    struct rows to = rows_of(&p->inputs[call]->dl_tensor, rows_in_call(p, call), p->x_width);
    for (size_t i = 0; i < to.count; i++)
        memcpy(rows_at(&to, i), rows_at(&from, p->row_pairs[p->call_rows[call] + i] / p->k),
               rows_bytes(&from));
    return SKEP_OK;
}

/* Another reference to the same memory, for a call that may outlive the pass. */
static skep_status share(DLManagedTensor *t, DLManagedTensor **out, struct skep_error *err)
{
    return tensor_slice(t, 0, t->dl_tensor.shape[0], out, err);
}

static struct fanout_expect expect_rows(const struct skep_moe_pass *p, bool of_x)
{
    return (struct fanout_expect){
        .dtype = p->dtype,
        .ndim = (of_x ? p->x_ndim : p->y_ndim) - 1,
        .shape = (of_x ? p->x_shape : p->y_shape) + 1,
        .finite = p->mixture->options.detect_anomalies,
    };
}

static struct fanout_policy policy_of(struct skep_moe_pass *p, uint64_t deadline_us, uint32_t k_min)
{
    for (size_t i = 0; i < p->samples * p->k; i++)
        p->pair_calls[i] = p->pairs[i].call;
    return (struct fanout_policy){
        .impatient_us = UINT64_MAX,
        .samples = p->samples,
        .k = p->k,
        .pairs = p->pair_calls,
        .counts = p->hit_count,
        .k_min = k_min,
        .deadline_us = deadline_us,
        .after_k_min_ms = p->mixture->options.timeout_after_k_min_ms,
    };
}

static struct fanout_manner manner_of(const struct skep_moe_pass *p)
{
    const struct skep_moe_options *o = &p->mixture->options;

    return (struct fanout_manner){o->compression, o->grad_compression, o->hedge_after_ms};
}

static const struct fanout_call *first_failure(const struct fanout *f)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->calls[i].status != SKEP_OK && f->calls[i].status != SKEP_CANCELLED)
            return &f->calls[i];
    return NULL;
}

/* Samples with too few answers: a failure, unless they are allowed. */
static skep_status check_answers(const struct skep_moe_pass *p, const size_t *answers,
                                 uint32_t k_min, const struct fanout *f, const char *what,
                                 struct skep_error *err)
{
    size_t lacking = 0, first = 0;

    for (size_t s = p->samples; s-- > 0;)
        if (answers[s] < k_min) {
            lacking++;
            first = s;
        }
    if (lacking == 0 || p->mixture->options.allow_missing)
        return SKEP_OK;
    const struct fanout_call *failure = first_failure(f);
    return error_set(err, SKEP_UNAVAILABLE,
                     "mixture %s: %s: %zu of %zu samples have fewer than %u answers (sample %zu: "
                     "%zu of %zu): %s",
                     p->mixture->options.grid.prefix, what, lacking, p->samples, k_min, first,
                     answers[first], p->hit_count[first],
                     failure != NULL ? failure->error.message
                                     : "too few experts of the grid were found");
}

/* Calls the experts that have been found since the last time. */
static skep_status call_found(struct skep_moe_pass *p, const DLTensor *x, struct skep_error *err)
{
    size_t first = p->call_count;

    if (!plan_calls(p))
        return error_no_memory(err, "calls", p->samples * p->k);
    skep_status rc = fanout_add(&p->forward, p->call_count - first, err);
    for (size_t c = first; c < p->call_count && rc == SKEP_OK; c++) {
        rc = gather(p, c, x, err);
        if (rc == SKEP_OK)
            rc = share(p->inputs[c], &p->forward.calls[c].inputs[0], err);
        p->forward.calls[c].expert = p->experts[p->call_experts[c]];
    }
    struct fanout_manner manner = manner_of(p);
    if (rc == SKEP_OK)
        fanout_start(&p->forward, first, &manner, p->deadline_us);
    return rc;
}

/*
 * Waits for answers, and asks further experts for samples that the chosen ones have left with fewer
 * than k_min: when these cannot bring them any more, and once, half of the time being over, when
 * they have not. So a node that hangs leaves others the time to answer.
 */
static skep_status wait_for_answers(struct skep_moe_pass *p, const DLTensor *x,
                                    struct skep_error *err)
{
    const struct skep_moe_options *o = &p->mixture->options;
    struct fanout_expect expect = expect_rows(p, false);
    struct fanout_policy policy = policy_of(p, p->deadline_us, o->k_min);
    uint64_t now_us = clock_mono_us();
    skep_status rc = SKEP_OK;

    policy.wants = p->k > o->k_best ? p->wants : NULL;
    policy.k_best = o->k_best;
    policy.spent = p->spent;
    if (now_us < p->deadline_us)
        policy.impatient_us = now_us + (p->deadline_us - now_us) / 2;
    for (unsigned round = 0; rc == SKEP_OK; round++) {
        bool was_impatient = policy.impatient;
        if (round == MIXTURE_ROUNDS)
            policy.wants = NULL;
        if (fanout_wait(&p->forward, &policy, &expect))
            break;
        rc = pass_route_more(p, policy.impatient && !was_impatient, err);
        if (rc == SKEP_OK)
            rc = call_found(p, x, err);
        for (size_t i = 0; i < p->samples * p->k; i++)
            p->pair_calls[i] = p->pairs[i].call;
    }
    return rc;
}

skep_status pass_call(struct skep_moe_pass *p, const DLTensor *x, struct skep_error *err)
{
    const struct skep_moe_options *o = &p->mixture->options;
    skep_status rc = fanout_init(&p->forward, p->mixture->client, 0, err);

    if (rc == SKEP_OK)
        rc = call_found(p, x, err);
    if (rc == SKEP_OK)
        rc = wait_for_answers(p, x, err);
    if (rc != SKEP_OK)
        return rc;
    for (size_t i = 0; i < p->samples * p->k; i++) {
        struct pair *pair = &p->pairs[i];
        pair->answered =
            pair->call != FANOUT_NO_CALL && p->forward.calls[pair->call].status == SKEP_OK;
        p->answers[i / p->k] += pair->answered;
    }
    rc = check_answers(p, p->answers, o->k_min, &p->forward, "forward", err);
    /* What samples with too few answers got does not count. */
    for (size_t i = 0; i < p->samples * p->k; i++)
        if (p->answers[i / p->k] < o->k_min)
            p->pairs[i].answered = false;
    return rc;
}

skep_status pass_combine(struct skep_moe_pass *p, DLManagedTensor **y, struct skep_error *err)
{
    DLManagedTensor *out;
    skep_status rc = skep_tensor_new(p->dtype, p->y_ndim, p->y_shape, &out, err);

    if (rc != SKEP_OK)
        return rc;
    struct rows to = rows_of(&out->dl_tensor, p->samples, p->y_width);
    if (p->samples > 0)
        memset(to.data, 0, p->samples * rows_bytes(&to));
    for (size_t i = 0; i < p->samples * p->k; i++) {
        const struct pair *pair = &p->pairs[i];
        if (!pair->answered)
            continue;
        struct rows from = rows_of(&p->forward.calls[pair->call].output->dl_tensor,
                                   rows_in_call(p, pair->call), p->y_width);
        rows_add(&to, i / p->k, pair->weight, &from, pair->row);
    }
    *y = out;
    return SKEP_OK;
}

/* ---- backward */

skep_status pass_dots(struct skep_moe_pass *p, const DLTensor *grad_y, struct skep_error *err)
{
    char text[128];

    if (p->went_back)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "backward: this pass has gone back already, each does once");
    skep_status rc =
        check_input(grad_y, p->mixture->options.detect_anomalies, "gradients of outputs", err);
    if (rc != SKEP_OK)
        return rc;
    bool same = dtype_equal(grad_y->dtype, p->dtype) && grad_y->ndim == p->y_ndim;
    for (int i = 0; same && i < p->y_ndim; i++)
        same = grad_y->shape[i] == p->y_shape[i];
    if (!same)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "gradients of outputs: %s, expected the shape and type of the outputs",
                         tensor_describe(grad_y, text, sizeof(text)));
    p->went_back = true;
    struct rows grad = rows_of(grad_y, p->samples, p->y_width);
    for (size_t i = 0; i < p->samples * p->k; i++) {
        struct pair *pair = &p->pairs[i];
        if (!pair->answered)
            continue;
        struct rows out = rows_of(&p->forward.calls[pair->call].output->dl_tensor,
                                  rows_in_call(p, pair->call), p->y_width);
        pair->dot = rows_dot(&grad, i / p->k, &out, pair->row);
    }
    return SKEP_OK;
}

/* Each row's share: the gradient of its sample times its weight. Rows that do not count get zeros.
 */
static skep_status make_share(struct skep_moe_pass *p, size_t call, const DLTensor *grad_y,
                              DLManagedTensor **out, struct skep_error *err)
{
    skep_status rc = call_tensor(p, call, false, out, err);

    if (rc != SKEP_OK)
        return rc;
    struct rows from = rows_of(grad_y, p->samples, p->y_width);
    struct rows to = rows_of(&(*out)->dl_tensor, rows_in_call(p, call), p->y_width);
    for (size_t i = 0; i < to.count; i++) {
        size_t pair = p->row_pairs[p->call_rows[call] + i];
        rows_set(&to, i, p->pairs[pair].answered ? p->pairs[pair].weight : 0, &from, pair / p->k);
    }
    return SKEP_OK;
}

/* Whether any row of a call counts: otherwise there is nothing to train on. */
static bool has_share(const struct skep_moe_pass *p, size_t call)
{
    for (uint32_t row = p->call_rows[call]; row < p->call_rows[call + 1]; row++)
        if (p->pairs[p->row_pairs[row]].answered)
            return true;
    return false;
}

static skep_status send_shares(struct skep_moe_pass *p, const DLTensor *grad_y,
                               uint64_t deadline_us, struct skep_error *err)
{
    skep_status rc = fanout_init(&p->backward, p->mixture->client, p->call_count, err);

    for (size_t c = 0; c < p->call_count && rc == SKEP_OK; c++) {
        struct fanout_call *call = &p->backward.calls[c];
        call->status = SKEP_CANCELLED;
        if (p->forward.calls[c].status != SKEP_OK || !has_share(p, c))
            continue;
        call->backward = true;
        /* Others that serve the expert have weights of their own. */
        memcpy(call->peer_id, p->forward.calls[c].peer_id, sizeof(call->peer_id));
        call->expert = p->experts[p->call_experts[c]];
        rc = make_share(p, c, grad_y, &call->inputs[1], err);
        if (rc == SKEP_OK)
            rc = share(p->inputs[c], &call->inputs[0], err);
    }
    struct fanout_manner manner = manner_of(p);
    if (rc == SKEP_OK)
        fanout_start(&p->backward, 0, &manner, deadline_us);
    return rc;
}

/* Adds up what came back, and counts answers. */
static void take_back(struct skep_moe_pass *p, DLManagedTensor *grad_x, size_t *answers)
{
    struct rows to = rows_of(&grad_x->dl_tensor, p->samples, p->x_width);

    if (p->samples > 0)
        memset(to.data, 0, p->samples * rows_bytes(&to));
    for (size_t i = 0; i < p->samples * p->k; i++) {
        struct pair *pair = &p->pairs[i];
        if (!pair->answered || p->backward.calls[pair->call].status != SKEP_OK)
            continue;
        struct rows from = rows_of(&p->backward.calls[pair->call].output->dl_tensor,
                                   rows_in_call(p, pair->call), p->x_width);
        rows_add(&to, i / p->k, 1, &from, pair->row);
        pair->answered_back = true;
        answers[i / p->k]++;
    }
}

/* Samples that failed in forward, where that is allowed, need no answers here. */
static void excuse_missing(const struct skep_moe_pass *p, size_t *answers)
{
    for (size_t s = 0; s < p->samples; s++)
        if (p->answers[s] < p->mixture->options.k_min || p->answers[s] == 0)
            answers[s] = p->k;
}

skep_status pass_call_back(struct skep_moe_pass *p, const DLTensor *grad_y,
                           DLManagedTensor **grad_x, struct skep_error *err)
{
    const struct skep_moe_options *o = &p->mixture->options;
    uint64_t deadline_us = deadline_of(p->mixture, o->backward_timeout_ms);
    size_t *answers = mem_calloc(p->samples + 1, sizeof(*answers));
    DLManagedTensor *out = NULL;
    skep_status rc = answers == NULL ? error_no_memory(err, "backward", p->samples) : SKEP_OK;

    if (rc == SKEP_OK)
        rc = skep_tensor_new(p->dtype, p->x_ndim, p->x_shape, &out, err);
    if (rc == SKEP_OK)
        rc = send_shares(p, grad_y, deadline_us, err);
    if (rc == SKEP_OK) {
        struct fanout_policy policy = policy_of(p, deadline_us, o->backward_k_min);
        struct fanout_expect expect = expect_rows(p, true);
        fanout_wait(&p->backward, &policy, &expect);
        take_back(p, out, answers);
        excuse_missing(p, answers);
        rc = check_answers(p, answers, o->backward_k_min, &p->backward, "backward", err);
    }
    mem_free(answers);
    if (rc == SKEP_OK)
        *grad_x = out;
    else
        skep_tensor_free(out);
    return rc;
}

skep_status pass_score_grads(struct skep_moe_pass *p, const struct score_lines *lines,
                             struct skep_moe_grads *grads, struct skep_error *err)
{
    const struct skep_grid *grid = &p->mixture->options.grid;
    DLDataType dtype = {
        .code = kDLFloat, .bits = p->dtype.bits == 64 || p->scores.wide ? 64 : 32, .lanes = 1};

    for (int d = 0; d < grid->dims; d++) {
        int64_t shape[2] = {(int64_t)p->samples, grid->sizes[d]};
        skep_status rc = skep_tensor_new(dtype, 2, shape, &grads->scores[d], err);
        if (rc != SKEP_OK)
            return rc;
        size_t count = p->samples * (size_t)grid->sizes[d];
        void *data = skep_tensor_data(&grads->scores[d]->dl_tensor);
        for (size_t i = 0; i < count; i++) {
            if (dtype.bits == 64)
                ((double *)data)[i] = lines->lines[d][i];
            else
                ((float *)data)[i] = (float)lines->lines[d][i];
        }
    }
    if (p->mixture->gate.in_features == 0)
        return SKEP_OK;
    return gate_backward(&p->mixture->gate, grid, &p->gate_input, lines, &grads->weight,
                         &grads->bias, &grads->x->dl_tensor, err);
}

/* ---- what a pass tells */

void skep_moe_pass_free(struct skep_moe_pass *pass)
{
    pass_free(pass);
}

size_t skep_moe_pass_answers(const struct skep_moe_pass *p, size_t sample)
{
    return sample < p->samples ? p->answers[sample] : 0;
}

bool skep_moe_pass_choice(const struct skep_moe_pass *p, size_t sample, size_t rank,
                          struct skep_moe_choice *out)
{
    if (sample >= p->samples || rank >= p->hit_count[sample])
        return false;
    const struct pair *pair = &p->pairs[sample * p->k + rank];
    *out = (struct skep_moe_choice){
        .uid = p->found.experts[p->hits[sample * p->k + rank].expert].uid,
        .score = pass_score(p, sample, rank),
        .weight = pair->answered ? pair->weight : 0,
        .status = SKEP_CANCELLED,
        .backward_status = SKEP_CANCELLED,
    };
    if (pair->call != FANOUT_NO_CALL) {
        out->status = p->forward.calls[pair->call].status;
        if (p->backward.calls != NULL)
            out->backward_status = p->backward.calls[pair->call].status;
    }
    return true;
}

bool skep_moe_pass_failure(const struct skep_moe_pass *p, struct skep_error *err)
{
    const struct fanout_call *c = first_failure(&p->forward);

    if (c == NULL)
        c = first_failure(&p->backward);
    if (c != NULL && err != NULL)
        *err = c->error;
    return c != NULL;
}

void skep_moe_grads_free(struct skep_moe_grads *grads)
{
    if (grads == NULL)
        return;
    skep_tensor_free(grads->x);
    skep_tensor_free(grads->weight);
    skep_tensor_free(grads->bias);
    for (int d = 0; d < SKEP_GRID_MAX_DIMS; d++)
        skep_tensor_free(grads->scores[d]);
    *grads = (struct skep_moe_grads){0};
}
