/*
 * Experts that compute in bfloat16 against the golden files, whose numbers are exact: relative L2
 * errors within the bounds of tests/golden/README.md, section 5. Also run with oneDNN kept to an
 * instruction set without bfloat16, where numbers are rounded and multiplied in float32.
 */
#include "golden_file.h"

#include "base/alloc.h"

/* Adds what an error consists of: the squares of differences and of the reference. */
struct error_sum {
    double difference;
    double reference;
};

static void add_error(struct error_sum *sum, double got, double want)
{
    sum->difference += (got - want) * (got - want);
    sum->reference += want * want;
}

static double relative(const struct error_sum *sum)
{
    return sqrt(sum->difference / sum->reference);
}

static void check_bound(const char *what, const struct error_sum *sum, double bound)
{
    /* Written so that a NaN fails. */
    if (!(relative(sum) <= bound))
        fail_msg("%s: relative error %.3g, allowed %.3g", what, relative(sum), bound);
}

static double gradient_bound(const char *arch)
{
    if (strcmp(arch, "ffn") == 0)
        return 1e-1;
    return strcmp(arch, "det_dropout") == 0 ? 3e-1 : 2e-2;
}

/* Compares with the whole tensor where the file has it, else with its sample. */
static void add_parameter(const struct golden *g, struct error_sum *sum, const char *whole_name,
                          const char *sample_name, const char *name, const float *got,
                          const float *before)
{
    const DLTensor *whole = find(g, "%s.%s", whole_name, name);
    const DLTensor *want = whole != NULL ? whole : find(g, "%s.%s", sample_name, name);
    const DLTensor *index = whole != NULL ? NULL : find(g, "index.%s%s", name, "");

    for (size_t k = 0; want != NULL && k < count_of(want); k++) {
        size_t at = index != NULL ? (size_t)((int32_t *)skep_tensor_data(index))[k] : k;
        double offset = before != NULL ? (double)before[at] : 0.0;
        add_error(sum, (double)got[at] - offset, value_at(want, k) - offset);
    }
}

static void check_forward(const struct golden *g, struct expert *e)
{
    const DLTensor *want = skep_safetensors_find(g->file, "output64.0");
    DLManagedTensor *y = like(skep_safetensors_find(g->file, "output.0"));
    struct error_sum sum = {0};
    struct skep_error err;

    if (expert_forward(e, g->input_views, &y->dl_tensor, &err) != SKEP_OK)
        die("forward", &err);
    const float *got = skep_tensor_data(&y->dl_tensor);
    for (size_t i = 0; i < count_of(want); i++)
        add_error(&sum, (double)got[i], value_at(want, i));
    check_bound("output", &sum, 1.5e-2);
    /* Float32 stays far below this: it really was computed in bfloat16. */
    assert_true(relative(&sum) > 1e-5);
    skep_tensor_free(y);
}

static void check_gradients(const struct golden *g, struct expert *e)
{
    const DLTensor *want = skep_safetensors_find(g->file, "grad_input64.0");
    DLManagedTensor *grad_inputs[MAX_INPUTS];
    DLTensor views[MAX_INPUTS];
    DLTensor params[EXPERT_MAX_PARAMETERS];
    const char *names[EXPERT_MAX_PARAMETERS];
    float *grads[EXPERT_MAX_PARAMETERS];
    struct error_sum input = {0};
    struct error_sum all = {0};
    struct skep_error err;
    size_t n = expert_parameters(e, names, params, EXPERT_MAX_PARAMETERS);

    for (size_t i = 0; i < n; i++)
        grads[i] = mem_alloc(count_of(&params[i]) * sizeof(float));
    for (size_t i = 0; i < g->input_count; i++) {
        grad_inputs[i] = like(g->inputs[i]);
        views[i] = grad_inputs[i]->dl_tensor;
    }
    if (expert_gradients(e, g->input_views, skep_safetensors_find(g->file, "grad_output.0"), views,
                         grads, &err) != SKEP_OK)
        die("gradients", &err);
    for (size_t i = 0; i < count_of(want); i++)
        add_error(&input, (double)((float *)skep_tensor_data(&views[0]))[i], value_at(want, i));
    for (size_t i = 0; i < n; i++) {
        add_parameter(g, &all, "grad", "grad_sample", names[i], grads[i], NULL);
        mem_free(grads[i]);
    }
    check_bound("input gradient", &input, gradient_bound(expert_class_name(e)));
    check_bound("parameter gradients", &all, gradient_bound(expert_class_name(e)));
    for (size_t i = 0; i < g->input_count; i++)
        skep_tensor_free(grad_inputs[i]);
}

/* Three steps of plain SGD: a copy of the weights that did not follow a step would be seen. */
static void check_steps(const struct golden *g, struct skep_expert_options *o)
{
    DLManagedTensor *grad_inputs[MAX_INPUTS];
    DLTensor views[MAX_INPUTS];
    DLTensor params[EXPERT_MAX_PARAMETERS];
    const char *names[EXPERT_MAX_PARAMETERS];
    struct error_sum change = {0};
    struct skep_error err;

    if (!add_optimizer(g, "sgd", o))
        return;
    struct expert *e = create(g, o);
    size_t n = expert_parameters(e, names, NULL, EXPERT_MAX_PARAMETERS);
    for (size_t i = 0; i < g->input_count; i++) {
        grad_inputs[i] = like(g->inputs[i]);
        views[i] = grad_inputs[i]->dl_tensor;
    }
    for (int step = 0; step < 3; step++)
        if (expert_backward(e, g->input_views, skep_safetensors_find(g->file, "grad_output.0"),
                            views, &err) != SKEP_OK)
            die("backward", &err);
    expert_parameters(e, NULL, params, EXPERT_MAX_PARAMETERS);
    for (size_t i = 0; i < n; i++)
        add_parameter(g, &change, "after3.sgd", "after3_sample.sgd", names[i],
                      skep_tensor_data(&params[i]),
                      skep_tensor_data(find(g, "param.%s%s", names[i], "")));
    assert_true(change.reference > 0.0);
    check_bound("change in three steps", &change, gradient_bound(expert_class_name(e)));
    for (size_t i = 0; i < g->input_count; i++)
        skep_tensor_free(grad_inputs[i]);
    expert_free(e);
}

static void golden_file_is_matched_in_bfloat16(void **state)
{
    struct golden g;

    golden_open(&g, *state);
    struct skep_expert_options o = options_of(&g);
    o.precision = "bfloat16";
    struct expert *e = create(&g, &o);
    assert_string_equal(expert_precision_name(e), "bfloat16");
    if (strcmp(o.cls, "nop") != 0) {
        check_forward(&g, e);
        check_gradients(&g, e);
        check_steps(&g, &o);
    }
    expert_free(e);
    skep_safetensors_close(g.file);
}

int main(void)
{
    return golden_run("golden experts in bfloat16", golden_file_is_matched_in_bfloat16);
}
