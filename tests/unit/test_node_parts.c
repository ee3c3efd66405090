/* Parts of a node that need no network: what it announces, how it chooses UIDs, memory, options. */
#include "unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <skep/log.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "node/reach/announce.h"
#include "node/lifecycle/memory.h"
#include "node/lifecycle/node_internal.h"
#include "node/reach/own_address.h"
#include "node/lifecycle/pattern.h"
#include "node/lifecycle/settings.h"

/* --- announce ------------------------------------------------------------------------------ */

struct seen {
    const char *v4, *v6;
};

static bool ask(void *arg, bool v6, struct endpoint *out)
{
    const struct seen *seen = arg;
    const char *host = v6 ? seen->v6 : seen->v4;

    if (host == NULL)
        return false;
    *out = (struct endpoint){.port = 4222};
    snprintf(out->host, sizeof(out->host), "%s", host);
    return true;
}

static struct endpoint endpoint_of(const char *text)
{
    struct endpoint e;

    assert_int_equal(endpoint_parse(&e, text, true, NULL), SKEP_OK);
    return e;
}

/* What is announced, as text with spaces between; "" if nothing. */
static const char *announced(const char *wish, const char *bound, bool loopback, struct seen seen)
{
    static char text[2 * ENDPOINT_TEXT_BYTES];
    struct endpoint wished;
    struct announce_input input = {.bound = endpoint_of(bound), .loopback_allowed = loopback};
    struct endpoint out[ANNOUNCE_MAX];
    size_t used = 0;

    if (wish != NULL) {
        wished = endpoint_of(wish);
        input.preset = &wished;
    }
    size_t count = announce_pick(&input, ask, &seen, out);
    text[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        char one[ENDPOINT_TEXT_BYTES];

        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i > 0 ? " " : "",
                                 endpoint_format(&out[i], one));
    }
    return text;
}

static void endpoint_announced_follows_the_rule(void **state)
{
    (void)state;
    const struct seen none = {0};
    const struct seen both = {"192.0.2.7", "2001:db8::7"};

    /* What a person says wins; its open port is the bound one. */
    assert_string_equal(announced("node.example:*", "0.0.0.0:9000", false, both),
                        "node.example:9000");
    assert_string_equal(announced("192.0.2.1:80", "127.0.0.1:9000", false, none), "192.0.2.1:80");
    /* Unless nobody could dial it. */
    assert_string_equal(announced("127.0.0.1:80", "0.0.0.0:9000", false, both), "");
    assert_string_equal(announced("localhost:80", "0.0.0.0:9000", false, both), "");
    assert_string_equal(announced("localhost:80", "0.0.0.0:9000", true, both), "localhost:80");
    /* Then what is listened on. */
    assert_string_equal(announced(NULL, "192.0.2.9:9000", false, both), "192.0.2.9:9000");
    assert_string_equal(announced(NULL, "127.0.0.1:9000", true, both), "127.0.0.1:9000");
    assert_string_equal(announced(NULL, "127.0.0.1:9000", false, both), "");
    /* Then what others see, with our own port. */
    assert_string_equal(announced(NULL, "0.0.0.0:9000", false, both), "192.0.2.7:9000");
    assert_string_equal(announced(NULL, "[::]:9000", false, both),
                        "192.0.2.7:9000 [2001:db8::7]:9000");
    assert_string_equal(announced(NULL, "0.0.0.0:9000", false, none), "");
}

static void unusable_addresses_seen_by_others_are_not_announced(void **state)
{
    (void)state;
    const char *bad[] = {"", "0.0.0.0", "::", "127.0.0.1"};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_string_equal(announced(NULL, "0.0.0.0:9000", false, (struct seen){bad[i], NULL}),
                            "");
    assert_string_equal(announced(NULL, "0.0.0.0:9000", true, (struct seen){"127.0.0.1", NULL}),
                        "127.0.0.1:9000");
}

/* --- patterns ------------------------------------------------------------------------------ */

struct grid {
    bool taken[64];
    size_t asked;
};

static skep_status is_taken(void *arg, const char *const *uids, size_t count, bool *taken,
                            struct skep_error *err)
{
    struct grid *grid = arg;

