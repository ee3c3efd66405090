/* The tracker's sockets and its client, over loopback. The stock peers are in the integration
 * tests; here is what needs this process's inside. */
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <skep/log.h>
#include <skep/tracker.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "tracker/client.h"
#include "tracker/key_stats.h"
#include "tracker/server.h"

enum { WAIT_MS = 60000, MAX_EVENTS = 256 };

/* ---- a tracker and what it tells ---- */

struct watched {
    struct tracker_server *server;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    char events[MAX_EVENTS][64];
    size_t count;
};

static void tell(struct watched *w, const char *format, ...)
{
    va_list arguments;

    pthread_mutex_lock(&w->lock);
    va_start(arguments, format);
    vsnprintf(w->events[w->count++ % MAX_EVENTS], sizeof(w->events[0]), format, arguments);
    va_end(arguments);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static void on_key_changed(void *arg, const struct scheduler_key_counters *f)
{
    tell(arg, "%.*s %zu/%zu", (int)f->key.len, f->key.data, f->free, f->pending);
}

static void on_waiting(void *arg, const struct scheduler_request *request)
{
    tell(arg, "waiting %.*s", (int)request->key.len, request->key.data);
}

static void on_ended(void *arg, uint64_t id, struct tracker_text key, enum scheduler_end how)
{
    static const char *const names[] = {"served", "answered", "withdrawn"};

    (void)id;
    tell(arg, "%s %.*s", names[how], (int)key.len, key.data);
}

static void on_stopped(void *arg)
{
    tell(arg, "stopped");
}

/* Waits until the event has been told. */
static void await(struct watched *w, const char *expected)
{
    uint64_t deadline = clock_deadline_us(WAIT_MS);
    bool found = false, in_time = true;

    pthread_mutex_lock(&w->lock);
    while (!found && in_time) {
        for (size_t i = 0; i < w->count && i < MAX_EVENTS && !found; i++)
            found = strcmp(w->events[i], expected) == 0;
        if (!found)
            in_time = cond_wait_until(&w->changed, &w->lock, deadline);
    }
    pthread_mutex_unlock(&w->lock);
    if (!found)
        fail_msg("never told: %s", expected);
}

static size_t times_told(struct watched *w, const char *event)
{
    size_t times = 0;

    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->count && i < MAX_EVENTS; i++)
        times += strcmp(w->events[i], event) == 0;
    pthread_mutex_unlock(&w->lock);
    return times;
}

static struct watched *start(void (*change)(struct tracker_server_config *config))
{
    struct watched *w = mem_calloc(1, sizeof(*w));
    struct tracker_server_config config = {
        .host = "127.0.0.1",
        .reuse_addr = true,
        .silent = true,
        .timeout_ms = WAIT_MS,
        .stop_key = "tracker:secret",
        .events = {.key_changed = on_key_changed,
                   .waiting = on_waiting,
                   .ended = on_ended,
                   .stopped = on_stopped},
        .arg = w,
    };

    assert_non_null(w);
    pthread_mutex_init(&w->lock, NULL);
    cond_init(&w->changed);
    if (change != NULL)
        change(&config);
    assert_int_equal(tracker_server_new(&config, &w->server, NULL), SKEP_OK);
    return w;
}

static void end(struct watched *w)
{
    tracker_server_free(w->server);
    assert_int_equal(times_told(w, "stopped"), 1);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
}

/* ---- raw peers ---- */

static int dial(uint16_t port)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = WAIT_MS / 1000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static void transmit(int fd, const void *data, size_t len)
{
    assert_int_equal(send(fd, data, len, MSG_NOSIGNAL), (ssize_t)len);
}

static void say(int fd, const char *json)
{
    struct bytes out = {0};

    assert_true(tracker_write_message(&out, json, strlen(json)));
    transmit(fd, out.data, out.len);
    bytes_free(&out);
}

static void hear(int fd, const char *expected)
{
    uint8_t prefix[4];
    char text[512];

    assert_int_equal(recv(fd, prefix, 4, MSG_WAITALL), 4);
    uint32_t len = load_u32(prefix);
    assert_true(len < sizeof(text));
    assert_int_equal(recv(fd, text, len, MSG_WAITALL), (ssize_t)len);
    text[len] = '\0';
    assert_string_equal(text, expected);
}

static void ask(int fd, const char *json, const char *expected)
{
    say(fd, json);
    hear(fd, expected);
}

static void greet(int fd)
{
    static const uint8_t magic[] = {0x71, 0xf2, 0x02, 0x00};
    uint8_t back[4];

    transmit(fd, magic, 4);
    assert_int_equal(recv(fd, back, 4, MSG_WAITALL), 4);
    assert_memory_equal(back, magic, 4);
}

static int join(struct watched *w)
{
    int fd = dial(tracker_server_port(w->server));

    greet(fd);
    return fd;
}

