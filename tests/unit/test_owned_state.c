/* Expert classes that own their parameters and take the optimizer's step themselves. */
#include "node_caller.h"

#include <stdlib.h>
#include <skep/plugin.h>

#include "experts/checkpoint.h"
#include "experts/expert.h"
#include "tempdir.h"

enum { ROWS = 3 };

/* y = w * x. A step adds 1 to w. */
struct scale {
    float weight;
    int64_t steps;
    float saved_weight; /* the copy that save() lists */
    int64_t saved_steps;
    int64_t shape[1];
    DLTensor tensors[2];
    struct skep_named_tensor named[2];
};

static int live; /* states that were made and not destroyed */

static skep_status scale_create(const struct skep_expert_options *options, void **state,
                                struct skep_error *err)
{
    if (options->argument == NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT, "no argument, expected the first weight");
    struct scale *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    s->weight = strtof(options->argument, NULL);
    *state = s;
    live++;
    return SKEP_OK;
}

static void scale_destroy(void *state)
{
    live--;
    free(state);
}

static skep_status scale_describe(const void *state, struct skep_expert_schema *schema,
                                  struct skep_error *err)
{
    const struct skep_tensor_spec spec = {
        .name = "x", .dtype = DTYPE_F32, .ndim = 2, .shape = {-1, HIDDEN}};

    (void)state;
    (void)err;
    schema->input_count = schema->output_count = 1;
    schema->inputs[0] = schema->outputs[0] = spec;
    return SKEP_OK;
}

static size_t elements(const DLTensor *t)
{
    return (size_t)(t->shape[0] * t->shape[1]);
}

static skep_status scale_forward(void *state, const float *const *params, const DLTensor *inputs,
                                 DLTensor *outputs, struct skep_error *err)
{
    const struct scale *s = state;

    (void)err;
    assert_null(params);
    for (size_t i = 0; i < elements(inputs); i++)
        ((float *)outputs->data)[i] = s->weight * ((const float *)inputs->data)[i];
    return SKEP_OK;
}

static skep_status scale_backward(void *state, const float *const *params, const DLTensor *inputs,
                                  const DLTensor *grad_outputs, DLTensor *grad_inputs,
                                  float *const *grads, struct skep_error *err)
{
    struct scale *s = state;

    (void)inputs;
    assert_null(params);
    assert_null(grads);
    for (size_t i = 0; i < elements(grad_outputs); i++) {
        float g = ((const float *)grad_outputs->data)[i];

        if (!isfinite(g))
            return error_set(err, SKEP_INVALID_ARGUMENT, "a gradient is not finite");
        ((float *)grad_inputs->data)[i] = s->weight * g;
    }
    s->weight += 1.0f;
    s->steps++;
    return SKEP_OK;
}

static uint64_t scale_count(const void *state)
{
    (void)state;
    return 1;
}

static skep_status scale_save(void *state, const struct skep_named_tensor **tensors, size_t *count,
                              struct skep_error *err)
{
    struct scale *s = state;

    (void)err;
    s->saved_weight = s->weight;
    s->saved_steps = s->steps;
    s->shape[0] = 1;
    s->tensors[0] = (DLTensor){.data = &s->saved_weight,
                               .device = {kDLCPU, 0},
                               .ndim = 1,
                               .dtype = DTYPE_F32,
                               .shape = s->shape};
    s->tensors[1] = (DLTensor){.data = &s->saved_steps,
                               .device = {kDLCPU, 0},
                               .ndim = 0,
                               .dtype = {kDLInt, 64, 1},
                               .shape = s->shape};
    s->named[0] = (struct skep_named_tensor){.name = "weight", .tensor = &s->tensors[0]};
    s->named[1] = (struct skep_named_tensor){.name = "optimizer.steps", .tensor = &s->tensors[1]};
    *tensors = s->named;
    *count = 2;
    return SKEP_OK;
}

static skep_status scale_load(void *state, const struct skep_named_tensor *tensors, size_t count,
                              struct skep_error *err)
{
    struct scale *s = state;
    const DLTensor *weight = NULL, *steps = NULL;

    for (size_t i = 0; i < count; i++) {
        if (strcmp(tensors[i].name, "weight") == 0)
            weight = tensors[i].tensor;
        else if (strcmp(tensors[i].name, "optimizer.steps") == 0)
            steps = tensors[i].tensor;
        else
            return error_set(err, SKEP_FAILED_PRECONDITION, "unknown tensor %s", tensors[i].name);
    }
    if (weight == NULL || steps == NULL)
        return error_set(err, SKEP_FAILED_PRECONDITION, "a tensor is missing");
    memcpy(&s->weight, skep_tensor_data(weight), sizeof(s->weight));
    memcpy(&s->steps, skep_tensor_data(steps), sizeof(s->steps));
    return SKEP_OK;
}

