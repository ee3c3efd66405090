/* Switch layers: one expert a sample, probabilities as weights, a loss that balances the load. */
#include <math.h>
#include <pthread.h>
#include <sodium.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "client/mixture.h"
#include "client/random.h"

struct skep_switch_moe {
    struct mixture mixture;
    double alpha, jitter_eps, grid_keep;
    pthread_mutex_t lock; /* guards all below */
    struct random random;
    double *utilization[SKEP_GRID_MAX_DIMS]; /* owned */
};

struct skep_switch_moe_pass {
    struct skep_switch_moe *moe;
    struct skep_moe_pass *pass;              /* owned */
    struct score_lines probabilities;        /* owned */
    double *utilization[SKEP_GRID_MAX_DIMS]; /* owned: as the loss of this pass has it */
};

void skep_switch_moe_options_init(struct skep_switch_moe_options *options)
{
    *options = (struct skep_switch_moe_options){
        .utilization_alpha = 0.9, .jitter_eps = 0.01, .grid_keep = 1};
    skep_moe_options_init(&options->moe);
    options->moe.k_best = 1;
    options->moe.k_min = options->moe.backward_k_min = 0;
    options->moe.timeout_after_k_min_ms = 0;
}

static skep_status check_options(const struct skep_switch_moe_options *o, struct skep_error *err)
{
    /* What comes behind them here has moved if they are of another version. */
    if (o->moe.size != sizeof(o->moe))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "options: size %zu, expected %zu: use skep_switch_moe_options_init() of "
                         "this library",
                         o->moe.size, sizeof(o->moe));
    if (o->moe.k_best != 1)
        return error_set(err, SKEP_INVALID_ARGUMENT, "k_best: %u, expected 1 in a switch layer",
                         o->moe.k_best);
    if (!(o->utilization_alpha >= 0 && o->utilization_alpha <= 1))
        return error_set(err, SKEP_INVALID_ARGUMENT, "utilization_alpha: %g, expected 0 to 1",
                         o->utilization_alpha);
    if (!(o->jitter_eps >= 0 && o->jitter_eps < 1))
        return error_set(err, SKEP_INVALID_ARGUMENT, "jitter_eps: %g, expected 0 to below 1",
                         o->jitter_eps);
    if (!(o->grid_keep > 0 && o->grid_keep <= 1))
        return error_set(err, SKEP_INVALID_ARGUMENT, "grid_keep: %g, expected above 0 to 1",
                         o->grid_keep);
    return SKEP_OK;
}

static skep_status init_utilization(struct skep_switch_moe *moe, const struct skep_grid *grid,
                                    struct skep_error *err)
{
    for (int d = 0; d < grid->dims; d++) {
        size_t size = (size_t)grid->sizes[d];
        moe->utilization[d] = mem_calloc(size, sizeof(double));
        if (moe->utilization[d] == NULL)
            return error_no_memory(err, "utilization", size * sizeof(double));
        for (size_t i = 0; i < size; i++)
            moe->utilization[d][i] = 1 / (double)size;
    }
    return SKEP_OK;
}

skep_status skep_switch_moe_new(struct skep_client *client,
                                const struct skep_switch_moe_options *options,
                                struct skep_switch_moe **out, struct skep_error *err)
{
    *out = NULL;
    skep_status rc = error_if_null(options, "options", err);
    if (rc != SKEP_OK)
        return rc;
    struct skep_switch_moe *moe = mem_calloc(1, sizeof(*moe));
    if (moe == NULL)
        return error_no_memory(err, "mixture", sizeof(*moe));
    pthread_mutex_init(&moe->lock, NULL);
    moe->alpha = options->utilization_alpha;
    moe->jitter_eps = options->jitter_eps;
    moe->grid_keep = options->grid_keep;
    moe->random.state = options->moe.seed;
    if (moe->random.state == 0)
        randombytes_buf(&moe->random.state, sizeof(moe->random.state));
    rc = check_options(options, err);
    if (rc == SKEP_OK)
        rc = mixture_init(&moe->mixture, client, &options->moe, err);
    if (rc == SKEP_OK)
        rc = init_utilization(moe, &options->moe.grid, err);
    if (rc == SKEP_OK)
        *out = moe;
    else
        skep_switch_moe_free(moe);
    return rc;
}