static void assert_closed(int fd)
{
    char byte;
    ssize_t n = recv(fd, &byte, 1, 0);

    assert_true(n <= 0);
    assert_true(n == 0 || errno == ECONNRESET);
    close(fd);
}

/* ---- events ---- */

static void numbers_of_keys_are_told(void **state)
{
    (void)state;
    struct watched *w = start(NULL);
    int server = join(w), client = join(w);

    ask(server, "[3, \"k\", [1, \"m1\"], null]", "0");
    await(w, "k 1/0");
    ask(client, "[4, \"k\", \"\", 1]", "[0, [\"127.0.0.1\", 1, \"m1\"]]");
    await(w, "k 0/0");
    say(client, "[4, \"k\", \"\", 1]");
    await(w, "waiting k");
    await(w, "k 0/1");
    ask(server, "[3, \"k\", [1, \"m2\"], null]", "0");
    hear(client, "[0, [\"127.0.0.1\", 1, \"m2\"]]");
    await(w, "served k");
    say(client, "[4, \"other\", \"\", 1]");
    await(w, "other 0/1");
    close(client);
    await(w, "withdrawn other");
    await(w, "other 0/0");
    close(server);
    end(w);
}

struct elsewhere {
    struct watched *w;
    bool answered;
};

static void answer_from_elsewhere(void *arg)
{
    struct elsewhere *e = arg;
    const struct tracker_resource r = {
        .address = tracker_text("192.0.2.7"), .port = 99, .match_key = tracker_text("far")};

    e->answered = tracker_server_answer(e->w->server, tracker_text("k"), &r);
}

static bool answer_now(struct watched *w)
{
    struct elsewhere e = {.w = w};

    loop_call(tracker_server_loop(w->server), answer_from_elsewhere, &e);
    return e.answered;
}

static void a_request_is_answered_from_elsewhere_exactly_once(void **state)
{
    (void)state;
    struct watched *w = start(NULL);
    int client = join(w), server = join(w);

    say(client, "[4, \"k\", \"me\", 1]");
    await(w, "waiting k");
    assert_true(answer_now(w));
    hear(client, "[0, [\"192.0.2.7\", 99, \"far\"]]");
    await(w, "answered k");
    assert_false(answer_now(w));
    ask(server, "[3, \"k\", [1, \"m1\"], null]", "0");
    await(w, "k 1/0"); /* it stays: nobody waits any more */
    close(client);
    close(server);
    end(w);
}

/* The one that has left has not been noticed by the tracker yet, perhaps; no answer is lost on it.
 */
static void no_answer_is_lost_on_one_that_has_left(void **state)
{
    (void)state;
    struct watched *w = start(NULL);

    for (int i = 0; i < 50; i++) {
        int client = join(w), server = join(w), second = join(w);
        char put[64], got[64];
        say(client, "[4, \"k\", \"\", 9]");
        await(w, "waiting k");
        close(client);
        snprintf(put, sizeof(put), "[3, \"k\", [1, \"m%d\"], null]", i);
        snprintf(got, sizeof(got), "[0, [\"127.0.0.1\", 1, \"m%d\"]]", i);
        ask(server, put, "0");
        ask(second, "[4, \"k\", \"\", 1]", got);
        close(server);
        close(second);
    }
    end(w);
}

static void never_pause(struct tracker_server_config *config)
{
    config->max_unsent_bytes = 64 << 20;
}

static void await_messages(struct watched *w, uint64_t count)
{
    uint64_t deadline = clock_deadline_us(WAIT_MS);
    struct tracker_server_counters c;

    do
        tracker_server_counters(w->server, &c);
    while (c.messages < count && clock_mono_us() < deadline);
    assert_true(c.messages >= count);
}

