/*
 * Experts against the golden files: each file of $SKEP_GOLDEN_DIR/experts is one test. Formats,
 * rules and tolerances: tests/golden/README.md, sections 2 to 5. Files of classes, and optimizers,
 * that the library does not have are reported as skipped.
 */
#include "golden_file.h"

#include "base/alloc.h"

enum { MAX_STEPS = 5 };

static void check_value(const char *what, const char *name, size_t i, double got, double want,
                        double bound)
{
    /* Written so that a NaN fails. */
    if (!(fabs(got - want) <= bound))
        fail_msg("%s %s [%zu]: %.9g, expected %.9g, off by %.3g, allowed %.3g", what, name, i, got,
                 want, fabs(got - want), bound);
}

static void check_all(const char *what, const char *name, const float *got, const DLTensor *want,
                      double bound)
{
    for (size_t i = 0; i < count_of(want); i++)
        check_value(what, name, i, (double)got[i], value_at(want, i), bound);
}

/* The learning rates of steps 1 to 12, as the file lists them. */
static void check_rates(const struct golden *g, const char *opt,
                        const struct skep_expert_options *o)
{
    struct optimizer optimizer;
    char key[64];

    snprintf(key, sizeof(key), "opt.%s.lr_table", opt);
    const char *table = text_of(g, key);
    if (table == NULL)
        return;
    assert_int_equal(optimizer_init(&optimizer, o, 1, NULL), SKEP_OK);
    for (uint64_t step = 0; *table != '\0'; step++) {
        char *end;
        double want = strtod(table, &end);
        check_value("learning rate", opt, step + 1, optimizer_rate(&optimizer, step), want, 1e-12);
        table = *end == ',' ? end + 1 : end;
    }
    optimizer_fini(&optimizer);
}

static void check_schema(const struct golden *g, struct expert *e)
{
    const struct skep_expert_schema *schema = expert_schema(e);
    const DLTensor *outputs[1] = {skep_safetensors_find(g->file, "output.0")};
    int64_t rows = 0;
    struct skep_error err;

    if (schema_check(schema->inputs, schema->input_count, g->inputs, g->input_count, "input", &rows,
                     &err) != SKEP_OK)
        die("schema", &err);
    assert_int_equal(rows, (int64_t)number_of(g, NULL, "batch", 0));
    if (schema_check(schema->outputs, schema->output_count, outputs, 1, "output", &rows, &err) !=
        SKEP_OK)
        die("schema", &err);
    assert_int_equal(expert_parameter_count(e), (uint64_t)number_of(g, NULL, "num_params", -1));
}

static void check_output(const struct golden *g, struct expert *e, const DLTensor *want)
{
    DLManagedTensor *y = like(skep_safetensors_find(g->file, "output.0"));
    struct skep_error err;

    if (expert_forward(e, g->input_views, &y->dl_tensor, &err) != SKEP_OK)
        die("forward", &err);
    double bound = strcmp(expert_class_name(e), "nop") == 0 ? 0.0 : 3e-6 + 2e-6 * largest(want);
    check_all("output", "0", skep_tensor_data(&y->dl_tensor), want, bound);
    skep_tensor_free(y);
}

/* Both from L2, largest value and sum of the whole gradient, and from a sample of it. */
static void check_sampled_gradient(const struct golden *g, const char *name, const float *got,
                                   size_t n)
{
    const DLTensor *sample = find(g, "grad_sample.%s%s", name, "");
    const DLTensor *stats = find(g, "grad_stats.%s%s", name, "");
    const DLTensor *index = find(g, "index.%s%s", name, "");
    double sum = 0.0;
    double squares = 0.0;
    double max = 0.0;

    if (sample == NULL || stats == NULL || index == NULL)
        fail_msg("no gradient of %s in the file", name);
    double want_max = value_at(stats, 2);
    double want_l2 = value_at(stats, 1);
    const int32_t *at = skep_tensor_data(index);
    for (size_t i = 0; i < count_of(sample); i++) {
        assert_true((size_t)at[i] < n);
        check_value("gradient", name, (size_t)at[i], (double)got[at[i]], value_at(sample, i),
                    5e-6 * want_max);
    }
    for (size_t i = 0; i < n; i++) {
        sum += (double)got[i];
        squares += (double)got[i] * (double)got[i];
        max = fmax(max, fabs((double)got[i]));
    }
    check_value("gradient L2 of", name, 0, sqrt(squares), want_l2, 1e-5 * want_l2);
    check_value("gradient maximum of", name, 0, max, want_max, 1e-5 * want_max);
    check_value("gradient sum of", name, 0, sum, value_at(stats, 0), 1e-4 * want_l2);
}