    (void)err;
    for (size_t i = 0; i < count; i++) {
        struct uid uid;

        assert_int_equal(uid_parse(&uid, uids[i], NULL), SKEP_OK);
        assert_true(uid.coords[0] < 8 && uid.coords[1] < 8);
        taken[i] = grid->taken[uid.coords[0] * 8 + uid.coords[1]];
        grid->asked++;
    }
    return SKEP_OK;
}

static void last_free_uids_are_found_without_repetition(void **state)
{
    (void)state;
    struct uid_pattern pattern;
    struct grid grid = {0};
    char uids[64][UID_BYTES];
    size_t chosen;
    struct skep_error err;

    assert_int_equal(uid_pattern_parse(&pattern, "ffn.[0:8].[0:8]", NULL), SKEP_OK);
    for (int i = 0; i < 64; i++)
        grid.taken[i] = i % 4 != 0; /* 16 are free */
    assert_int_equal(pattern_choose(&pattern, 16, is_taken, &grid, uids, &chosen, &err), SKEP_OK);
    assert_int_equal(chosen, 16);
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(uids[i], uids[k]);
    assert_int_equal(pattern_choose(&pattern, 17, is_taken, &grid, uids, &chosen, &err), SKEP_OK);
    assert_int_equal(chosen, 16);
    assert_int_equal(pattern_refuse(&pattern, 16, 17, &err), SKEP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "16 of 64"));
    assert_non_null(strstr(err.message, "--allow-fewer"));
}

static void whole_grid_can_be_chosen(void **state)
{
    (void)state;
    struct uid_pattern pattern;
    struct grid grid = {0};
    char uids[64][UID_BYTES];
    size_t chosen;

    assert_int_equal(uid_pattern_parse(&pattern, "ffn.[0:8].[0:8]", NULL), SKEP_OK);
    assert_int_equal(pattern_choose(&pattern, 64, is_taken, &grid, uids, &chosen, NULL), SKEP_OK);
    assert_int_equal(chosen, 64);
    assert_int_equal(grid.asked, 64);
    for (int i = 0; i < 64; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(uids[i], uids[k]);
}

/* --- memory -------------------------------------------------------------------------------- */

static void experts_that_cannot_fit_are_refused_with_figures(void **state)
{
    (void)state;
    struct expert_description nop = {.bytes = 64, .gradient_bytes = 64};
    struct memory_sum sum = {0};
    struct skep_error err;
    uint64_t peak;

    nop.schema.input_count = nop.schema.output_count = 1;
    nop.schema.inputs[0] = nop.schema.outputs[0] =
        (struct skep_tensor_spec){.dtype = DTYPE_F32, .ndim = 2, .shape = {-1, 1024}};
    memory_add(&sum, &nop, 16);
    assert_int_equal(sum.experts, 16);
    assert_int_equal(sum.row, 2 * 1024 * 4);
    peak = memory_peak(&sum, 1000);
    assert_true(peak >= 16 * 64 + 64 + 1000 * 2 * 1024 * 4);
    assert_int_equal(memory_check(&sum, 1000, peak, &err), SKEP_OK);
    assert_int_equal(memory_check(&sum, 1000, peak - 1, &err), SKEP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "16 experts"));
    assert_non_null(strstr(err.message, "max_memory"));
    assert_non_null(strstr(err.message, "max_batch_size"));
    assert_int_equal(memory_peak(&sum, INT64_MAX), UINT64_MAX);
    assert_true(memory_available() > 0);
}

static void a_sum_beyond_all_numbers_is_refused(void **state)
{
    (void)state;
    struct expert_description huge = {.bytes = UINT64_MAX / 2, .gradient_bytes = 4};
    struct memory_sum sum = {0};

    memory_add(&sum, &huge, 3);
    assert_int_equal(sum.fixed, UINT64_MAX);
    assert_int_equal(memory_check(&sum, 1, 0, NULL), SKEP_RESOURCE_EXHAUSTED);
}

