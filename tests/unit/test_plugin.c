/* Plugins: the worked example alone and through a node, and everything that is refused. */
#include "node_caller.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <skep/plugin.h>

#include "experts/class.h"
#include "experts/expert.h"
#include "tempdir.h"

enum { ROWS = 3, RANK = 4 };

static const char *path_of(const char *name, char out[static 512])
{
    snprintf(out, 512, "%s/%s.so", PLUGIN_DIR, name);
    return out;
}

static void load(const char *path)
{
    struct skep_error err;

    if (skep_plugin_load(path, &err) != SKEP_OK)
        fail_msg("%s", err.message);
}

/* The sentence must name the file and say the given part. */
static void load_refused(const char *path, skep_status status, const char *part)
{
    struct skep_error err = {0};

    assert_int_equal(skep_plugin_load(path, &err), status);
    if (strstr(err.message, path) == NULL || strstr(err.message, part) == NULL)
        fail_msg("\"%s\", expected the path and \"%s\"", err.message, part);
}

static struct skep_expert_options options_for(const char *cls)
{
    struct skep_expert_options o;

    skep_expert_options_init(&o);
    o.cls = cls;
    o.hidden_dim = HIDDEN;
    o.intermediate_dim = RANK;
    return o;
}

static struct expert *create(const struct skep_expert_options *o)
{
    struct expert *e;
    struct skep_error err;