static void check_input_gradients(const struct golden *g, DLManagedTensor *const *got)
{
    for (size_t i = 0; i < g->input_count; i++) {
        char number[8];
        snprintf(number, sizeof(number), "%zu", i);
        const DLTensor *want = find(g, "grad_input64.%s%s", number, "");
        if (want != NULL) {
            check_all("input gradient", number, skep_tensor_data(&got[i]->dl_tensor), want,
                      5e-6 * largest(want));
            continue;
        }
        size_t bytes;
        want = find(g, "grad_input.%s%s", number, "");
        assert_int_equal(skep_tensor_bytes(want, &bytes, NULL), SKEP_OK);
        assert_memory_equal(skep_tensor_data(&got[i]->dl_tensor), skep_tensor_data(want), bytes);
    }
}

static void check_gradients(const struct golden *g, struct expert *e)
{
    const DLTensor *grad_output = skep_safetensors_find(g->file, "grad_output.0");
    DLManagedTensor *grad_inputs[MAX_INPUTS];
    DLTensor grad_views[MAX_INPUTS];
    DLTensor params[EXPERT_MAX_PARAMETERS];
    const char *names[EXPERT_MAX_PARAMETERS];
    float *grads[EXPERT_MAX_PARAMETERS];
    struct skep_error err;
    size_t n = expert_parameters(e, names, params, EXPERT_MAX_PARAMETERS);

    for (size_t i = 0; i < n; i++)
        grads[i] = mem_alloc(count_of(&params[i]) * sizeof(float));
    for (size_t i = 0; i < g->input_count; i++) {
        grad_inputs[i] = like(g->inputs[i]);
        grad_views[i] = grad_inputs[i]->dl_tensor;
    }
    if (expert_gradients(e, g->input_views, grad_output, grad_views, grads, &err) != SKEP_OK)
        die("gradients", &err);
    check_input_gradients(g, grad_inputs);
    for (size_t i = 0; i < n; i++) {
        const DLTensor *whole = find(g, "grad.%s%s", names[i], "");
        if (whole != NULL)
            check_all("gradient", names[i], grads[i], whole, 5e-6 * largest(whole));
        else if (count_of(&params[i]) > 0)
            check_sampled_gradient(g, names[i], grads[i], count_of(&params[i]));
        mem_free(grads[i]);
    }
    for (size_t i = 0; i < g->input_count; i++)
        skep_tensor_free(grad_inputs[i]);
}

static bool is_unstable(const DLTensor *list, size_t position)
{
    const int32_t *at = list != NULL ? skep_tensor_data(list) : NULL;

    for (size_t i = 0; list != NULL && i < count_of(list); i++)
        if ((size_t)at[i] == position)
            return true;
    return false;
}