static void a_copy_for_saving_is_counted_once(void **state)
{
    (void)state;
    struct expert_description d = {.bytes = 1000, .gradient_bytes = 10};
    struct memory_sum without = {0};
    struct memory_sum with = {.has_copy = true};

    memory_add(&without, &d, 7);
    memory_add(&with, &d, 7);
    assert_int_equal(memory_peak(&with, 1), memory_peak(&without, 1) + 1000);
}

/* --- options ------------------------------------------------------------------------------- */

static void refuse(const struct skep_node_options *options, skep_status status, const char *part)
{
    struct settings settings;
    struct skep_error err;

    assert_int_equal(settings_init(&settings, options, &err), status);
    if (strstr(err.message, part) == NULL)
        fail_msg("\"%s\" does not name \"%s\"", err.message, part);
}

static void bad_options_are_named(void **state)
{
    (void)state;
    struct skep_node_options good;
    struct skep_node_options o;
    char long_name[200];

    skep_node_options_init(&good);
#define REFUSED(field, value, part)                                                                \
    do {                                                                                           \
        o = good;                                                                                  \
        o.field = value;                                                                           \
        refuse(&o, SKEP_INVALID_ARGUMENT, part);                                                   \
    } while (0)
    REFUSED(listen, "127.0.0.1", "listen");
    REFUSED(listen, NULL, "listen");
    REFUSED(dht_listen, "x:99999", "dht_listen");
    REFUSED(announce, "0.0.0.0:80", "announce");
    REFUSED(announce, "a b:80", "announce");
    REFUSED(swarm, "", "swarm");
    REFUSED(update_period_s, 0, "update_period: 0");
    REFUSED(update_period_s, 1801, "1801");
    REFUSED(max_batch_size, 0, "max_batch_size");
    REFUSED(min_batch_size, 5000, "min_batch_size: 5000, expected 1 to 4096");
    REFUSED(max_queued_tasks, 0, "max_queued_tasks");
    REFUSED(max_connections, 0, "max_connections");
    REFUSED(max_message_bytes, 1, "max_message_bytes");
    REFUSED(num_handlers, 1000, "num_handlers");
    REFUSED(size, 0, "size");
    REFUSED(size, sizeof(o) + 8, "size");
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    REFUSED(swarm, long_name, "199 bytes");
#undef REFUSED
}

static void identity_files_are_checked_and_locked(void **state)
{
    (void)state;
    char folder[] = "/tmp/skep-test-XXXXXX";
    char path[64];
    char lock_path[80];
    struct skep_node_options o;
    struct settings first;
    struct settings again;
    char peer_id[PEER_ID_HEX_BYTES];

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/node.key", folder);
    snprintf(lock_path, sizeof(lock_path), "%s.lock", path);
    skep_node_options_init(&o);
    o.identity = path;
    assert_int_equal(settings_init(&first, &o, NULL), SKEP_OK);
    memcpy(peer_id, first.peer_id, sizeof(peer_id));
    refuse(&o, SKEP_FAILED_PRECONDITION, path);
    settings_fini(&first);

    assert_int_equal(settings_init(&again, &o, NULL), SKEP_OK);
    assert_string_equal(again.peer_id, peer_id);
    settings_fini(&again);

    assert_int_equal(chmod(path, 0644), 0);
    refuse(&o, SKEP_PERMISSION_DENIED, "chmod");
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(truncate(path, 10), 0);
    refuse(&o, SKEP_DATA_LOSS, path);
    o.identity = NULL;
    o.swarm_key = "/nonexistent/swarm.key";
    refuse(&o, SKEP_NOT_FOUND, "/nonexistent/swarm.key");
    unlink(path);
    unlink(lock_path);
    rmdir(folder);
}

static void seeds_differ_by_uid_and_repeat(void **state)
{
    (void)state;
    assert_true(skep_expert_seed(7, "ffn.1") == skep_expert_seed(7, "ffn.1"));
    assert_true(skep_expert_seed(7, "ffn.1") != skep_expert_seed(7, "ffn.2"));
    assert_true(skep_expert_seed(7, "ffn.1") != skep_expert_seed(8, "ffn.1"));
}

/* --- the machine's addresses --------------------------------------------------------------- */

