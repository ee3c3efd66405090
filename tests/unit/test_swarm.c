/* Joining, staying joined, and leaving. */
#include <dirent.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "dht_net.h"
#include "dht/opendht/udp_port.h"
#include "tempdir.h"
#include "own_swarm.h"

static uint16_t free_port(void)
{
    struct endpoint any = {.host = "127.0.0.1"};
    struct udp_port port;

    assert_int_equal(udp_port_probe(&any, &port, NULL), SKEP_OK);
    return port.port;
}

static skep_status join(const char *listen_host, const char *const *peers, size_t count,
                        struct net_node *node, struct skep_error *err)
{
    assert_int_equal(identity_generate(&node->identity, NULL), SKEP_OK);
    struct swarm_config config = {
        .name = own_swarm(),
        .identity = &node->identity,
        .initial_peers = peers,
        .initial_peer_count = count,
    };
    snprintf(config.dht_listen.host, sizeof(config.dht_listen.host), "%s", listen_host);
    return swarm_join(&config, &node->swarm, err);
}

static bool sees(const struct net_node *from, const struct net_node *to, const char *uid)
{
    net_declare_expert(to, uid, 7001, 60, false);
    return net_get_port(from, uid, DIRECTORY_FRESH) == 7001;
}

/* ---- log lines ---- */

static struct {
    pthread_mutex_t lock;
    const char *part, *other_part;
    unsigned count;
} watched = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_line(enum skep_log_level level, const char *line, void *arg)
{
    (void)level;
    (void)arg;
    pthread_mutex_lock(&watched.lock);
    if (watched.part != NULL && strstr(line, watched.part) != NULL &&
        strstr(line, watched.other_part) != NULL)
        watched.count++;
    pthread_mutex_unlock(&watched.lock);
}

static void watch(const char *part, const char *other_part)
{
    pthread_mutex_lock(&watched.lock);
    watched.part = part;
    watched.other_part = other_part;
    watched.count = 0;
    pthread_mutex_unlock(&watched.lock);
}

static unsigned lines_seen(void)
{
    pthread_mutex_lock(&watched.lock);
    unsigned count = watched.count;
    pthread_mutex_unlock(&watched.lock);
    return count;
}

/* ---- joining ---- */

static void a_node_without_peers_has_joined_at_once(void **state)
{
    (void)state;
    struct net_node node;

    net_start(&node, 0);
    assert_true(swarm_wait_joined(node.swarm, 0));
    assert_int_equal(swarm_peer_count(node.swarm), 0);
    net_stop(&node);
}

static void joining_by_name_and_by_ipv6_works(void **state)
{
    (void)state;
    struct net_node first, second;
    char text[64];
    const char *peer = text;
    static const struct {
        const char *listen, *joiner, *format;
    } cases[] = {{"127.0.0.1", "127.0.0.1", "localhost:%u"},
                 {"::1", "::1", "[::1]:%u"},
                 {"", "", "localhost:%u"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct skep_error err;
        if (join(cases[i].listen, NULL, 0, &first, &err) != SKEP_OK) {
            if (strchr(cases[i].listen, ':') != NULL)
                continue; /* a machine without IPv6 */
            fail_msg("%s: %s", cases[i].listen, err.message);
        }
        snprintf(text, sizeof(text), cases[i].format, (unsigned)net_port(&first));
        assert_int_equal(join(cases[i].joiner, &peer, 1, &second, NULL), SKEP_OK);
        assert_true(swarm_wait_joined(second.swarm, net_deadline()));
        assert_true(swarm_peer_count(second.swarm) >= 1);
        net_stop(&second);
        net_stop(&first);
    }
}

static void bad_initial_peers_are_refused_by_their_text(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "::1",        "host",        "host:",  "host:99999",
        ":4222",      "a b",         "",       "1.2.3.4:4222,5.6.7.8:1",
        "0.0.0.0:42", "127.0.0.1:*", "[::]:42"};
    struct net_node node;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const char *peers[] = {"127.0.0.1:4222", bad[i]};
        struct skep_error err = {0};
        assert_int_equal(join("127.0.0.1", peers, 2, &node, &err), SKEP_INVALID_ARGUMENT);
        assert_null(node.swarm);
        assert_non_null(strstr(err.message, bad[i]));
        assert_non_null(strstr(err.message, "initial peer 2"));
    }
}

