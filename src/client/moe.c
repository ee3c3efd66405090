/* Mixtures with softmax weights over the experts that answered. */
#include <math.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/tensor.h"
#include "client/mixture.h"

struct skep_moe {
    struct mixture mixture;
};

void skep_moe_options_init(struct skep_moe_options *options)
{
    *options = (struct skep_moe_options){
        .size = sizeof(*options),
        .k_best = 4,
        .k_min = 1,
        .backward_k_min = 1,
        .timeout_after_k_min_ms = 1000,
        .detect_anomalies = true,
        .max_rows = 256,
        .out_ndim = -1,
        .projection_dtype = DTYPE_F32,
    };
}

skep_status skep_moe_new(struct skep_client *client, const struct skep_moe_options *options,
                         struct skep_moe **out, struct skep_error *err)
{
    struct skep_moe *moe = mem_calloc(1, sizeof(*moe));

    *out = NULL;
    if (moe == NULL)
        return error_no_memory(err, "mixture", sizeof(*moe));
    skep_status rc = mixture_init(&moe->mixture, client, options, err);
    if (rc == SKEP_OK)
        *out = moe;
    else
        skep_moe_free(moe);
    return rc;
}

void skep_moe_free(struct skep_moe *moe)
{
    if (moe == NULL)
        return;
    mixture_fini(&moe->mixture);
    mem_free(moe);
}

static const DLTensor *view(const DLManagedTensor *t)
{
    return t != NULL ? &t->dl_tensor : NULL;
}

const DLTensor *skep_moe_weight(const struct skep_moe *moe)
{
    return view(moe->mixture.gate.weight);
}

const DLTensor *skep_moe_bias(const struct skep_moe *moe)
{
    return view(moe->mixture.gate.bias);
}

/* Softmax over those that answered. */
static void set_weights(struct skep_moe_pass *p)
{
    for (size_t s = 0; s < p->samples; s++) {
        struct pair *pairs = &p->pairs[s * p->k];
        double best = (double)-INFINITY, sum = 0;
        for (size_t i = 0; i < p->hit_count[s]; i++)
            if (pairs[i].answered)
                best = fmax(best, pass_score(p, s, i));
        for (size_t i = 0; i < p->hit_count[s]; i++) {
            pairs[i].weight = pairs[i].answered ? exp(pass_score(p, s, i) - best) : 0;
            sum += pairs[i].weight;
        }
        for (size_t i = 0; sum > 0 && i < p->hit_count[s]; i++)
            pairs[i].weight /= sum;
    }
}

skep_status skep_moe_forward(struct skep_moe *moe, const DLTensor *x, const DLTensor *const *scores,
                             struct skep_moe_pass **pass, DLManagedTensor **y,
                             struct skep_error *err)
{
    struct skep_moe_pass *p;

    *pass = NULL;
    skep_status rc = pass_new(&moe->mixture, x, scores, NULL, &p, err);
    if (rc != SKEP_OK)
        return rc;
    rc = pass_route(p, err);
    if (rc == SKEP_OK)
        rc = pass_call(p, x, err);
    if (rc == SKEP_OK) {
        set_weights(p);
        rc = pass_combine(p, y, err);
    }
    if (rc == SKEP_OK)
        *pass = p;
    else
        pass_free(p);
    return rc;
}

/* d y / d score_e = weight_e (output_e - y); a score is a sum over dimensions, so each coordinate
 * gets the same. */
static void add_score_grads(const struct skep_moe_pass *p, struct score_lines *lines)
{
    const struct skep_grid *grid = &p->mixture->options.grid;

    for (size_t s = 0; s < p->samples; s++) {
        const struct pair *pairs = &p->pairs[s * p->k];
        double mean = 0;
        for (size_t i = 0; i < p->hit_count[s]; i++)
            mean += pairs[i].answered ? pairs[i].weight * pairs[i].dot : 0;
        for (size_t i = 0; i < p->hit_count[s]; i++) {
            if (!pairs[i].answered)
                continue;
            const int64_t *coords = pass_coords(p, s, i);
            for (int d = 0; d < grid->dims; d++)
                lines->lines[d][s * (size_t)grid->sizes[d] + (size_t)coords[d]] +=
                    pairs[i].weight * (pairs[i].dot - mean);
        }
    }
}

skep_status skep_moe_backward(struct skep_moe_pass *p, const DLTensor *grad_y,
                              struct skep_moe_grads *grads, struct skep_error *err)
{
    struct score_lines lines = {0};

    *grads = (struct skep_moe_grads){0};
    skep_status rc = pass_dots(p, grad_y, err);
    if (rc == SKEP_OK)
        rc = score_lines_init(&lines, &p->mixture->options.grid, p->samples, err);
    if (rc == SKEP_OK)
        rc = pass_call_back(p, grad_y, &grads->x, err);
    if (rc == SKEP_OK) {
        add_score_grads(p, &lines);
        rc = pass_score_grads(p, &lines, grads, err);
    }
    score_lines_fini(&lines);
    if (rc != SKEP_OK)
        skep_moe_grads_free(grads);
    return rc;
}