void skep_switch_moe_free(struct skep_switch_moe *moe)
{
    if (moe == NULL)
        return;
    mixture_fini(&moe->mixture);
    for (int d = 0; d < SKEP_GRID_MAX_DIMS; d++)
        mem_free(moe->utilization[d]);
    pthread_mutex_destroy(&moe->lock);
    mem_free(moe);
}

const DLTensor *skep_switch_moe_weight(const struct skep_switch_moe *moe)
{
    return moe->mixture.gate.weight != NULL ? &moe->mixture.gate.weight->dl_tensor : NULL;
}

const DLTensor *skep_switch_moe_bias(const struct skep_switch_moe *moe)
{
    return moe->mixture.gate.bias != NULL ? &moe->mixture.gate.bias->dl_tensor : NULL;
}

void skep_switch_moe_utilization(struct skep_switch_moe *moe, int dim, double *out)
{
    const struct skep_grid *grid = &moe->mixture.options.grid;

    if (dim < 0 || dim >= grid->dims)
        return;
    pthread_mutex_lock(&moe->lock);
    memcpy(out, moe->utilization[dim], (size_t)grid->sizes[dim] * sizeof(*out));
    pthread_mutex_unlock(&moe->lock);
}

/* ---- forward */

static double uniform(void *arg)
{
    struct skep_switch_moe *moe = arg;

    pthread_mutex_lock(&moe->lock);
    double value = random_uniform(&moe->random);
    pthread_mutex_unlock(&moe->lock);
    return value;
}

/* Switches coordinates off for this pass, for all samples alike; one of each dimension stays. */
static void drop_coordinates(struct skep_switch_moe *moe, struct skep_moe_pass *p)
{
    const struct skep_grid *grid = &moe->mixture.options.grid;

    for (int d = 0; moe->grid_keep < 1 && d < grid->dims; d++) {
        size_t size = (size_t)grid->sizes[d];
        size_t stays = (size_t)(uniform(moe) * (double)size);
        for (size_t c = 0; c < size; c++) {
            if (uniform(moe) < moe->grid_keep || c == stays)
                continue;
            for (size_t s = 0; s < p->samples; s++)
                p->scores.lines[d][s * size + c] = (double)-INFINITY;
        }
    }
}

/* One line; all zeros if every score is -infinity. */
static void softmax(const double *scores, double *out, size_t size)
{
    double best = (double)-INFINITY, sum = 0;

    for (size_t i = 0; i < size; i++)
        best = fmax(best, scores[i]);
    for (size_t i = 0; i < size; i++) {
        out[i] = isfinite(best) ? exp(scores[i] - best) : 0;
        sum += out[i];
    }
    for (size_t i = 0; sum > 0 && i < size; i++)
        out[i] /= sum;
}

static skep_status set_probabilities(struct skep_switch_moe_pass *sp, struct skep_error *err)
{
    const struct skep_moe_pass *p = sp->pass;
    const struct skep_grid *grid = &p->mixture->options.grid;
    skep_status rc = score_lines_init(&sp->probabilities, grid, p->samples, err);

    for (int d = 0; rc == SKEP_OK && d < grid->dims; d++) {
        size_t size = (size_t)grid->sizes[d];
        for (size_t s = 0; s < p->samples; s++)
            softmax(p->scores.lines[d] + s * size, sp->probabilities.lines[d] + s * size, size);
    }
    return rc;
}

/* The rank of the one expert of a sample that counts; SIZE_MAX if none answered. */
static size_t answer_of(const struct skep_moe_pass *p, size_t sample)
{
    for (size_t i = 0; i < p->hit_count[sample]; i++)
        if (p->pairs[sample * p->k + i].answered)
            return i;
    return SIZE_MAX;
}

/* With k_min 1 another expert may have been asked as well, and both have answered. */
static void keep_one_answer(struct skep_moe_pass *p)
{
    for (size_t s = 0; s < p->samples; s++) {
        size_t rank = answer_of(p, s);
        for (size_t i = 0; i < p->hit_count[s]; i++)
            p->pairs[s * p->k + i].answered = i == rank;
        p->answers[s] = rank != SIZE_MAX;
    }
}