    if (expert_new(o, &e, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    return e;
}

/* --- the example --------------------------------------------------------------------------- */

static void example_starts_as_the_identity(void **state)
{
    (void)state;
    struct skep_expert_options o = options_for("adapter");
    DLManagedTensor *x = rows_of(ROWS, 1);
    DLManagedTensor *y = rows_of(ROWS, 2);

    load(EXAMPLE_PLUGIN);
    struct expert *e = create(&o);
    assert_string_equal(expert_class_name(e), "adapter");
    assert_int_equal(expert_parameter_count(e), 2 * RANK * HIDDEN + HIDDEN);
    assert_true(expert_is_bounded(e));
    assert_int_equal(expert_forward(e, &x->dl_tensor, &y->dl_tensor, NULL), SKEP_OK);
    assert_same(x, y); /* gain 1, up 0 */
    skep_tensor_free(x);
    skep_tensor_free(y);
    expert_free(e);
}

/* The sum of y * dy: what backward differentiates. */
static double loss(struct expert *e, DLManagedTensor *x, DLManagedTensor *dy)
{
    DLManagedTensor *y = rows_of(ROWS, 0);
    double sum = 0.0;

    assert_int_equal(expert_forward(e, &x->dl_tensor, &y->dl_tensor, NULL), SKEP_OK);
    for (size_t i = 0; i < ROWS * HIDDEN; i++)
        sum += (double)((float *)y->dl_tensor.data)[i] * (double)((float *)dy->dl_tensor.data)[i];
    skep_tensor_free(y);
    return sum;
}

/* Both are linear in each single number, so a difference of any size is exact but for rounding. */
static void check_slope(struct expert *e, DLManagedTensor *x, DLManagedTensor *dy, float *number,
                        float gradient)
{
    const float step = 0.25f;
    float was = *number;

    *number = was + step;
    double above = loss(e, x, dy);
    *number = was - step;
    double below = loss(e, x, dy);
    *number = was;
    double slope = (above - below) / (2.0 * (double)step);
    if (fabs(slope - (double)gradient) > 1e-4 * (1.0 + fabs(slope)))
        fail_msg("gradient %g, differences give %g", (double)gradient, slope);
}

static void gradients_of_the_example_are_its_slopes(void **state)
{
    (void)state;
    struct skep_expert_options o = options_for("adapter");
    DLManagedTensor *x = rows_of(ROWS, 1);
    DLManagedTensor *dy = rows_of(ROWS, 2);
    DLManagedTensor *dx = rows_of(ROWS, 3);
    DLTensor views[3];
    float *grads[3];

    load(EXAMPLE_PLUGIN);
    struct expert *e = create(&o);
    assert_int_equal(expert_parameters(e, NULL, views, 3), 3);
    size_t counts[3] = {RANK * HIDDEN, HIDDEN * RANK, HIDDEN};
    for (size_t p = 0; p < 3; p++) {
        grads[p] = malloc(counts[p] * sizeof(float));
        for (size_t i = 0; i < counts[p]; i++)
            ((float *)views[p].data)[i] = cosf((float)(i * 3 + p));
    }
    assert_int_equal(
        expert_gradients(e, &x->dl_tensor, &dy->dl_tensor, &dx->dl_tensor, grads, NULL), SKEP_OK);
    for (size_t p = 0; p < 3; p++)
        for (size_t i = 0; i < counts[p]; i += 5)
            check_slope(e, x, dy, (float *)views[p].data + i, grads[p][i]);
    for (size_t i = 0; i < ROWS * HIDDEN; i += 7)
        check_slope(e, x, dy, (float *)x->dl_tensor.data + i, ((float *)dx->dl_tensor.data)[i]);
    for (size_t p = 0; p < 3; p++)
        free(grads[p]);
    skep_tensor_free(x);
    skep_tensor_free(dy);
    skep_tensor_free(dx);
    expert_free(e);
}

static void example_serves_and_trains_through_a_node(void **state)
{
    (void)state;
    struct skep_node_options options;
    struct skep_expert_options expert = options_for("adapter");
    struct skep_expert_stats stats;
    const uint8_t id[MESSAGE_REQUEST_ID_BYTES] = {1};
    struct skep_node *node;
    struct caller caller;
    struct reply reply;
    DLManagedTensor *x = rows_of(ROWS, 1);

    load(EXAMPLE_PLUGIN);
    node_options(&options);
    expert.learning_rate = 0.1;
    assert_int_equal(skep_node_new(&options, &node, NULL), SKEP_OK);
    assert_int_equal(skep_node_add_expert(node, "t.1", &expert, NULL), SKEP_OK);
    start_node(node);
    caller_init(&caller, node);
    struct request r = backward_of(x, x, id);
    call(&caller, &r, &reply);
    assert_int_equal(reply.status, SKEP_OK);
    assert_same(reply.tensors[0], x); /* of the identity */
    reply_fini(&reply);
    r = forward_of(x);
    call(&caller, &r, &reply);
    assert_int_equal(reply.status, SKEP_OK);
    float y = ((float *)reply.tensors[0]->dl_tensor.data)[0];
    assert_true(fabsf(y) < fabsf(((float *)x->dl_tensor.data)[0])); /* the step made it smaller */
    reply_fini(&reply);
    assert_true(skep_node_expert_stats(node, 0, &stats));
    assert_string_equal(stats.cls, "adapter");
    assert_int_equal(stats.updates, 1);
    skep_tensor_free(x);
    caller_fini(&caller);
    skep_node_free(node);
}

/* What an expert answers is looked at where anomalies are: the caller hears of it, not the mixture.
 */
static void an_answer_that_is_not_finite_is_refused_where_asked_for(void **state)
{
    (void)state;
    for (int detect = 0; detect < 2; detect++) {
        struct skep_node_options options;
        struct skep_expert_options expert = options_for("writes_nan");
        DLManagedTensor *x = rows_of(ROWS, 1);
        struct skep_node *node;
        struct caller caller;
        struct reply reply;
        char path[512];

        load(path_of("writes_nan", path));
        node_options(&options);
        options.detect_anomalies = detect == 1;
        assert_int_equal(skep_node_new(&options, &node, NULL), SKEP_OK);
        assert_int_equal(skep_node_add_expert(node, "t.1", &expert, NULL), SKEP_OK);
        start_node(node);
        caller_init(&caller, node);
        for (int i = 0; i < 100; i++) { /* one bad answer ends nothing */
            struct request r = forward_of(x);
            call(&caller, &r, &reply);
            assert_int_equal(reply.status, detect ? SKEP_INTERNAL : SKEP_OK);
            if (detect && strstr(reply.message, "NaN or infinity") == NULL)
                fail_msg("%s", reply.message);
            reply_fini(&reply);
        }
        skep_tensor_free(x);
        caller_fini(&caller);
        skep_node_free(node);
    }
}

/* --- refusals ------------------------------------------------------------------------------ */

static void files_that_are_no_plugins_are_refused(void **state)
{
    (void)state;
    struct tempdir dir;
    char text[512];
    char path[512];

    tempdir_make(&dir);
    load_refused(tempdir_file(&dir, "missing.so", text), SKEP_NOT_FOUND, "cannot read");
    tempdir_file(&dir, "text.so", text);
    FILE *f = fopen(text, "w");
    fputs("this is no shared object, long as it may be, and will not become one\n", f);
    fclose(f);
    load_refused(text, SKEP_FAILED_PRECONDITION, "not a shared object");
    load_refused(dir.path, SKEP_FAILED_PRECONDITION, "not a shared object");
    load_refused(path_of("not_one", path), SKEP_FAILED_PRECONDITION, "no symbol skep_plugin");
    tempdir_remove(&dir);
}

static void plugins_with_faults_are_refused_by_name(void **state)
{
    (void)state;
    char path[512];
    struct skep_expert_options o = options_for("other_version");
    struct skep_error err;

    load_refused(path_of("other_version", path), SKEP_FAILED_PRECONDITION, "version 3");
    load_refused(path_of("taken_name", path), SKEP_INVALID_ARGUMENT, "ffn is there already");
    load_refused(path_of("bad_name", path), SKEP_INVALID_ARGUMENT, "letters, digits");
    load_refused(path_of("lacks_forward", path), SKEP_INVALID_ARGUMENT, "lacks a function");
    load_refused(path_of("no_classes", path), SKEP_INVALID_ARGUMENT, "0 classes");
    assert_int_equal(expert_memory(&o, &(uint64_t){0}, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "is not known"));
}

static void new_refused(const char *name, const char *part)
{
    struct skep_expert_options o = options_for(name);
    struct expert *e = NULL;
    struct skep_error err = {0};
    char path[512];

    load(path_of(name, path));
    assert_int_equal(expert_new(&o, &e, &err), SKEP_FAILED_PRECONDITION);
    if (strstr(err.message, name) == NULL || strstr(err.message, part) == NULL)
        fail_msg("\"%s\", expected the class and \"%s\"", err.message, part);
    assert_null(e);
}

static void experts_that_describe_themselves_badly_are_refused_by_name(void **state)
{
    (void)state;
    new_refused("create_fails", "create: the moon is in the wrong phase");
    new_refused("no_inputs", "0 inputs, expected 1 to 8");
    new_refused("open_batch_missing", "the first of them -1");
    new_refused("equal_parameters", "two are named w");
    new_refused("too_many_parameters", "65, expected at most 64");
}

static void pass_refused(const char *name, const char *part)
{
    struct skep_expert_options o = options_for(name);
    DLManagedTensor *x = rows_of(ROWS, 1);
    DLManagedTensor *y = rows_of(ROWS, 2);
    struct skep_error err = {0};
    char path[512];

    load(path_of(name, path));
    struct expert *e = create(&o);
    skep_status rc = expert_forward(e, &x->dl_tensor, &y->dl_tensor, &err);
    if (rc == SKEP_OK)
        rc = expert_backward(e, &x->dl_tensor, &x->dl_tensor, &y->dl_tensor, &err);
    assert_int_equal(rc, SKEP_INTERNAL);
    if (strstr(err.message, name) == NULL || strstr(err.message, part) == NULL)
        fail_msg("\"%s\", expected the class and \"%s\"", err.message, part);
    assert_int_equal(expert_update_count(e), 0);
    assert_int_equal(x->dl_tensor.shape[0], ROWS);
    assert_int_equal(y->dl_tensor.shape[0], ROWS);
    skep_tensor_free(x);
    skep_tensor_free(y);
    expert_free(e);
}

static void passes_that_misbehave_fail_by_name(void **state)
{
    (void)state;
    pass_refused("moves_output", "another place or shape");
    pass_refused("strange_status", "status 4711");
    pass_refused("backward_fails", "backward: failed without saying why");
}

static void gradients_that_are_not_finite_are_not_stepped_with(void **state)
{
    (void)state;
    struct skep_expert_options o = options_for("none_at_all");
    DLManagedTensor *x = rows_of(ROWS, 1);
    DLManagedTensor *dx = rows_of(ROWS, 2);
    char path[512];

    load(path_of("none_at_all", path));
    struct expert *e = create(&o);
    ((float *)x->dl_tensor.data)[0] = NAN;
    assert_int_equal(expert_backward(e, &x->dl_tensor, &x->dl_tensor, &dx->dl_tensor, NULL),
                     SKEP_INVALID_ARGUMENT);
    assert_int_equal(expert_skipped_count(e), 1);
    skep_tensor_free(x);
    skep_tensor_free(dx);
    expert_free(e);
}

static void bfloat16_is_refused_for_classes_of_plugins(void **state)
{
    (void)state;
    struct skep_expert_options o = options_for("adapter");
    struct skep_error err;

    load(EXAMPLE_PLUGIN);
    o.precision = "bfloat16";
    assert_int_equal(expert_memory(&o, &(uint64_t){0}, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "expected float32 for class adapter"));
}

static void a_plugin_loads_twice_and_its_classes_are_listed(void **state)
{
    (void)state;
    struct skep_expert_options o = options_for("nothing-like-it");
    struct skep_error err;

    load(EXAMPLE_PLUGIN);
    load(EXAMPLE_PLUGIN);
    assert_int_equal(expert_memory(&o, &(uint64_t){0}, &err), SKEP_INVALID_ARGUMENT);
    const char *first = strstr(err.message, "adapter");
    assert_non_null(first);
    assert_null(strstr(first + 1, "adapter"));
    assert_non_null(strstr(err.message, "ffn"));
}

static void every_state_is_destroyed(void **state)
{
    (void)state;
    struct skep_expert_options o = options_for("none_at_all");
    char path[512];

    load(path_of("none_at_all", path));
    void *object = dlopen(path, RTLD_NOW);
    int (*living)(void);
    void *symbol = dlsym(object, "skep_test_living");
    assert_non_null(symbol);
    memcpy(&living, &symbol, sizeof(living));
    struct expert *e = create(&o);
    assert_int_equal(living(), 1);
    assert_int_equal(expert_memory(&o, &(uint64_t){0}, NULL), SKEP_OK);
    o.optimizer = "unheard of";
    assert_int_equal(expert_memory(&o, &(uint64_t){0}, NULL), SKEP_INVALID_ARGUMENT);
    assert_int_equal(living(), 1);
    expert_free(e);
    assert_int_equal(living(), 0);
    dlclose(object);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(example_starts_as_the_identity),
        cmocka_unit_test(gradients_of_the_example_are_its_slopes),
        cmocka_unit_test(example_serves_and_trains_through_a_node),
        cmocka_unit_test(an_answer_that_is_not_finite_is_refused_where_asked_for),
        cmocka_unit_test(files_that_are_no_plugins_are_refused),
        cmocka_unit_test(plugins_with_faults_are_refused_by_name),
        cmocka_unit_test(experts_that_describe_themselves_badly_are_refused_by_name),
        cmocka_unit_test(passes_that_misbehave_fail_by_name),
        cmocka_unit_test(gradients_that_are_not_finite_are_not_stepped_with),
        cmocka_unit_test(bfloat16_is_refused_for_classes_of_plugins),
        cmocka_unit_test(a_plugin_loads_twice_and_its_classes_are_listed),
        cmocka_unit_test(every_state_is_destroyed),
    };

    return cmocka_run_group_tests_name("plugins", tests, NULL, NULL);
}