static void a_port_in_use_is_named(void **state)
{
    (void)state;
    struct net_node node, second = {0};
    struct skep_error err = {0};
    char port[16];

    net_start(&node, 0);
    assert_int_equal(identity_generate(&second.identity, NULL), SKEP_OK);
    const struct swarm_config config = {
        .identity = &second.identity,
        .dht_listen = {.host = "127.0.0.1", .port = net_port(&node)},
    };
    assert_int_equal(swarm_join(&config, &second.swarm, &err), SKEP_FAILED_PRECONDITION);
    snprintf(port, sizeof(port), "%u", (unsigned)net_port(&node));
    assert_non_null(strstr(err.message, port));
    assert_null(second.swarm);
    net_stop(&node);
}

static void swarms_of_different_names_do_not_mix(void **state)
{
    (void)state;
    struct net_node one, other;
    const struct net_options options = {.name = "another"};

    net_start(&one, 0);
    uint16_t port = net_port(&one);
    net_start_with(&other, &port, 1, &options);
    assert_false(swarm_wait_joined(other.swarm, clock_deadline_us(500)));
    assert_int_equal(swarm_peer_count(one.swarm), 0);
    net_stop(&other);
    net_stop(&one);
}

static void ones_own_address_and_repeats_are_left_out(void **state)
{
    (void)state;
    struct net_node node;
    uint16_t port = free_port();
    const uint16_t peers[] = {port, port, port};
    const struct net_options options = {.port = port};

    net_start_with(&node, peers, 3, &options);
    assert_true(swarm_wait_joined(node.swarm, net_deadline()));
    assert_int_equal(swarm_peer_count(node.swarm), 0);
    net_stop(&node);
}

static void loopback_endpoints_only_in_a_loopback_swarm(void **state)
{
    (void)state;
    static const struct {
        const char *listen;
        const char *peers[2];
        size_t count;
        bool loopback;
    } cases[] = {
        {"127.0.0.1", {NULL}, 0, true},
        {"", {NULL}, 0, false},
        {"127.0.0.1", {"127.0.0.1:1"}, 1, true},
        {"", {"127.0.0.1:1", "localhost:2"}, 2, true},
        {"", {"127.0.0.1:1", "192.0.2.1:2"}, 2, false},
        {"127.0.0.1", {"192.0.2.1:1"}, 1, false},
        {"", {"bootstrap.invalid:1"}, 1, false},
        {"127.0.0.1", {"bootstrap.invalid:1"}, 1, true},
        {"127.0.0.1", {"bootstrap.invalid:1", "192.0.2.1:2"}, 2, false},
        {"", {"bootstrap.invalid:1", "127.0.0.2:2"}, 2, true},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct net_node node;
        assert_int_equal(join(cases[i].listen, cases[i].peers, cases[i].count, &node, NULL),
                         SKEP_OK);
        assert_int_equal(swarm_record(node.swarm)->loopback, cases[i].loopback);
        net_stop(&node);
    }
}

/* ---- staying joined ---- */

/* Whether `at` knows one peer alone, at this port, and holds it for alive. */
static bool knows_only(const struct net_node *at, uint16_t port)
{
    struct address known[2];
    struct endpoint e;

    if (runner_known_peers(swarm_runner(at->swarm), known, 2) != 1)
        return false;
    endpoint_from_address(&e, (const struct sockaddr *)&known[0].sa);
    return e.port == port;
}

