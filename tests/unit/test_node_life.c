/* Nodes coming and going in this process, alone and in a swarm. */
#include "own_swarm.h"
#include "looker.h"
#include "node_caller.h"

#include <dirent.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <skep/log.h>
#include "base/alloc.h"
#include "net/session.h"
#include "wire/frame.h"

/* --- lifecycle ----------------------------------------------------------------------------- */

static size_t entries_in(const char *folder)
{
    DIR *dir = opendir(folder);
    size_t count = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* The kernel takes a moment to forget a thread that was joined. */
static bool threads_return_to(size_t count)
{
    uint64_t deadline = clock_deadline_us(TIMEOUT_MS);

    while (entries_in("/proc/self/task") > count)
        if (clock_mono_us() > deadline)
            return false;
    return true;
}

static void cycle(int i)
{
    struct skep_node_options options;
    struct skep_error err;

    node_options(&options);
    options.no_dht = i % 4 != 0;
    options.num_handlers = 1 + (unsigned)i % 2;
    struct skep_node *node = new_node(&options, "t.1", i % 2 == 0 ? "nop" : "ffn");
    if (i % 5 == 4) { /* never started */
        skep_node_free(node);
        return;
    }
    start_node(node);
    assert_int_equal(skep_node_start(node, &err), SKEP_FAILED_PRECONDITION);
    if (i % 3 == 0) {
        struct caller caller;
        struct reply reply;

        caller_init(&caller, node);
        call(&caller, &(struct request){.method = "info", .uid = "t.1"}, &reply);
        assert_int_equal(reply.status, SKEP_OK);
        reply_fini(&reply);
        caller_fini(&caller);
    }
    if (i % 3 == 1) {
        skep_node_request_stop(node);
        assert_true(skep_node_wait(node, UINT32_MAX));
        skep_node_stop(node);
    }
    skep_node_free(node);
}

static void starts_and_stops_leave_nothing_behind(void **state)
{
    (void)state;
    cycle(0); /* what libraries keep for ever is there after one */
    cycle(1);
    size_t threads = entries_in("/proc/self/task");
    size_t fds = entries_in("/proc/self/fd");

    for (int i = 0; i < 200; i++)
        cycle(i);
    assert_true(threads_return_to(threads));
    assert_int_equal(entries_in("/proc/self/fd"), fds);
}

static void stop_asked_for_before_start_is_kept(void **state)
{
    (void)state;
    struct skep_node_options options;
    struct skep_error err;

    node_options(&options);
    struct skep_node *node = new_node(&options, "t.1", "nop");
    assert_int_equal(skep_node_wait_ready(node, 1, &err), SKEP_FAILED_PRECONDITION);
    skep_node_request_stop(node);
    assert_int_equal(skep_node_run(node, &err), SKEP_OK); /* returns: it stops at once */
    assert_int_equal(skep_node_wait_ready(node, 1, &err), SKEP_FAILED_PRECONDITION);
    skep_node_free(node);
}

static void busy_port_is_named_and_nothing_is_left(void **state)
{
    (void)state;
    struct skep_node *first = simple_node("nop");
    size_t threads = entries_in("/proc/self/task");
    size_t fds = entries_in("/proc/self/fd");

    for (int dht = 0; dht < 2; dht++) {
        struct skep_node_options options;
        struct skep_error err;
        char port[16];

        node_options(&options);
        options.listen = skep_node_endpoint(first);
        options.no_dht = dht == 0;
        struct skep_node *second = new_node(&options, "t.1", "nop");
        assert_int_equal(skep_node_start(second, &err), SKEP_FAILED_PRECONDITION);
        snprintf(port, sizeof(port), ":%u", (unsigned)skep_node_port(first));
        assert_non_null(strstr(err.message, port));
        assert_true(skep_node_wait(second, 0));
        skep_node_free(second);
    }
    assert_true(threads_return_to(threads));
    assert_int_equal(entries_in("/proc/self/fd"), fds);
    skep_node_free(first);
}

static void experts_are_checked_when_added(void **state)
{
    (void)state;
    struct skep_node_options options;
    struct skep_expert_options expert;
    struct skep_error err;

    node_options(&options);
    struct skep_node *node = new_node(&options, "t.1", "nop");
    expert_options(&expert, "nop");
    assert_int_equal(skep_node_add_expert(node, "t.1", &expert, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "t.1"));
    assert_int_equal(skep_node_add_expert(node, "t.01", &expert, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "t.01"));
    assert_int_equal(skep_node_add_pattern(node, "t.[0:4", 1, &expert, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_int_equal(skep_node_add_pattern(node, "t.[0:4]", 5, &expert, &err),
                     SKEP_INVALID_ARGUMENT);
    expert.cls = "nonsense";
    assert_int_equal(skep_node_add_expert(node, "t.2", &expert, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "nonsense"));
    assert_int_equal(skep_node_expert_count(node), 1);
    skep_node_free(node);
}

static void experts_beyond_memory_are_refused_at_start(void **state)
{
    (void)state;
    struct skep_node_options options;
    struct skep_error err;

    node_options(&options);
    options.max_batch_size = INT32_MAX;
    struct skep_expert_options expert;
    struct skep_node *node = new_node(&options, NULL, NULL);
    expert_options(&expert, "nop");
    expert.hidden_dim = 65536;
    assert_int_equal(skep_node_add_expert(node, "t.1", &expert, &err), SKEP_OK);
    assert_int_equal(skep_node_start(node, &err), SKEP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "MiB"));
    skep_node_free(node);
}

/* Calls without end from another thread's callbacks, until told to stop. */
enum { STORM = 32 };

static void stop_ends_every_call_under_way(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        struct skep_node *node = simple_node("ffn");
        struct caller caller;
        struct reply replies[STORM];
        DLManagedTensor *x = rows_of(MAX_ROWS / 4, 1); /* all fit the queue */
        struct request r = forward_of(x);
        struct reply first;

        caller_init(&caller, node);
        call(&caller, &r, &first); /* the connection is there */
        assert_int_equal(first.status, SKEP_OK);
        reply_fini(&first);
        for (int i = 0; i < STORM; i++)
            start_call(&caller, &r, &replies[i]);
        skep_node_stop(node);
        for (int i = 0; i < STORM; i++) {
            wait_reply(&replies[i]);
            if (replies[i].status != SKEP_OK && replies[i].status != SKEP_UNAVAILABLE)
                fail_msg("%s: %s", skep_status_name(replies[i].status), replies[i].message);
            reply_fini(&replies[i]);
        }
        call(&caller, &r, &first);
        assert_int_equal(first.status, SKEP_UNAVAILABLE);
        reply_fini(&first);
        caller_fini(&caller);
        skep_tensor_free(x);
        skep_node_free(node);
    }
}

static void stopper(void *arg)
{
    skep_node_stop(arg);
}

static void several_threads_may_stop_one_node(void **state)
{
    (void)state;
    struct skep_node *node = simple_node("nop");
    struct thread threads[4] = {0};

    for (int i = 0; i < 4; i++)
        assert_int_equal(thread_start(&threads[i], "stopper", stopper, node, NULL), SKEP_OK);
    for (int i = 0; i < 4; i++)
        thread_join(&threads[i]);
    assert_true(skep_node_wait(node, 0));
    skep_node_free(node);
}

static void every_failed_allocation_ends_in_an_error(void **state)
{
    (void)state;
    bool more = true;
    long n = 1;

    for (; more; n++) {
        struct skep_node_options options;
        struct skep_expert_options expert;
        struct skep_node *node = NULL;
        struct skep_error err;

        node_options(&options);
        expert_options(&expert, "nop");
        mem_fail_at(n);
        skep_status rc = skep_node_new(&options, &node, &err);
        if (rc == SKEP_OK)
            rc = skep_node_add_expert(node, "t.1", &expert, &err);
        if (rc == SKEP_OK)
            rc = skep_node_start(node, &err);
        more = !mem_fail_pending();
        mem_fail_at(0);
        if (!more)
            assert_int_equal(rc, SKEP_OK);
        skep_node_free(node);
        assert_true(n < 1000);
    }
    assert_true(n > 10);
}

/* --- in a swarm ---------------------------------------------------------------------------- */

static struct skep_node *swarm_node(const char *listen, const char *peer, const char *uid)
{
    struct skep_node_options options;

    node_options(&options);
    options.no_dht = false;
    options.listen = listen;
    options.initial_peers = &peer;
    options.initial_peer_count = peer != NULL ? 1 : 0;
    return new_node(&options, uid, "nop");
}

static void published_endpoint_is_the_bound_one(void **state)
{
    (void)state;
    struct skep_node *node = swarm_node("127.0.0.1:*", NULL, "t.1");
    struct looker looker;
    char text[ENDPOINT_TEXT_BYTES];
    char peer_id[PEER_ID_HEX_BYTES];

    start_node(node);
    looker_init(&looker, skep_node_initial_peer(node));
    struct provider provider = look_up(&looker, "t.1");
    assert_int_equal(provider.endpoint_count, 1);
    assert_string_equal(endpoint_format(&provider.endpoints[0], text), skep_node_endpoint(node));
    assert_int_equal(provider.endpoints[0].port, skep_node_port(node));
    peer_id_hex(provider.peer_id, peer_id);
    assert_string_equal(peer_id, skep_node_peer_id(node));
    assert_string_equal(provider.cls, "nop");
    assert_true(skep_node_port(node) > 0 && skep_node_dht_port(node) > 0);
    looker_fini(&looker);
    skep_node_free(node);
}

static void behind_a_wildcard_the_address_is_asked_for(void **state)
{
    (void)state;
    struct skep_node *first = swarm_node("127.0.0.1:*", NULL, "t.1");
    struct looker looker;

    start_node(first);
    struct skep_node *second = swarm_node("0.0.0.0:*", skep_node_initial_peer(first), "t.2");
    start_node(second);
    looker_init(&looker, skep_node_initial_peer(first));
    struct provider provider = look_up(&looker, "t.2");
    assert_string_equal(provider.endpoints[0].host, "127.0.0.1");
    assert_int_equal(provider.endpoints[0].port, skep_node_port(second));
    looker_fini(&looker);
    skep_node_free(second);
    skep_node_free(first);
}

static void patterns_take_what_is_free(void **state)
{
    (void)state;
    struct skep_node *first = swarm_node("127.0.0.1:*", NULL, NULL);
    struct skep_expert_options expert;
    struct looker looker;

    expert_options(&expert, "nop");
    assert_int_equal(skep_node_add_pattern(first, "t.[0:4]", 2, &expert, NULL), SKEP_OK);
    start_node(first);
    assert_int_equal(skep_node_expert_count(first), 2);
    looker_init(&looker, skep_node_initial_peer(first));
    for (size_t i = 0; i < 2; i++)
        look_up(&looker, skep_node_expert_uid(first, i)); /* they can be found */

    struct skep_node *second = swarm_node("127.0.0.1:*", skep_node_initial_peer(first), "t.9");
    assert_int_equal(skep_node_add_pattern(second, "t.[0:4]", 2, &expert, NULL), SKEP_OK);
    start_node(second);
    assert_int_equal(skep_node_expert_count(second), 3);
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 2; k++)
            assert_string_not_equal(skep_node_expert_uid(second, i),
                                    skep_node_expert_uid(first, k));
    assert_null(skep_node_expert_uid(second, 3));

    struct skep_node *third = swarm_node("127.0.0.1:*", skep_node_initial_peer(first), NULL);
    struct skep_error err;
    assert_int_equal(skep_node_add_pattern(third, "t.[0:4]", 4, &expert, NULL), SKEP_OK);
    assert_int_equal(skep_node_start(third, &err), SKEP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "of 4"));
    skep_node_free(third);
    looker_fini(&looker);
    skep_node_free(second);
    skep_node_free(first);
}

