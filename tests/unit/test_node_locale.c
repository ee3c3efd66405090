/* A node inside a program that has set a locale: what it saves, it and others read. */
#include "node_caller.h"

#include <skep/safetensors.h>
#include "tempdir.h"

static struct tempdir dir;

static int make_dir(void **state)
{
    (void)state;
    tempdir_make(&dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    char command[512];

    snprintf(command, sizeof(command), "rm -r '%s'", dir.path);
    return system(command);
}

static void saving_options(struct skep_node_options *options)
{
    node_options(options);
    options->checkpoint_dir = dir.path;
}

/* Trains one expert of a node with settings that are no whole numbers, and stops it. */
static void train_and_stop(uint8_t steps, uint64_t before)
{
    struct skep_node_options options;
    struct caller caller;

    saving_options(&options);
    struct skep_node *node = new_node(&options, "t.1", "ffn");
    start_node(node);
    caller_init(&caller, node);
    for (uint8_t i = 0; i < steps; i++) {
        const uint8_t id[MESSAGE_REQUEST_ID_BYTES] = {i, (uint8_t)before};
        DLManagedTensor *x = rows_of(3, i), *g = rows_of(3, 10.0f + i);
        struct request request = backward_of(x, g, id);
        struct reply reply;

        call(&caller, &request, &reply);
        assert_int_equal(reply.status, SKEP_OK);
        reply_fini(&reply);
        skep_tensor_free(x);
        skep_tensor_free(g);
    }
    assert_int_equal(updates(node), before + steps);
    caller_fini(&caller);
    skep_node_stop(node);
    skep_node_free(node);
}

static void a_checkpoint_has_numbers_that_everybody_reads(void **state)
{
    (void)state;
    static const char *const numbers[] = {"skep.learning_rate", "skep.beta1", "skep.beta2",
                                          "skep.eps", "skep.weight_decay"};
    struct skep_safetensors *file;
    struct skep_error err;
    char path[512];

    train_and_stop(2, 0);
    tempdir_file(&dir, "t.1/checkpoint_last", path);
    if (skep_safetensors_open(path, &file, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        const char *text = skep_safetensors_metadata(file, numbers[i]);
        assert_non_null(text);
        if (strspn(text, "0123456789.e-+") != strlen(text))
            fail_msg("%s is %s", numbers[i], text);
    }
    assert_true(strncmp(skep_safetensors_metadata(file, "skep.learning_rate"), "0.01", 4) == 0);
    skep_safetensors_close(file);
}

static void a_node_goes_on_from_what_it_saved(void **state)
{
    (void)state;
    struct skep_node_options options;
    struct skep_expert_options training;
    struct skep_error err;
    size_t count;
    struct skep_node *node;

    train_and_stop(1, 2); /* goes on from the two of the test before */
    saving_options(&options);
    skep_expert_options_unset(&training);
    assert_int_equal(skep_node_new(&options, &node, &err), SKEP_OK);
    if (skep_node_load_experts(node, NULL, &training, &count, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(count, 1);
    start_node(node);
    skep_node_stop(node);
    skep_node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_has_numbers_that_everybody_reads),
        cmocka_unit_test(a_node_goes_on_from_what_it_saved),
    };
    return cmocka_run_group_tests_name("node under a locale", tests, make_dir, remove_dir);
}