static void a_restarted_node_takes_its_old_place(void **state)
{
    (void)state;
    struct net_node first, node;
    struct identity identity;
    const struct net_options options = {.identity = &identity, .identity_is_ours = true};

    assert_int_equal(identity_generate(&identity, NULL), SKEP_OK);
    net_start(&first, 0);
    for (int i = 0; i < 3; i++) {
        uint16_t port = net_port(&first);
        net_start_with(&node, &port, 1, &options);
        assert_true(NET_UNTIL(knows_only(&first, net_port(&node))));
        net_stop(&node);
    }
    net_stop(&first);
}

static void four_nodes_started_before_their_bootstrap_node_become_one_swarm(void **state)
{
    (void)state;
    enum { EARLY = 3 };
    struct net_node early[EARLY], last;
    uint16_t port = free_port();
    const struct net_options options = {.port = port};

    for (size_t i = 0; i < EARLY; i++)
        net_start(&early[i], port);
    assert_false(swarm_wait_joined(early[0].swarm, clock_deadline_us(100)));
    net_start_with(&last, NULL, 0, &options);
    for (size_t i = 0; i < EARLY; i++)
        assert_true(swarm_wait_joined(early[i].swarm, net_deadline()));
    assert_true(NET_UNTIL(sees(&early[0], &early[2], "ffn.1")));
    assert_true(NET_UNTIL(sees(&early[2], &early[1], "ffn.2")));
    assert_true(NET_UNTIL(sees(&last, &early[0], "ffn.3")));
    net_stop_many(early, EARLY);
    net_stop(&last);
}

static void two_halves_started_apart_find_each_other(void **state)
{
    (void)state;
    struct net_node left[2], right[2];
    uint16_t port = free_port();
    const struct net_options left_options = {.port = port};
    const struct net_options hurried = {.minute_ms = 300};

    net_start_with(&right[0], &port, 1, &hurried); /* knows of the left half, which is not there */
    net_start(&right[1], net_port(&right[0]));
    assert_true(swarm_wait_joined(right[1].swarm, net_deadline()));
    assert_true(swarm_wait_joined(right[0].swarm, net_deadline()));

    net_start_with(&left[0], NULL, 0, &left_options);
    net_start(&left[1], port);
    assert_true(swarm_wait_joined(left[1].swarm, net_deadline()));
    assert_true(NET_UNTIL(sees(&left[1], &right[1], "ffn.1")));
    assert_true(NET_UNTIL(sees(&right[1], &left[1], "ffn.2")));
    net_stop_many(left, 2);
    net_stop_many(right, 2);
}

static void newcomers_join_once_the_bootstrap_node_is_back(void **state)
{
    (void)state;
    struct net_node bootstrap, newcomers[2];
    uint16_t port = free_port();
    const struct net_options options = {.port = port};

    net_start_with(&bootstrap, NULL, 0, &options);
    net_stop(&bootstrap);
    for (size_t i = 0; i < 2; i++)
        net_start(&newcomers[i], port);
    assert_false(swarm_wait_joined(newcomers[0].swarm, clock_deadline_us(1500)));
    net_start_with(&bootstrap, NULL, 0, &options);
    for (size_t i = 0; i < 2; i++)
        assert_true(swarm_wait_joined(newcomers[i].swarm, net_deadline()));
    assert_true(NET_UNTIL(sees(&newcomers[0], &newcomers[1], "ffn.1")));
    net_stop_many(newcomers, 2);
    net_stop(&bootstrap);
}