static size_t addresses_of(const char *const *hosts, struct address *out)
{
    size_t count = 0;

    for (; hosts[count] != NULL; count++) {
        struct endpoint e = {.port = 0};
        snprintf(e.host, sizeof(e.host), "%s", hosts[count]);
        assert_true(endpoint_to_address(&e, &out[count]));
    }
    return count;
}

static bool take(struct own_addresses *own, const char *const *hosts)
{
    struct address list[OWN_ADDRESSES_MAX];

    return own_addresses_take(own, list, addresses_of(hosts, list));
}

static bool lost(const struct own_addresses *own, const char *text)
{
    const struct endpoint e = endpoint_of(text);

    return own_addresses_lost(own, &e);
}

static void addresses_that_have_gone_are_known(void **state)
{
    (void)state;
    struct own_addresses own = {.fd = -1};

    assert_true(take(&own, (const char *const[]){"127.0.0.1", "192.0.2.7", "2001:db8::7", NULL}));
    assert_false(take(&own, (const char *const[]){"2001:db8::7", "127.0.0.1", "192.0.2.7", NULL}));
    assert_false(lost(&own, "192.0.2.7:1"));
    /* One in the place of another: as many as before. */
    assert_true(take(&own, (const char *const[]){"127.0.0.1", "192.0.2.8", "2001:db8::7", NULL}));
    assert_true(lost(&own, "192.0.2.7:1"));
    assert_false(lost(&own, "192.0.2.8:1"));
    assert_false(lost(&own, "192.0.2.9:1")); /* never had */
    assert_false(lost(&own, "node.example:1"));
    /* It comes back. */
    assert_true(take(&own, (const char *const[]){"127.0.0.1", "192.0.2.7", NULL}));
    assert_false(lost(&own, "192.0.2.7:1"));
    assert_true(lost(&own, "192.0.2.8:1"));
    assert_true(lost(&own, "[2001:db8::7]:1"));
}

static void the_oldest_of_many_that_have_gone_is_forgotten(void **state)
{
    (void)state;
    struct own_addresses own = {.fd = -1};
    char text[32];

    for (int i = 0; i < OWN_ADDRESSES_GONE_MAX + 2; i++) { /* one has not gone */
        snprintf(text, sizeof(text), "192.0.2.%d", i);
        assert_true(take(&own, (const char *const[]){text, NULL}));
    }
    assert_false(lost(&own, "192.0.2.0:1"));
    assert_true(lost(&own, "192.0.2.1:1"));
    assert_int_equal(own.gone_count, OWN_ADDRESSES_GONE_MAX);
}

static void keep_line(enum skep_log_level level, const char *line, void *arg)
{
    (void)level;
    snprintf(arg, 128, "%s", line);
}

static void progress_is_logged_when_due(void **state)
{
    (void)state;
    char line[128] = "";
    uint64_t next_us = CLOCK_NEVER;

    skep_log_set(SKEP_LOG_INFO, keep_line, line);
    node_log_progress("experts made", 3, 2000, &next_us);
    assert_string_equal(line, "");
    next_us = clock_mono_us();
    uint64_t before_us = next_us;
    node_log_progress("experts made", 4, 2000, &next_us);
    skep_log_set(SKEP_LOG_WARNING, NULL, NULL);
    assert_string_equal(line, "experts made: 4 of 2000");
    assert_true(next_us > before_us);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_that_have_gone_are_known),
        cmocka_unit_test(the_oldest_of_many_that_have_gone_is_forgotten),
        cmocka_unit_test(endpoint_announced_follows_the_rule),
        cmocka_unit_test(unusable_addresses_seen_by_others_are_not_announced),
        cmocka_unit_test(last_free_uids_are_found_without_repetition),
        cmocka_unit_test(whole_grid_can_be_chosen),
        cmocka_unit_test(experts_that_cannot_fit_are_refused_with_figures),
        cmocka_unit_test(a_sum_beyond_all_numbers_is_refused),
        cmocka_unit_test(a_copy_for_saving_is_counted_once),
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(identity_files_are_checked_and_locked),
        cmocka_unit_test(seeds_differ_by_uid_and_repeat),
        cmocka_unit_test(progress_is_logged_when_due),
    };
    return cmocka_run_group_tests_name("node_parts", tests, NULL, NULL);
}