static void set_weights(struct skep_switch_moe_pass *sp)
{
    struct skep_moe_pass *p = sp->pass;
    const struct skep_grid *grid = &p->mixture->options.grid;

    for (size_t s = 0; s < p->samples; s++) {
        size_t rank = answer_of(p, s);
        if (rank == SIZE_MAX)
            continue;
        struct pair *pair = &p->pairs[s * p->k + rank];
        const int64_t *coords = pass_coords(p, s, rank);
        pair->weight = 1;
        for (int d = 0; d < grid->dims; d++)
            pair->weight *=
                sp->probabilities.lines[d][s * (size_t)grid->sizes[d] + (size_t)coords[d]];
    }
}

/* Moves the estimate towards where this batch went. With the lock held. */
static void note_utilization(struct skep_switch_moe *moe, const struct skep_moe_pass *p, int d,
                             double *batch)
{
    size_t size = (size_t)moe->mixture.options.grid.sizes[d], answered = 0;

    memset(batch, 0, size * sizeof(*batch));
    for (size_t s = 0; s < p->samples; s++) {
        size_t rank = answer_of(p, s);
        if (rank == SIZE_MAX)
            continue;
        batch[pass_coords(p, s, rank)[d]]++;
        answered++;
    }
    for (size_t i = 0; answered > 0 && i < size; i++)
        moe->utilization[d][i] =
            moe->alpha * moe->utilization[d][i] + (1 - moe->alpha) * batch[i] / (double)answered;
}

static skep_status keep_utilization(struct skep_switch_moe_pass *sp, bool training,
                                    struct skep_error *err)
{
    struct skep_switch_moe *moe = sp->moe;
    const struct skep_grid *grid = &moe->mixture.options.grid;

    for (int d = 0; d < grid->dims; d++) {
        size_t size = (size_t)grid->sizes[d];
        sp->utilization[d] = mem_alloc(size * sizeof(double));
        if (sp->utilization[d] == NULL)
            return error_no_memory(err, "utilization", size * sizeof(double));
        pthread_mutex_lock(&moe->lock);
        if (training)
            note_utilization(moe, sp->pass, d, sp->utilization[d]);
        memcpy(sp->utilization[d], moe->utilization[d], size * sizeof(double));
        pthread_mutex_unlock(&moe->lock);
    }
    return SKEP_OK;
}

static double balancing_loss(const struct skep_switch_moe_pass *sp)
{
    const struct skep_grid *grid = &sp->moe->mixture.options.grid;
    size_t samples = sp->pass->samples;
    double loss = 0;

    for (int d = 0; samples > 0 && d < grid->dims; d++) {
        size_t size = (size_t)grid->sizes[d];
        double sum = 0;
        for (size_t s = 0; s < samples; s++)
            for (size_t c = 0; c < size; c++)
                sum += sp->utilization[d][c] * sp->probabilities.lines[d][s * size + c];
        loss += (double)size * sum / (double)samples;
    }
    return loss;
}

static skep_status run_forward(struct skep_switch_moe_pass *sp, const DLTensor *x, bool training,
                               DLManagedTensor **y, double *loss, struct skep_error *err)
{
    if (training)
        drop_coordinates(sp->moe, sp->pass);
    skep_status rc = set_probabilities(sp, err);
    if (rc == SKEP_OK)
        rc = pass_route(sp->pass, err);
    if (rc == SKEP_OK)
        rc = pass_call(sp->pass, x, err);
    if (rc == SKEP_OK)
        keep_one_answer(sp->pass);
    if (rc == SKEP_OK)
        rc = keep_utilization(sp, training, err);
    if (rc != SKEP_OK)
        return rc;
    set_weights(sp);
    if (loss != NULL)
        *loss = balancing_loss(sp);
    return pass_combine(sp->pass, y, err);
}