static void known_peers_are_saved_and_tried_at_the_next_start(void **state)
{
    (void)state;
    struct net_node first, second;
    struct tempdir dir;
    char path[512];
    struct stat st;

    tempdir_make(&dir);
    tempdir_file(&dir, "peers", path);
    const struct net_options options = {.peers_file = path};
    net_start(&first, 0);
    uint16_t port = net_port(&first);
    net_start_with(&second, &port, 1, &options);
    assert_true(swarm_wait_joined(second.swarm, net_deadline()));
    net_stop(&second);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(tempdir_count(&dir, 0), 1);

    net_start_with(&second, NULL, 0, &options); /* knows only what was saved */
    assert_true(swarm_wait_joined(second.swarm, net_deadline()));
    assert_true(NET_UNTIL(swarm_peer_count(second.swarm) == 1));
    net_stop(&second);
    net_stop(&first);
    tempdir_remove(&dir);
}

static void a_node_that_leaves_alone_keeps_its_saved_peers(void **state)
{
    (void)state;
    struct net_node node;
    struct tempdir dir;
    char path[512], line[64] = "";

    tempdir_make(&dir);
    tempdir_file(&dir, "peers", path);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("127.0.0.1:9\n", f);
    fclose(f);
    const struct net_options options = {.peers_file = path};
    net_start_with(&node, NULL, 0, &options);
    net_stop(&node);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    fclose(f);
    assert_string_equal(line, "127.0.0.1:9\n");
    tempdir_remove(&dir);
}

/* ---- what people are told ---- */

static void a_name_that_does_not_resolve_is_told_and_keeps_nobody(void **state)
{
    (void)state;
    struct net_node node;
    const char *peer = "no-such-host.invalid:4222";

    watch("no-such-host.invalid", "trying again");
    skep_log_set(SKEP_LOG_WARNING, on_line, NULL);
    assert_int_equal(join("127.0.0.1", &peer, 1, &node, NULL), SKEP_OK);
    assert_true(NET_UNTIL(lines_seen() > 0));
    uint64_t deadline = clock_deadline_us(5000);
    swarm_leave(node.swarm, deadline);
    assert_true(clock_mono_us() < deadline + 1000000);
    assert_int_equal(lines_seen(), 1);
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
}

static void a_peer_that_does_not_answer_is_told_once(void **state)
{
    (void)state;
    struct net_node node;
    uint16_t port = free_port();
    char text[32];

    snprintf(text, sizeof(text), "127.0.0.1:%u", (unsigned)port);
    watch(text, "does not answer");
    skep_log_set(SKEP_LOG_WARNING, on_line, NULL);
    net_start(&node, port);
    assert_true(NET_UNTIL(lines_seen() > 0));
    assert_false(swarm_wait_joined(node.swarm, clock_deadline_us(1000)));
    assert_int_equal(lines_seen(), 1);
    net_stop(&node);
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
}

/* ---- leaving nothing behind ---- */