/* Compares the parameters with after<step>.<opt>; false if the file has none of this step. */
static bool check_parameters(const struct golden *g, struct expert *e, const char *opt, int step)
{
    const char *names[EXPERT_MAX_PARAMETERS];
    DLTensor params[EXPERT_MAX_PARAMETERS];
    size_t n = expert_parameters(e, names, params, EXPERT_MAX_PARAMETERS);
    bool is_adam = strncmp(opt, "adam", 4) == 0;
    bool found = false;

    for (size_t i = 0; i < n; i++) {
        char whole_name[32];
        char sample_name[32];
        snprintf(whole_name, sizeof(whole_name), "after%d.%s", step, opt);
        snprintf(sample_name, sizeof(sample_name), "after%d_sample.%s", step, opt);
        const DLTensor *whole = find(g, "%s.%s", whole_name, names[i]);
        const DLTensor *want = whole != NULL ? whole : find(g, "%s.%s", sample_name, names[i]);
        const DLTensor *index = whole != NULL ? NULL : find(g, "index.%s%s", names[i], "");
        const DLTensor *unstable = is_adam ? find(g, "unstable.%s%s", names[i], "") : NULL;
        const float *got = skep_tensor_data(&params[i]);

        if (want == NULL)
            continue;
        found = true;
        double bound = is_adam ? 3e-6 : 5e-6;
        if (step == 1 && strstr(opt, "_sched") != NULL) {
            bound = 0.0;
            unstable = NULL;
        }
        for (size_t k = 0; k < count_of(want); k++) {
            size_t at = index != NULL ? (size_t)((int32_t *)skep_tensor_data(index))[k] : k;
            if (!is_unstable(unstable, at))
                check_value(whole_name, names[i], at, (double)got[at], value_at(want, k), bound);
        }
    }
    return found;
}

static void check_optimizer(const struct golden *g, const char *opt)
{
    struct skep_expert_options o = options_of(g);
    const DLTensor *grad_output = skep_safetensors_find(g->file, "grad_output.0");
    DLManagedTensor *grad_inputs[MAX_INPUTS];
    DLTensor grad_views[MAX_INPUTS];
    struct skep_error err;
    int compared = 0;

    if (!add_optimizer(g, opt, &o)) {
        print_message("           optimizer %s is not known: skipped\n", opt);
        return;
    }
    check_rates(g, opt, &o);
    struct expert *e = create(g, &o);
    for (size_t i = 0; i < g->input_count; i++) {
        grad_inputs[i] = like(g->inputs[i]);
        grad_views[i] = grad_inputs[i]->dl_tensor;
    }
    for (int step = 1; step <= MAX_STEPS; step++) {
        if (expert_backward(e, g->input_views, grad_output, grad_views, &err) != SKEP_OK)
            die("backward", &err);
        if (step == 1)
            check_input_gradients(g, grad_inputs);
        assert_int_equal(expert_update_count(e), step);
        compared += check_parameters(g, e, opt, step);
    }
    assert_true(compared >= 2);
    for (size_t i = 0; i < g->input_count; i++)
        skep_tensor_free(grad_inputs[i]);
    expert_free(e);
}

static void check_optimizers(const struct golden *g)
{
    const char *list = text_of(g, "optimizers");
    char copy[256];
    char *rest = copy;

    snprintf(copy, sizeof(copy), "%s", list != NULL ? list : "");
    for (char *opt = strsep(&rest, ","); opt != NULL; opt = strsep(&rest, ","))
        if (opt[0] != '\0')
            check_optimizer(g, opt);
}

static void golden_file_is_matched(void **state)
{
    struct golden g;
    const struct expert_class *cls;

    golden_open(&g, *state);
    if (expert_class_find(text_of(&g, "arch"), &cls, NULL) != SKEP_OK)
        fail_msg("class %s is not known", text_of(&g, "arch"));
    struct skep_expert_options o = options_of(&g);
    struct expert *e = create(&g, &o);
    check_schema(&g, e);
    const DLTensor *output64 = skep_safetensors_find(g.file, "output64.0");
    check_output(&g, e, output64 != NULL ? output64 : skep_safetensors_find(g.file, "output.0"));
    check_gradients(&g, e);
    check_optimizers(&g);
    expert_free(e);
    const DLTensor *output_eval = skep_safetensors_find(g.file, "output_eval.0");
    if (output_eval != NULL) {
        o.evaluation = true;
        e = create(&g, &o);
        check_output(&g, e, output_eval);
        expert_free(e);
    }
    skep_safetensors_close(g.file);
}

int main(void)
{
    return golden_run("golden experts", golden_file_is_matched);
}
