/* Experts added to a node that serves, and removed from it. */
#include "own_swarm.h"
#include "looker.h"
#include "node_caller.h"
#include "tempdir.h"

#include <stdatomic.h>

static struct skep_node *serving(bool with_dht, const char *checkpoints)
{
    struct skep_node_options options;

    node_options(&options);
    options.no_dht = !with_dht;
    options.checkpoint_dir = checkpoints;
    struct skep_node *node = new_node(&options, NULL, "nop");
    start_node(node);
    return node;
}

static skep_status add(struct skep_node *node, const char *uid, const char *cls,
                       struct skep_error *err)
{
    struct skep_expert_options expert;

    expert_options(&expert, cls);
    return skep_node_add_expert(node, uid, &expert, err);
}

static void add_ok(struct skep_node *node, const char *uid, const char *cls)
{
    struct skep_error err;

    if (add(node, uid, cls, &err) != SKEP_OK)
        fail_msg("%s", err.message);
}

static skep_status answer_of(struct caller *caller, const char *uid)
{
    struct reply reply;

    call(caller, &(struct request){.method = "info", .uid = uid}, &reply);
    skep_status rc = reply.status;
    reply_fini(&reply);
    return rc;
}

static void added_experts_are_served_and_found(void **state)
{
    (void)state;
    struct skep_node *node = serving(true, NULL);
    struct looker looker;
    struct caller caller;
    struct skep_error err;

    caller_init(&caller, node);
    looker_init(&looker, skep_node_initial_peer(node));
    assert_int_equal(answer_of(&caller, "t.1"), SKEP_NOT_FOUND);
    add_ok(node, "t.1", "nop");
    assert_int_equal(skep_node_expert_count(node), 1);
    assert_int_equal(answer_of(&caller, "t.1"), SKEP_OK);
    assert_string_equal(look_up(&looker, "t.1").cls, "nop");

    assert_int_equal(skep_node_remove_expert(node, "t.1", TIMEOUT_MS, &err), SKEP_OK);
    assert_int_equal(skep_node_expert_count(node), 0);
    assert_int_equal(answer_of(&caller, "t.1"), SKEP_NOT_FOUND);
    look_until_gone(&looker, "t.1");

    add_ok(node, "t.1", "ffn"); /* the same UID as another class */
    do                          /* the withdrawal may be found once more */
        continue;
    while (strcmp(look_up(&looker, "t.1").cls, "ffn") != 0);
    looker_fini(&looker);
    caller_fini(&caller);
    skep_node_free(node);
}

static void what_cannot_be_added_or_removed_is_named(void **state)
{
    (void)state;
    struct skep_node *node = serving(false, NULL);
    struct skep_error err;

    add_ok(node, "t.1", "nop");
    assert_int_equal(add(node, "t.1", "nop", &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "t.1: added twice"));
    assert_int_equal(add(node, "t", "nop", &err), SKEP_INVALID_ARGUMENT);
    assert_int_equal(add(node, "t.2", "nosuch", &err), SKEP_INVALID_ARGUMENT);
    assert_int_equal(skep_node_remove_expert(node, "t.2", 1000, &err), SKEP_NOT_FOUND);
    assert_non_null(strstr(err.message, "t.2"));
    assert_int_equal(skep_node_remove_expert(node, NULL, 1000, &err), SKEP_INVALID_ARGUMENT);
    assert_int_equal(skep_node_expert_count(node), 1);
    skep_node_stop(node);
    assert_int_equal(add(node, "t.3", "nop", &err), SKEP_FAILED_PRECONDITION);
    assert_int_equal(skep_node_remove_expert(node, "t.1", 1000, &err), SKEP_FAILED_PRECONDITION);
    skep_node_free(node);
}

static void before_the_start_nothing_is_removed(void **state)
{
    (void)state;
    struct skep_node_options options;
    struct skep_error err;

    node_options(&options);
    struct skep_node *node = new_node(&options, "t.1", "nop");
    assert_int_equal(skep_node_remove_expert(node, "t.1", 1000, &err), SKEP_FAILED_PRECONDITION);
    skep_node_free(node);
}

/* What it learned is in the folder when it is removed, and comes back when it is added again. */
static void removed_experts_are_saved_and_come_back(void **state)
{
    (void)state;
    struct tempdir dir, inner;
    tempdir_make(&dir);
    struct skep_node *node = serving(false, dir.path);
    const uint8_t id[MESSAGE_REQUEST_ID_BYTES] = {1};
    DLManagedTensor *x = rows_of(4, 1);
    struct request backward = backward_of(x, x, id);
    struct caller caller;
    struct reply reply;
    struct skep_error err;
    char path[512];

    caller_init(&caller, node);
    add_ok(node, "t.1", "ffn");
    call(&caller, &backward, &reply);
    assert_int_equal(reply.status, SKEP_OK);
    reply_fini(&reply);
    assert_int_equal(skep_node_remove_expert(node, "t.1", TIMEOUT_MS, &err), SKEP_OK);
    add_ok(node, "t.1", "ffn");
    assert_int_equal(updates(node), 1);
    skep_tensor_free(x);
    caller_fini(&caller);
    skep_node_free(node);
    snprintf(inner.path, sizeof(inner.path), "%s", tempdir_file(&dir, "t.1", path));
    tempdir_remove(&inner);
    tempdir_remove(&dir);
}

struct churn {
    struct skep_node *node;
    const char *uid;
    atomic_bool is_over;
};

static void churn_main(void *arg)
{
    struct churn *c = arg;

    for (int i = 0; i < 50; i++) {
        struct skep_error err;

        assert_int_equal(add(c->node, c->uid, i % 2 == 0 ? "nop" : "ffn", &err), SKEP_OK);
        assert_int_equal(skep_node_remove_expert(c->node, c->uid, TIMEOUT_MS, &err), SKEP_OK);
    }
    atomic_store(&c->is_over, true);
}

/* Calls of one expert go on while two threads add and remove others, and call those, too. */
static void calls_go_on_meanwhile(void **state)
{
    (void)state;
    struct skep_node *node = serving(true, NULL);
    struct churn churns[2] = {{.node = node, .uid = "t.2"}, {.node = node, .uid = "t.3"}};
    struct thread threads[2] = {0};
    struct caller caller;
    struct skep_error err;

    add_ok(node, "t.1", "nop");
    caller_init(&caller, node);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(thread_start(&threads[i], "churn", churn_main, &churns[i], &err), SKEP_OK);
    while (!atomic_load(&churns[0].is_over) || !atomic_load(&churns[1].is_over)) {
        assert_int_equal(answer_of(&caller, "t.1"), SKEP_OK);
        skep_status rc = answer_of(&caller, "t.2");
        assert_true(rc == SKEP_OK || rc == SKEP_NOT_FOUND);
    }
    for (size_t i = 0; i < 2; i++)
        thread_join(&threads[i]);
    caller_fini(&caller);
    skep_node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(added_experts_are_served_and_found),
        cmocka_unit_test(what_cannot_be_added_or_removed_is_named),
        cmocka_unit_test(before_the_start_nothing_is_removed),
        cmocka_unit_test(removed_experts_are_saved_and_come_back),
        cmocka_unit_test(calls_go_on_meanwhile),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