/* --- a peer that completes its calls while the node goes ---------------------------------------
 */

enum { HALVES = 200, HALVES_PAUSE_MS = 2 };

/* A connection by hand, in plaintext, so that the last frame of a call can be held back. */
struct half_caller {
    struct identity identity;
    struct session_config config;
    struct session *session;
    bool leaving; /* the node has said GOAWAY */
    int fd;
    uint8_t bytes[70000];
};

static void on_half_established(void *arg, const struct session_peer *peer)
{
    (void)arg;
    (void)peer;
}

static void on_half_done(void *arg, struct session_stream *stream, void *user,
                         const struct reply_headers *reply, DLManagedTensor **tensors, bool sent,
                         const struct skep_error *err)
{
    (void)arg, (void)stream, (void)user, (void)reply, (void)tensors, (void)sent, (void)err;
}

static void on_half_goaway(void *arg, const char *reason)
{
    (void)reason;
    ((struct half_caller *)arg)->leaving = true;
}

static const struct session_events half_events = {
    .established = on_half_established, .call_done = on_half_done, .goaway = on_half_goaway};

/* Sends what the session has, but for the last `keep` bytes. */
static bool send_half(struct half_caller *h, size_t keep)
{
    size_t len = session_send(h->session, h->bytes, sizeof(h->bytes), clock_mono_us());

    assert_true(len == 0 || len > keep);
    return len == 0 || send(h->fd, h->bytes, len - keep, MSG_NOSIGNAL) == (ssize_t)(len - keep);
}