/* A client whose answers pile up, and which is killed with them unread. */
static void what_was_not_sent_to_one_that_dies_is_free_again(void **state)
{
    (void)state;
    struct watched *w = start(never_pause);
    int server = join(w), doomed = dial(tracker_server_port(w->server)), other = join(w);
    struct linger abort_it = {.l_onoff = 1};
    char info[9000];
    int small = 4096;

    /* 8 KB of info, so that a SUMMARY is long. */
    int n =
        snprintf(info, sizeof(info), "[5, {\"key\": \"server:k\", \"addr\": [null, 1], \"x\": \"");
    memset(info + n, 'x', 8000);
    memcpy(info + n + 8000, "\"}]", 4);
    ask(server, info, "0");
    setsockopt(doomed, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    greet(doomed);
    say(doomed, "[4, \"k\", \"\", 9]");
    await(w, "waiting k");
    /* 16 MB of answers, more than any socket holds; the questions are small. */
    for (int i = 0; i < 2000; i++)
        say(doomed, "[6]");
    await_messages(w, 2000);
    ask(server, "[3, \"k\", [1, \"m1\"], null]", "0");
    await(w, "served k"); /* by an answer behind megabytes of others */
    setsockopt(doomed, SOL_SOCKET, SO_LINGER, &abort_it, sizeof(abort_it));
    close(doomed);
    await(w, "k 1/0");
    ask(other, "[4, \"k\", \"\", 1]", "[0, [\"127.0.0.1\", 1, \"m1\"]]");
    struct tracker_server_counters c;
    tracker_server_counters(w->server, &c);
    assert_int_equal(c.scheduler.undelivered, 1);
    close(other);
    close(server);
    end(w);
}

/* Having read its answer, a client may close as it likes. */
static void what_was_read_is_gone(void **state)
{
    (void)state;
    struct watched *w = start(NULL);
    int server = join(w);
    struct linger abort_it = {.l_onoff = 1};
    struct tracker_server_counters c;

    for (int i = 0; i < 20; i++) {
        char put[64], got[64];
        int client = join(w);
        snprintf(put, sizeof(put), "[3, \"k\", [1, \"m%d\"], null]", i);
        snprintf(got, sizeof(got), "[0, [\"127.0.0.1\", 1, \"m%d\"]]", i);
        ask(server, put, "0");
        ask(client, "[4, \"k\", \"\", 1]", got);
        if (i % 2 == 0)
            setsockopt(client, SOL_SOCKET, SO_LINGER, &abort_it, sizeof(abort_it));
        close(client);
    }
    do
        tracker_server_counters(w->server, &c);
    while (c.connections_open > 1);
    assert_int_equal(c.scheduler.free, 0);
    assert_int_equal(c.scheduler.undelivered, 0);
    close(server);
    end(w);
}

struct taking {
    struct watched *w;
    uint64_t taken;
    char match_key[32];
    bool returned;
};

static void take(void *arg)
{
    struct taking *t = arg;
    struct tracker_resource r;

    t->taken = tracker_server_take(t->w->server, tracker_text("k"), &r);
    if (t->taken != 0)
        snprintf(t->match_key, sizeof(t->match_key), "%.*s", (int)r.match_key.len,
                 r.match_key.data);
}

static void give_back(void *arg)
{
    struct taking *t = arg;

    t->returned = tracker_server_return(t->w->server, t->taken);
}

static void a_resource_is_taken_and_returned(void **state)
{
    (void)state;
    struct watched *w = start(NULL);
    struct taking t = {.w = w};
    int server = join(w), client = join(w);

    ask(server, "[3, \"k\", [1, \"m1\"], null]", "0");
    loop_call(tracker_server_loop(w->server), take, &t);
    assert_string_equal(t.match_key, "m1");
    ask(server, "[7]", "[]");
    say(client, "[4, \"k\", \"\", 1]");
    await(w, "waiting k");
    loop_call(tracker_server_loop(w->server), give_back, &t);
    assert_true(t.returned);
    hear(client, "[0, [\"127.0.0.1\", 1, \"m1\"]]");
    close(server);
    close(client);
    end(w);
}

/* ---- limits ---- */

static void few_connections(struct tracker_server_config *config)
{
    config->max_connections = 3;
}

static void the_newest_connection_is_refused_the_others_go_on(void **state)
{
    (void)state;
    struct watched *w = start(few_connections);
    struct tracker_server_counters counters;
    int first = join(w), second = join(w), third = join(w);

    for (int i = 0; i < 20; i++)
        assert_closed(dial(tracker_server_port(w->server)));
    ask(first, "[1]", "0");
    ask(second, "[1]", "0");
    ask(third, "[1]", "0");
    tracker_server_counters(w->server, &counters);
    assert_int_equal(counters.connections_refused, 20);
    assert_int_equal(counters.connections_open, 3);
    close(first);
    close(second);
    close(third);
    end(w);
}

struct server_counts {
    uint64_t k, others;
};

static bool count_servers(void *arg, const struct skep_tracker_key_stats *stats)
{
    struct server_counts *counts = arg;

    *(strcmp(stats->key, "k") == 0 ? &counts->k : &counts->others) += stats->servers;
    return true;
}

/* A refused UPDATE_INFO changes nothing: the key that it names has no server. */
static void an_info_that_is_too_long_registers_nothing(void **state)
{
    (void)state;
    struct watched *w = start(NULL);
    int server = join(w), client = join(w);
    char info[12288];
    size_t start_of_x;

    ask(server, "[5, {\"key\": \"server:k\", \"addr\": [null, 1]}]", "0");
    for (int part = 0; part < 2; part++) { /* both together are over 16 KiB */
        start_of_x = (size_t)snprintf(
            info, sizeof(info), "[5, {\"key\": \"server:%s\", \"addr\": [null, 1], \"%c\": \"",
            part == 0 ? "k" : "other", 'x' + part);
        memset(info + start_of_x, 'x', 10000);
        snprintf(info + start_of_x + 10000, 16, "\"}]");
        ask(server, info, part == 0 ? "0" : "-1");
    }
    ask(server, "[3, \"k\", [1, \"m1\"], null]", "0"); /* keys are listed once they were used */
    say(client, "[4, \"other\", \"\", 1]");
    await(w, "waiting other");
    struct server_counts counts = {0};
    struct key_stats *keys;
    assert_int_equal(key_stats_take(w->server, &keys, NULL), SKEP_OK);
    key_stats_walk(keys, count_servers, &counts);
    key_stats_free(keys);
    assert_int_equal(counts.k, 1);
    assert_int_equal(counts.others, 0);
    close(client);
    close(server);
    end(w);
}

static void few_and_no_grace(struct tracker_server_config *config)
{
    config->max_connections = 2;
    config->greeting_grace_ms = 1;
    config->timeout_ms = 10 * WAIT_MS;
}

static void who_sends_no_magic_makes_room(void **state)
{
    (void)state;
    struct watched *w = start(few_and_no_grace);
    int first = join(w), silent = dial(tracker_server_port(w->server)), later = -1;
    struct pollfd gone = {.fd = silent, .events = POLLIN};

    /* The first tries may come within the silent one's time. */
    while (poll(&gone, 1, 1) == 0) {
        if (later >= 0)
            close(later);
        later = dial(tracker_server_port(w->server));
    }
    assert_closed(silent);
    close(later);
    struct tracker_server_counters counters;
    do
        tracker_server_counters(w->server, &counters);
    while (counters.connections_open > 1);
    int last = join(w);
    ask(first, "[1]", "0");
    ask(last, "[1]", "0");
    close(first);
    close(last);
    end(w);
}

static void short_timeout(struct tracker_server_config *config)
{
    config->timeout_ms = 1000; /* enough for those who do begin */
    config->max_unsent_bytes = 20000;
}

static void beginnings_time_out_idleness_does_not(void **state)
{
    (void)state;
    struct watched *w = start(short_timeout);
    int idle = join(w), server = join(w), silent = dial(tracker_server_port(w->server)),
        half = join(w), slow = join(w);

    ask(server, "[3, \"k\", [1, \"m1\"], null]", "0");
    transmit(half, "\x05\x00", 2);
    transmit(slow, "\x05\x00\x00\x00[1", 6);
    assert_closed(silent);
    assert_closed(half);
    assert_closed(slow);
    ask(idle, "[1]", "0");
    ask(idle, "[4, \"k\", \"\", 1]", "[0, [\"127.0.0.1\", 1, \"m1\"]]");
    ask(server, "[1]", "0");
    close(idle);
    close(server);
    end(w);
}

/* Asks for more and more and reads nothing: the memory for it is bounded, and it is closed. */
static void who_reads_nothing_is_closed(void **state)
{
    (void)state;
    struct watched *w = start(short_timeout);
    int server = join(w), slow = join(w), other = join(w);
    struct bytes flood = {0};
    char info[8192];
    struct pollfd gone = {.fd = slow, .events = 0};
    struct timeval limit = {.tv_sec = 1};
    int n =
        snprintf(info, sizeof(info), "[5, {\"key\": \"server:k\", \"addr\": [null, 1], \"x\": \"");

    memset(info + n, 'x', 8000);
    snprintf(info + n + 8000, 16, "\"}]");
    ask(server, info, "0");
    for (int i = 0; i < 2000; i++)
        assert_true(tracker_write_plain(&flood, TRACKER_SUMMARY));
    setsockopt(slow, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    (void)send(slow, flood.data, flood.len, MSG_NOSIGNAL); /* some of it may fit nowhere */
    ask(other, "[1]", "0");
    assert_int_equal(poll(&gone, 1, WAIT_MS), 1); /* POLLHUP or POLLERR */
    ask(other, "[1]", "0");
    bytes_free(&flood);
    close(slow);
    close(other);
    close(server);
    end(w);
}

/* All of a long pipeline is answered, in order, to one that reads late. */
static void who_reads_late_gets_everything(void **state)
{
    (void)state;
    struct watched *w = start(NULL);
    int peer = join(w);
    struct bytes flood = {0};

    for (int i = 0; i < 20000; i++)
        assert_true(
            tracker_write_plain(&flood, i % 2 == 0 ? TRACKER_PING : TRACKER_GET_PENDING_MATCHKEYS));
    transmit(peer, flood.data, flood.len);
    for (int i = 0; i < 20000; i++)
        hear(peer, i % 2 == 0 ? "0" : "[]");
    bytes_free(&flood);
    close(peer);
    end(w);
}

/* ---- ports ---- */

static skep_status open_at(uint16_t port, uint32_t port_end, struct tracker_server **out,
                           struct skep_error *err)
{
    const struct tracker_server_config config = {
        .host = "127.0.0.1", .port = port, .port_end = port_end, .reuse_addr = true};

    return tracker_server_new(&config, out, err);
}

static void the_first_free_port_of_the_range_is_taken(void **state)
{
    (void)state;
    struct watched *w = start(NULL);
    struct tracker_server *second = NULL, *third = NULL;
    struct skep_error err;
    char text[16];
    uint16_t port = tracker_server_port(w->server);

    assert_int_equal(open_at(port, port + 1u, &second, &err), SKEP_FAILED_PRECONDITION);
    assert_null(second);
    snprintf(text, sizeof(text), "%u", (unsigned)port);
    assert_non_null(strstr(err.message, text));
    assert_int_equal(open_at(port, port, &third, &err), SKEP_INVALID_ARGUMENT);
    assert_int_equal(open_at(65535, 65537, &third, &err), SKEP_INVALID_ARGUMENT);
    if (port < 65000 && open_at(port, port + 20u, &second, &err) == SKEP_OK) {
        assert_true(tracker_server_port(second) > port);
        tracker_server_free(second);
    }
    end(w);
}

/* ---- the end ---- */

static void stop_needs_the_key(void **state)
{
    (void)state;
    struct watched *w = start(NULL);
    int peer = join(w), other = join(w);
    struct endpoint at;

    ask(peer, "[2, \"tracker:wrong\"]", "-1");
    ask(peer, "[2, \"\"]", "-1");
    ask(peer, "[2, 7]", "-1");
    ask(peer, "[1]", "0");
    tracker_server_endpoint(w->server, &at);
    assert_int_equal(tracker_ask_to_stop(&at, "tracker:secreT", clock_deadline_us(WAIT_MS), NULL),
                     SKEP_PERMISSION_DENIED);
    assert_false(tracker_server_wait(w->server, 0));
    say(other, "[1]");
    ask(peer, "[2, \"tracker:secret\"]", "0");
    hear(other, "0"); /* what was answered is sent */
    assert_closed(peer);
    assert_closed(other);
    assert_true(tracker_server_wait(w->server, clock_deadline_us(WAIT_MS)));
    end(w);
}

static void terminate_asks_then_ends(void **state)
{
    (void)state;
    struct skep_tracker_options options;
    struct skep_tracker *tracker = NULL;
    struct skep_tracker_stats stats;
    struct skep_error err;
    char *summary = NULL;

    assert_int_equal(skep_tracker_start(NULL, &tracker, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "options: NULL"));
    skep_tracker_options_init(&options);
    assert_string_equal(options.host, "0.0.0.0");
    assert_int_equal(options.port, 9190);
    assert_int_equal(options.port_end, 9199);
    options.port = 0;
    options.silent = true;
    assert_int_equal(skep_tracker_start(&options, &tracker, NULL), SKEP_OK);
    assert_true(strncmp(skep_tracker_stop_key(tracker), "tracker:", 8) == 0);
    assert_int_equal(skep_tracker_summary(tracker, &summary, NULL), SKEP_OK);
    assert_string_equal(summary, "{\"queue_info\": {}, \"server_info\": []}");
    skep_tracker_text_free(summary);
    assert_false(skep_tracker_wait(tracker, 0));
    skep_tracker_terminate(tracker, WAIT_MS);
    assert_true(skep_tracker_wait(tracker, 0));
    skep_tracker_stats(tracker, &stats);
    assert_int_equal(stats.messages, 1); /* it was asked */
    skep_tracker_terminate(tracker, WAIT_MS);
    skep_tracker_free(tracker);

    assert_int_equal(skep_tracker_start(&options, &tracker, NULL), SKEP_OK);
    skep_tracker_terminate(tracker, 0); /* no time to ask */
    assert_true(skep_tracker_wait(tracker, 0));
    skep_tracker_free(tracker);
    skep_tracker_terminate(NULL, 0);
    skep_tracker_free(NULL);
}

static bool note_key(void *arg, const struct skep_tracker_key_stats *stats)
{
    char *list = arg;

    snprintf(list + strlen(list), 256 - strlen(list), "%s(%zu) %u/%u/%u,", stats->key,
             stats->key_bytes, (unsigned)stats->servers, (unsigned)stats->free,
             (unsigned)stats->pending);
    return stats->key_bytes > 0;
}

static void keys_are_listed_in_order_of_their_first_use(void **state)
{
    (void)state;
    struct skep_tracker_options options;
    struct skep_tracker *tracker = NULL;
    struct skep_tracker_stats stats;
    char list[256] = "";

    skep_tracker_options_init(&options);
    options.host = "127.0.0.1";
    options.port = 0;
    options.silent = true;
    assert_int_equal(skep_tracker_start(&options, &tracker, NULL), SKEP_OK);
    assert_int_equal(skep_tracker_each_key(tracker, note_key, list, NULL), SKEP_OK);
    assert_string_equal(list, "");
    int peer = dial(skep_tracker_port(tracker));
    greet(peer);
    ask(peer, "[5, {\"key\": \"server:b\", \"addr\": [null, 1]}]", "0");
    ask(peer, "[3, \"b\", [1, \"m\"]]", "0");
    ask(peer, "[3, \"a:\\u0000\", [1, \"n\"]]", "0");
    ask(peer, "[4, \"a:\\u0000\", \"\", 1]", "[0, [\"127.0.0.1\", 1, \"n\"]]");
    ask(peer, "[3, \"\", [1, \"o\"]]", "0");
    ask(peer, "[3, \"never told\", [1, \"p\"]]", "0");
    assert_int_equal(skep_tracker_each_key(tracker, note_key, list, NULL), SKEP_OK);
    assert_string_equal(list, "b(1) 1/1/0,a:(3) 0/0/0,(0) 0/1/0,");
    skep_tracker_stats(tracker, &stats);
    assert_int_equal(stats.waits[0], 1);
    assert_int_equal(stats.requests_served, 1);
    assert_int_equal(stats.keys, 4);
    close(peer);
    skep_tracker_free(tracker);
}

static void starting_and_stopping_leaves_nothing_behind(void **state)
{
    (void)state;
    int before = dup(0);

    close(before);
    for (int i = 0; i < 50; i++) {
        struct watched *w = start(NULL);
        int peer = join(w);
        if (i % 2 == 0) {
            tracker_server_request_stop(w->server);
            assert_true(tracker_server_wait(w->server, clock_deadline_us(WAIT_MS)));
        }
        end(w);
        close(peer);
    }
    int after = dup(0);
    assert_int_equal(after, before);
    close(after);
}

static void starting_survives_failing_allocations(void **state)
{
    (void)state;
    for (long nth = 1; nth < 200; nth++) {
        struct tracker_server *server = NULL;
        const struct tracker_server_config config = {.host = "127.0.0.1", .stop_key = "x"};
        mem_fail_at(nth);
        skep_status rc = tracker_server_new(&config, &server, NULL);
        bool reached = !mem_fail_pending();
        mem_fail_at(0);
        if (rc == SKEP_OK)
            tracker_server_free(server);
        else
            assert_true(rc == SKEP_RESOURCE_EXHAUSTED && server == NULL);
        if (!reached)
            return;
    }
    fail_msg("allocations without end");
}

/* ---- the client ---- */

static skep_status ping(const char *host, uint16_t port, uint32_t timeout_ms,
                        struct skep_error *err)
{
    struct endpoint at = {.port = port};
    struct bytes message = {0};
    json_t *reply = NULL;

    snprintf(at.host, sizeof(at.host), "%s", host);
    assert_true(tracker_write_plain(&message, TRACKER_PING));
    skep_status rc = tracker_ask(&at, &message, clock_deadline_us(timeout_ms), &reply, err);
    if (rc == SKEP_OK)
        assert_int_equal(json_integer_value(reply), 0);
    else
        assert_true(err->status == rc && reply == NULL);
    json_decref(reply);
    bytes_free(&message);
    return rc;
}

static void a_tracker_is_found_by_name_and_address(void **state)
{
    (void)state;
    struct watched *w = start(NULL);
    struct skep_error err;

    assert_int_equal(ping("127.0.0.1", tracker_server_port(w->server), WAIT_MS, &err), SKEP_OK);
    assert_int_equal(ping("localhost", tracker_server_port(w->server), WAIT_MS, &err), SKEP_OK);
    assert_int_equal(ping("no-such-host.invalid", 9, WAIT_MS, &err), SKEP_UNAVAILABLE);
    assert_non_null(strstr(err.message, "no-such-host.invalid"));
    end(w);
}

struct impostor {
    int listener;
    const char *says; /* NULL: nothing */
    bool closes;
    int accepted;
};

static void run_impostor(void *arg)
{
    struct impostor *i = arg;

    i->accepted = accept4(i->listener, NULL, NULL, SOCK_CLOEXEC);
    if (i->says != NULL)
        (void)send(i->accepted, i->says, strlen(i->says), MSG_NOSIGNAL);
    if (i->closes)
        shutdown(i->accepted, SHUT_RDWR);
}

static skep_status ping_impostor(const char *says, bool closes, uint32_t timeout_ms,
                                 struct skep_error *err)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    struct impostor i = {
        .listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .says = says, .closes = closes};
    struct thread thread = {0};

    assert_int_equal(bind(i.listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(i.listener, 4), 0);
    assert_int_equal(getsockname(i.listener, (struct sockaddr *)&at, &len), 0);
    assert_int_equal(thread_start(&thread, "impostor", run_impostor, &i, NULL), SKEP_OK);
    skep_status rc = ping("127.0.0.1", ntohs(at.sin_port), timeout_ms, err);
    thread_join(&thread);
    close(i.accepted);
    close(i.listener);
    return rc;
}

/* B09, B10 */
static void what_is_no_tracker_is_called_so(void **state)
{
    (void)state;
    struct skep_error err;

    assert_int_equal(ping_impostor("HTTP/1.1 400 Bad Request\r\n\r\n", true, WAIT_MS, &err),
                     SKEP_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "this is not a tracker"));
    assert_int_equal(ping_impostor(NULL, true, WAIT_MS, &err), SKEP_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "this is not a tracker"));
    assert_int_equal(ping_impostor("x", true, WAIT_MS, &err), SKEP_FAILED_PRECONDITION);
    assert_int_equal(ping_impostor(NULL, false, 200, &err), SKEP_DEADLINE_EXCEEDED);
    assert_non_null(strstr(err.message, "127.0.0.1"));
    assert_non_null(strstr(err.message, "silent"));
    /* A tracker that breaks the protocol later on. */
    assert_int_equal(ping_impostor("\x71\xf2\x02", true, WAIT_MS, &err), SKEP_FAILED_PRECONDITION);
}