static const struct skep_expert_class scale_class = {
    .name = "scale",
    .create = scale_create,
    .destroy = scale_destroy,
    .describe = scale_describe,
    .forward = scale_forward,
    .backward = scale_backward,
    .owns_state = true,
    .parameter_count = scale_count,
    .save = scale_save,
    .load = scale_load,
};

static const struct skep_plugin plugin = {SKEP_PLUGIN_ABI, 1, &scale_class};

static int register_class(void **state)
{
    struct skep_error err;

    (void)state;
    if (skep_plugin_register(&plugin, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    return 0;
}

static struct skep_expert_options options_with(const char *argument)
{
    struct skep_expert_options o;

    skep_expert_options_init(&o);
    o.cls = "scale";
    o.argument = argument;
    return o;
}

static struct expert *create(const char *argument)
{
    struct skep_expert_options o = options_with(argument);
    struct skep_error err;
    struct expert *e;

    if (expert_new(&o, &e, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    return e;
}

static float first_output(struct expert *e)
{
    DLManagedTensor *x = rows_of(ROWS, 1), *y = rows_of(ROWS, 2);

    assert_int_equal(expert_forward(e, &x->dl_tensor, &y->dl_tensor, NULL), SKEP_OK);
    float factor = ((float *)y->dl_tensor.data)[0] / ((float *)x->dl_tensor.data)[0];
    skep_tensor_free(x);
    skep_tensor_free(y);
    return roundf(factor * 1024.0f) / 1024.0f;
}

static skep_status step(struct expert *e, float gradient)
{
    DLManagedTensor *x = rows_of(ROWS, 1), *g = rows_of(ROWS, 2), *dx = rows_of(ROWS, 3);
    struct skep_error err;

    ((float *)g->dl_tensor.data)[0] = gradient;
    skep_status rc = expert_backward(e, &x->dl_tensor, &g->dl_tensor, &dx->dl_tensor, &err);
    skep_tensor_free(x);
    skep_tensor_free(g);
    skep_tensor_free(dx);
    return rc;
}

static void steps_are_the_classs_and_counted(void **state)
{
    (void)state;
    struct expert *e = create("2");

    assert_true(expert_owns_state(e));
    assert_int_equal(expert_parameter_count(e), 1);
    assert_true(first_output(e) == 2.0f);
    assert_int_equal(step(e, 1.0f), SKEP_OK);
    assert_true(first_output(e) == 3.0f);
    assert_int_equal(step(e, NAN), SKEP_INVALID_ARGUMENT);
    assert_true(first_output(e) == 3.0f);
    assert_int_equal(expert_update_count(e), 1);
    assert_int_equal(expert_skipped_count(e), 1);
    expert_free(e);
    assert_int_equal(live, 0);
}

static void checkpoints_hold_what_the_class_lists(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    struct expert *e = create("2"), *again = create("0");
    struct checkpoint_header header = {.uid = "t.1", .options = *expert_settings(e)};
    struct checkpoint *c;
    struct skep_error err;

    tempdir_make(&dir);
    tempdir_file(&dir, "a.safetensors", path);
    assert_int_equal(step(e, 1.0f), SKEP_OK);
    assert_int_equal(expert_snapshot(e, NULL, &header.counters, CLOCK_NEVER, &err), SKEP_OK);
    assert_int_equal(step(e, 1.0f), SKEP_OK); /* the snapshot is a copy */
    assert_int_equal(checkpoint_save(path, &header, e, NULL, &err), SKEP_OK);
    assert_int_equal(checkpoint_open(path, &c, &err), SKEP_OK);
    assert_string_equal(checkpoint_header(c)->options.argument, "2");
    assert_false(checkpoint_header(c)->has_training);
    if (checkpoint_apply(c, path, again, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    assert_true(first_output(again) == 3.0f);
    assert_int_equal(expert_update_count(again), 1);
    checkpoint_close(c);
    expert_free(e);
    expert_free(again);
    tempdir_remove(&dir);
}

static void a_checkpoint_that_does_not_fit_changes_nothing(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    float one = 9.0f;
    int64_t shape[1] = {1};
    DLTensor tensor = {
        .data = &one, .device = {kDLCPU, 0}, .ndim = 1, .dtype = DTYPE_F32, .shape = shape};
    const struct skep_named_tensor other[] = {{.name = "bias", .tensor = &tensor}};
    struct expert *e = create("2");
    struct skep_error err = {0};

    tempdir_make(&dir);
    tempdir_file(&dir, "a.safetensors", path);
    assert_int_equal(expert_load_state(e, other, 1, &err), SKEP_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "bias"));
    assert_true(first_output(e) == 2.0f);
    expert_free(e);
    tempdir_remove(&dir);
}

static void classes_without_their_functions_are_refused(void **state)
{
    (void)state;
    struct skep_expert_class lacking = scale_class;
    const struct skep_plugin bad = {SKEP_PLUGIN_ABI, 1, &lacking};
    const struct skep_plugin old = {SKEP_PLUGIN_ABI - 1, 1, &scale_class};
    struct skep_error err = {0};

    lacking.name = "lacking";
    lacking.save = NULL;
    assert_int_equal(skep_plugin_register(&bad, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "save and load"));
    assert_int_equal(skep_plugin_register(&old, &err), SKEP_FAILED_PRECONDITION);
    assert_int_equal(skep_plugin_register(NULL, &err), SKEP_INVALID_ARGUMENT);
    assert_int_equal(skep_plugin_register(&plugin, &err), SKEP_OK); /* once more */
}

static void arguments_are_for_those_who_take_them(void **state)
{
    (void)state;
    struct skep_expert_options o = options_with(NULL);
    char longer[SKEP_EXPERT_ARGUMENT_BYTES + 1];
    struct skep_error err = {0};
    struct expert *e;

    assert_int_equal(expert_new(&o, &e, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "first weight"));
    memset(longer, '1', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    o.argument = longer;
    assert_int_equal(expert_new(&o, &e, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "1024 bytes"));
    o.cls = "ffn";
    o.argument = "x";
    assert_int_equal(expert_new(&o, &e, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "takes no argument"));
    o = options_with(NULL);
    o.cls = "scale:5";
    assert_int_equal(expert_new(&o, &e, &err), SKEP_OK);
    assert_true(first_output(e) == 5.0f);
    assert_string_equal(expert_class_name(e), "scale");
    expert_free(e);
    assert_int_equal(live, 0);
}

/* Through a node, twice: the second one continues where the first stopped. */
static void a_node_trains_saves_and_restores_it(void **state)
{
    (void)state;
    struct tempdir dir;
    DLManagedTensor *x = rows_of(ROWS, 1);

    tempdir_make(&dir);
    for (uint8_t round = 0; round < 2; round++) {
        struct skep_node_options options;
        struct skep_expert_options expert = options_with("2");
        const uint8_t id[MESSAGE_REQUEST_ID_BYTES] = {round};
        struct skep_node *node;
        struct caller caller;
        struct reply reply;

        node_options(&options);
        options.checkpoint_dir = dir.path;
        assert_int_equal(skep_node_new(&options, &node, NULL), SKEP_OK);
        assert_int_equal(skep_node_add_expert(node, "t.1", &expert, NULL), SKEP_OK);
        start_node(node);
        caller_init(&caller, node);
        struct request r = backward_of(x, x, id);
        call(&caller, &r, &reply);
        assert_int_equal(reply.status, SKEP_OK);
        float factor =
            ((float *)reply.tensors[0]->dl_tensor.data)[0] / ((float *)x->dl_tensor.data)[0];
        assert_true(fabsf(factor - (round == 0 ? 2.0f : 3.0f)) < 1e-5f);
        reply_fini(&reply);
        assert_int_equal(updates(node), round + 1u);
        caller_fini(&caller);
        skep_node_free(node);
    }
    skep_tensor_free(x);
    assert_int_equal(live, 0);
    char command[600];
    tempdir_file(&dir, "t.1", command);
    struct tempdir inner;
    snprintf(inner.path, sizeof(inner.path), "%s", command);
    tempdir_remove(&inner);
    tempdir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_the_classs_and_counted),
        cmocka_unit_test(checkpoints_hold_what_the_class_lists),
        cmocka_unit_test(a_checkpoint_that_does_not_fit_changes_nothing),
        cmocka_unit_test(classes_without_their_functions_are_refused),
        cmocka_unit_test(arguments_are_for_those_who_take_them),
        cmocka_unit_test(a_node_trains_saves_and_restores_it),
    };

    return cmocka_run_group_tests(tests, register_class, NULL);
}