/* Takes what comes within the time. False once the node has closed. */
static bool receive_half(struct half_caller *h, int timeout_ms)
{
    struct pollfd readable = {.fd = h->fd, .events = POLLIN};
    struct skep_error err;
    uint8_t *data;
    size_t cap;

    if (poll(&readable, 1, timeout_ms) == 0)
        return true;
    session_receive_buffer(h->session, &data, &cap);
    ssize_t n = recv(h->fd, data, cap, 0);
    return n > 0 && session_received(h->session, (size_t)n, clock_mono_us(), &err) == SKEP_OK;
}

static void half_connect(struct half_caller *h, struct skep_node *node)
{
    struct endpoint endpoint;
    struct address address;

    memset(h, 0, sizeof(*h));
    assert_int_equal(identity_generate(&h->identity, NULL), SKEP_OK);
    h->config = (struct session_config){.initiator = true,
                                        .identity = &h->identity,
                                        .plaintext = true,
                                        .swarm = own_swarm(),
                                        .limits = &session_default_limits};
    assert_int_equal(session_new(&h->config, &half_events, h, clock_mono_us(), &h->session, NULL),
                     SKEP_OK);
    assert_int_equal(endpoint_parse(&endpoint, skep_node_endpoint(node), false, NULL), SKEP_OK);
    assert_true(endpoint_to_address(&endpoint, &address));
    h->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(h->fd, (struct sockaddr *)&address.sa, address.len), 0);
    while (session_peer(h->session) == NULL) {
        assert_true(send_half(h, 0));
        assert_true(receive_half(h, TIMEOUT_MS));
    }
    assert_true(send_half(h, 0));
}