skep_status skep_switch_moe_forward(struct skep_switch_moe *moe, const DLTensor *x,
                                    const DLTensor *const *scores, bool training,
                                    struct skep_switch_moe_pass **pass, DLManagedTensor **y,
                                    double *loss, struct skep_error *err)
{
    const struct gate_jitter jitter = {moe->jitter_eps, uniform, moe};
    struct skep_switch_moe_pass *sp = mem_calloc(1, sizeof(*sp));

    *pass = NULL;
    if (sp == NULL)
        return error_no_memory(err, "pass", sizeof(*sp));
    sp->moe = moe;
    skep_status rc = pass_new(&moe->mixture, x, scores,
                              training && moe->jitter_eps > 0 ? &jitter : NULL, &sp->pass, err);
    if (rc == SKEP_OK)
        rc = run_forward(sp, x, training, y, loss, err);
    if (rc == SKEP_OK)
        *pass = sp;
    else
        skep_switch_moe_pass_free(sp);
    return rc;
}

/* ---- backward */

/* Of one line: adds p_j (g_j - sum_i g_i p_i), the gradient through a softmax. */
static void through_softmax(const double *p, const double *g, size_t size, double *out)
{
    double mean = 0;

    for (size_t i = 0; i < size; i++)
        mean += g[i] * p[i];
    for (size_t i = 0; i < size; i++)
        out[i] += p[i] * (g[i] - mean);
}

/* With the weight P = prod p_d, dP/dp_d[c] is P / p_d[c] for the chosen coordinate, so that after
 * the softmax of each dimension it is P (1[j = c] - p_d[j]). The loss is linear in the
 * probabilities. */
static void add_score_grads(const struct skep_switch_moe_pass *sp, double grad_loss,
                            struct score_lines *lines)
{
    const struct skep_moe_pass *p = sp->pass;
    const struct skep_grid *grid = &p->mixture->options.grid;

    for (int d = 0; d < grid->dims; d++) {
        size_t size = (size_t)grid->sizes[d];
        double balance = grad_loss * (double)size / (double)(p->samples > 0 ? p->samples : 1);
        for (size_t s = 0; s < p->samples; s++) {
            const double *line = sp->probabilities.lines[d] + s * size;
            double *out = lines->lines[d] + s * size;
            through_softmax(line, sp->utilization[d], size, out);
            for (size_t c = 0; c < size; c++)
                out[c] *= balance;
            size_t rank = answer_of(p, s);
            if (rank == SIZE_MAX)
                continue;
            const struct pair *pair = &p->pairs[s * p->k + rank];
            double direct = pair->dot * pair->weight;
            for (size_t c = 0; c < size; c++)
                out[c] -= direct * line[c];
            out[pass_coords(p, s, rank)[d]] += direct;
        }
    }
}

skep_status skep_switch_moe_backward(struct skep_switch_moe_pass *sp, const DLTensor *grad_y,
                                     double grad_loss, struct skep_moe_grads *grads,
                                     struct skep_error *err)
{
    struct score_lines lines = {0};

    *grads = (struct skep_moe_grads){0};
    if (!isfinite(grad_loss))
        return error_set(err, SKEP_INVALID_ARGUMENT, "grad_loss: %g, expected a finite number",
                         grad_loss);
    skep_status rc = pass_dots(sp->pass, grad_y, err);
    if (rc == SKEP_OK)
        rc = score_lines_init(&lines, &sp->moe->mixture.options.grid, sp->pass->samples, err);
    if (rc == SKEP_OK)
        rc = pass_call_back(sp->pass, grad_y, &grads->x, err);
    if (rc == SKEP_OK) {
        add_score_grads(sp, grad_loss, &lines);
        rc = pass_score_grads(sp->pass, &lines, grads, err);
    }
    score_lines_fini(&lines);
    if (rc != SKEP_OK)
        skep_moe_grads_free(grads);
    return rc;
}

void skep_switch_moe_pass_free(struct skep_switch_moe_pass *sp)
{
    if (sp == NULL)
        return;
    pass_free(sp->pass);
    score_lines_fini(&sp->probabilities);
    for (int d = 0; d < SKEP_GRID_MAX_DIMS; d++)
        mem_free(sp->utilization[d]);
    mem_free(sp);
}

const struct skep_moe_pass *skep_switch_moe_pass_choices(const struct skep_switch_moe_pass *sp)
{
    return sp->pass;
}