static size_t count_entries(const char *path)
{
    DIR *dir = opendir(path);
    size_t n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

/* B44: a key file that was copied to another host. No lock can tell that; the DHT does. */
static void two_nodes_of_one_identity_notice(void **state)
{
    (void)state;
    struct identity identity;
    struct net_node bystanders[5], copies[2];
    struct handler *handlers[2];
    const struct net_options options = {.identity = &identity, .identity_is_ours = true};
    struct handler_config config = {
        .endpoint_count = 1,
        .endpoints = {{.host = "127.0.0.1", .port = 7001}},
    };
    const struct handler_expert expert = {.uid = "ffn.0.0", .cls = "nop"};

    assert_int_equal(identity_generate(&identity, NULL), SKEP_OK);
    watch("under our own identity", "copy of the key file");
    skep_log_set(SKEP_LOG_WARNING, on_line, NULL);
    net_start(&bystanders[0], 0);
    const uint16_t port = net_port(&bystanders[0]);
    for (size_t i = 1; i < 5; i++)
        net_start(&bystanders[i], port);
    for (size_t i = 0; i < 2; i++) {
        net_start_with(&copies[i], &port, 1, &options);
        assert_true(swarm_wait_joined(copies[i].swarm, net_deadline()));
        config.swarm = copies[i].swarm;
        /* They share a DHT id too, and whoever is asked by both at once answers one of them: so not
         * always in step, nor are there few to ask. */
        config.update_period_s = 2 + (uint32_t)i;
        assert_int_equal(handler_new(&config, &expert, 1, &handlers[i], NULL), SKEP_OK);
    }
    assert_true(NET_UNTIL(lines_seen() > 0));
    for (size_t i = 0; i < 2; i++) {
        handler_free(handlers[i], clock_deadline_us(2000));
        net_stop(&copies[i]);
    }
    for (size_t i = 0; i < 5; i++)
        net_stop(&bystanders[i]);
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
}

static void forty_starts_and_stops_leave_no_thread_or_descriptor(void **state)
{
    (void)state;
    struct net_node first, node;

    net_start(&first, 0);
    net_start(&node, net_port(&first)); /* what is made once per process is made now */
    net_stop(&node);
    size_t descriptors = count_entries("/proc/self/fd");
    size_t threads = count_entries("/proc/self/task");
    for (int i = 0; i < 40; i++) {
        net_start(&node, net_port(&first));
        if (i % 2 == 0)
            assert_true(swarm_wait_joined(node.swarm, net_deadline()));
        net_stop(&node);
    }
    assert_int_equal(count_entries("/proc/self/fd"), descriptors);
    /* A joined thread's entry goes a moment after it. */
    assert_true(NET_UNTIL(count_entries("/proc/self/task") <= threads));
    net_stop(&first);
}

static void joining_survives_any_failed_allocation(void **state)
{
    (void)state;
    struct identity identity;
    const char *peers[] = {"127.0.0.1:9", "localhost:9"};
    struct swarm *swarm = NULL;
    skep_status rc = SKEP_INTERNAL;

    assert_int_equal(identity_generate(&identity, NULL), SKEP_OK);
    const struct swarm_config config = {
        .identity = &identity,
        .dht_listen = {.host = "127.0.0.1"},
        .initial_peers = peers,
        .initial_peer_count = 2,
        .peers_file = "/nonexistent/peers",
    };
    for (long nth = 1; nth < 200; nth++) {
        mem_fail_at(nth);
        rc = swarm_join(&config, &swarm, NULL);
        bool pending = mem_fail_pending();
        mem_fail_at(0);
        assert_true((rc == SKEP_OK) == (swarm != NULL));
        swarm_leave(swarm, clock_deadline_us(1000));
        if (rc == SKEP_OK && pending)
            break;
    }
    assert_int_equal(rc, SKEP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_without_peers_has_joined_at_once),
        cmocka_unit_test(joining_by_name_and_by_ipv6_works),
        cmocka_unit_test(bad_initial_peers_are_refused_by_their_text),
        cmocka_unit_test(a_port_in_use_is_named),
        cmocka_unit_test(swarms_of_different_names_do_not_mix),
        cmocka_unit_test(ones_own_address_and_repeats_are_left_out),
        cmocka_unit_test(loopback_endpoints_only_in_a_loopback_swarm),
        cmocka_unit_test(a_restarted_node_takes_its_old_place),
        cmocka_unit_test(four_nodes_started_before_their_bootstrap_node_become_one_swarm),
        cmocka_unit_test(two_halves_started_apart_find_each_other),
        cmocka_unit_test(newcomers_join_once_the_bootstrap_node_is_back),
        cmocka_unit_test(known_peers_are_saved_and_tried_at_the_next_start),
        cmocka_unit_test(a_node_that_leaves_alone_keeps_its_saved_peers),
        cmocka_unit_test(a_name_that_does_not_resolve_is_told_and_keeps_nobody),
        cmocka_unit_test(a_peer_that_does_not_answer_is_told_once),
        cmocka_unit_test(two_nodes_of_one_identity_notice),
        cmocka_unit_test(forty_starts_and_stops_leave_no_thread_or_descriptor),
        cmocka_unit_test(joining_survives_any_failed_allocation),
    };
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("swarm", tests, NULL, NULL);
}