static void begin_halves(struct half_caller *h)
{
    static uint8_t port_9[] = {0x81, 0xa4, 'p', 'o', 'r', 't', 9};
    struct call_headers headers = {.method = "dial_back"};
    struct session_stream *stream;

    headers.params = (struct bytes){.data = port_9, .len = sizeof(port_9)};
    for (int i = 0; i < HALVES; i++) {
        assert_int_equal(session_call(h->session, &headers, NULL, NULL, &stream, NULL), SKEP_OK);
        assert_true(send_half(h, FRAME_HEADER_BYTES));
    }
}

static void stop_it(void *arg)
{
    skep_node_free(arg);
}

/* Calls that are half there when the node stops are completed in each moment of its stopping. */
static void a_peer_may_complete_its_calls_while_the_node_stops(void **state)
{
    (void)state;
    struct skep_node_options options;
    struct half_caller *h = mem_calloc(1, sizeof(*h));
    struct thread stopper;
    uint8_t end[FRAME_HEADER_BYTES];

    node_options(&options);
    options.insecure_plaintext = true;
    options.drain_timeout_ms = 1;
    options.num_handlers = 1;
    struct skep_node *node = new_node(&options, "t.1", "nop");
    start_node(node);
    half_connect(h, node);
    begin_halves(h);
    assert_int_equal(thread_start(&stopper, "stopper", stop_it, node, NULL), SKEP_OK);
    while (!h->leaving)
        assert_true(receive_half(h, TIMEOUT_MS));
    bool open = true;
    for (uint32_t i = 0; i < HALVES && open; i++) { /* the initiator's streams: 1, 2, ... */
        frame_header_encode(end, 0, FRAME_END, i + 1);
        open = send(h->fd, end, sizeof(end), MSG_NOSIGNAL) == sizeof(end) &&
               receive_half(h, HALVES_PAUSE_MS);
    }
    while (open)
        open = receive_half(h, TIMEOUT_MS);
    thread_join(&stopper); /* it has freed all that the calls were given to */
    session_free(h->session, NULL);
    close(h->fd);
    mem_free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_and_stops_leave_nothing_behind),
        cmocka_unit_test(stop_asked_for_before_start_is_kept),
        cmocka_unit_test(busy_port_is_named_and_nothing_is_left),
        cmocka_unit_test(experts_are_checked_when_added),
        cmocka_unit_test(experts_beyond_memory_are_refused_at_start),
        cmocka_unit_test(stop_ends_every_call_under_way),
        cmocka_unit_test(a_peer_may_complete_its_calls_while_the_node_stops),
        cmocka_unit_test(several_threads_may_stop_one_node),
        cmocka_unit_test(every_failed_allocation_ends_in_an_error),
        cmocka_unit_test(published_endpoint_is_the_bound_one),
        cmocka_unit_test(behind_a_wildcard_the_address_is_asked_for),
        cmocka_unit_test(patterns_take_what_is_free),
    };

    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("node_life", tests, NULL, NULL);
}