static void a_closed_port_is_told_at_once(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int bound = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct skep_error err;

    assert_int_equal(bind(bound, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(getsockname(bound, (struct sockaddr *)&at, &len), 0);
    assert_int_equal(ping("127.0.0.1", ntohs(at.sin_port), WAIT_MS, &err), SKEP_UNAVAILABLE);
    assert_non_null(strstr(err.message, "refused"));
    close(bound);
}

/* One client, several calls, on a loop. */
struct session {
    struct loop *loop;
    struct endpoint at;
    struct tracker_client *client;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    char log[16][64];
    size_t count;
};

static void note(struct session *s, const char *text)
{
    pthread_mutex_lock(&s->lock);
    snprintf(s->log[s->count++ % 16], 64, "%s", text);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void on_session_reply(void *arg, const json_t *reply, const struct skep_error *err)
{
    struct bytes text = {0};

    if (reply != NULL)
        assert_true(tracker_append_value(&text, reply) && bytes_append(&text, "", 1));
    note(arg, reply != NULL ? (const char *)text.data : skep_status_name(err->status));
    bytes_free(&text);
}

static void on_session_closed(void *arg, const struct skep_error *why)
{
    char text[64];

    snprintf(text, sizeof(text), "closed %s", skep_status_name(why->status));
    note(arg, text);
}

static void session_call(struct session *s, const char *json, uint32_t timeout_ms)
{
    struct bytes message = {0};

    assert_true(tracker_write_message(&message, json, strlen(json)));
    assert_int_equal(tracker_client_call(s->client, &message, clock_deadline_us(timeout_ms),
                                         on_session_reply, s, NULL),
                     SKEP_OK);
    bytes_free(&message);
}

static void session_begin(void *arg)
{
    struct session *s = arg;
    const struct tracker_client_config config = {.loop = s->loop,
                                                 .tracker = s->at,
                                                 .connect_timeout_ms = WAIT_MS,
                                                 .closed = on_session_closed,
                                                 .arg = s};

    assert_int_equal(tracker_client_open(&config, &s->client, NULL), SKEP_OK);
    session_call(s, "[1]", WAIT_MS);
    session_call(s, "[3, \"k\", [1, \"m\"], null]", WAIT_MS);
    session_call(s, "[4, \"k\", \"\", 1]", WAIT_MS);
    session_call(s, "[4, \"k\", \"\", 1]", 100); /* never answered */
    session_call(s, "[1]", WAIT_MS);
}

static void calls_are_answered_in_turn_and_given_up_by_closing(void **state)
{
    (void)state;
    struct watched *w = start(NULL);
    struct session s = {0};
    uint64_t deadline = clock_deadline_us(WAIT_MS);
    static const char *const expected[] = {"0",
                                           "0",
                                           "[0, [\"127.0.0.1\", 1, \"m\"]]",
                                           "DEADLINE_EXCEEDED",
                                           "DEADLINE_EXCEEDED",
                                           "closed DEADLINE_EXCEEDED"};

    tracker_server_endpoint(w->server, &s.at);
    pthread_mutex_init(&s.lock, NULL);
    cond_init(&s.changed);
    assert_int_equal(loop_new("test-client", &s.loop, NULL), SKEP_OK);
    loop_call(s.loop, session_begin, &s);
    pthread_mutex_lock(&s.lock);
    while (s.count < 6 && cond_wait_until(&s.changed, &s.lock, deadline))
        continue;
    pthread_mutex_unlock(&s.lock);
    loop_free(s.loop);
    assert_int_equal(s.count, 6);
    for (size_t i = 0; i < 6; i++)
        assert_string_equal(s.log[i], expected[i]);
    await(w, "withdrawn k");
    pthread_cond_destroy(&s.changed);
    pthread_mutex_destroy(&s.lock);
    end(w);
}

/* ---- many at once ---- */

enum { PUTTERS = 4, ROUNDS = 300 };

struct worker {
    struct watched *w;
    int number;
    unsigned got;
};

static void run_putter(void *arg)
{
    struct worker *k = arg;
    int fd = join(k->w);

    for (int i = 0; i < ROUNDS; i++) {
        char put[64];
        snprintf(put, sizeof(put), "[3, \"k\", [%d, \"m%d.%d\"], null]", k->number + 1, k->number,
                 i);
        ask(fd, put, "0");
    }
    char end_of_it;
    (void)recv(fd, &end_of_it, 1, 0); /* until the other side is done with what it has put */
    close(fd);
}

static void run_getter(void *arg)
{
    struct worker *k = arg;
    int fd = join(k->w);

    for (int i = 0; i < ROUNDS; i++) {
        uint8_t prefix[4];
        char text[128];
        say(fd, "[4, \"k\", \"\", 1]");
        if (recv(fd, prefix, 4, MSG_WAITALL) != 4)
            break;
        uint32_t len = load_u32(prefix);
        if (len >= sizeof(text) || recv(fd, text, len, MSG_WAITALL) != (ssize_t)len)
            break;
        k->got++;
    }
    close(fd);
}

/* Every resource is handed out, each once, as many as are asked for. */
static void as_many_are_handed_out_as_were_put(void **state)
{
    (void)state;
    struct watched *w = start(NULL);
    struct worker putters[PUTTERS], getters[PUTTERS];
    struct thread threads[2 * PUTTERS] = {0};
    struct tracker_server_counters counters;

    for (int i = 0; i < PUTTERS; i++) {
        putters[i] = (struct worker){.w = w, .number = i};
        getters[i] = (struct worker){.w = w, .number = i};
        assert_int_equal(thread_start(&threads[i], "putter", run_putter, &putters[i], NULL),
                         SKEP_OK);
        assert_int_equal(
            thread_start(&threads[PUTTERS + i], "getter", run_getter, &getters[i], NULL), SKEP_OK);
    }
    for (int i = 0; i < PUTTERS; i++)
        thread_join(&threads[PUTTERS + i]);
    tracker_server_counters(w->server, &counters);
    tracker_server_end(w->server);
    for (int i = 0; i < PUTTERS; i++)
        thread_join(&threads[i]);
    for (int i = 0; i < PUTTERS; i++)
        assert_int_equal(getters[i].got, ROUNDS);
    assert_int_equal(counters.scheduler.served, PUTTERS * ROUNDS);
    assert_int_equal(counters.scheduler.puts, PUTTERS * ROUNDS);
    assert_int_equal(counters.scheduler.free + counters.scheduler.pending, 0);
    end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_keys_are_told),
        cmocka_unit_test(a_request_is_answered_from_elsewhere_exactly_once),
        cmocka_unit_test(no_answer_is_lost_on_one_that_has_left),
        cmocka_unit_test(what_was_not_sent_to_one_that_dies_is_free_again),
        cmocka_unit_test(what_was_read_is_gone),
        cmocka_unit_test(a_resource_is_taken_and_returned),
        cmocka_unit_test(the_newest_connection_is_refused_the_others_go_on),
        cmocka_unit_test(who_sends_no_magic_makes_room),
        cmocka_unit_test(an_info_that_is_too_long_registers_nothing),
        cmocka_unit_test(beginnings_time_out_idleness_does_not),
        cmocka_unit_test(who_reads_nothing_is_closed),
        cmocka_unit_test(who_reads_late_gets_everything),
        cmocka_unit_test(the_first_free_port_of_the_range_is_taken),
        cmocka_unit_test(stop_needs_the_key),
        cmocka_unit_test(terminate_asks_then_ends),
        cmocka_unit_test(keys_are_listed_in_order_of_their_first_use),
        cmocka_unit_test(starting_and_stopping_leaves_nothing_behind),
        cmocka_unit_test(starting_survives_failing_allocations),
        cmocka_unit_test(a_tracker_is_found_by_name_and_address),
        cmocka_unit_test(what_is_no_tracker_is_called_so),
        cmocka_unit_test(a_closed_port_is_told_at_once),
        cmocka_unit_test(calls_are_answered_in_turn_and_given_up_by_closing),
        cmocka_unit_test(as_many_are_handed_out_as_were_put),
    };

    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
