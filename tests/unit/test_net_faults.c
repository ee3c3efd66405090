/* Strangers, liars and the lost, over real loopback sockets. */
#include "net_fixture.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <sys/resource.h>

/* ---- Those who connect to the server (B10, B55) ---- */

static void wait_counters(struct fixture *f, uint64_t failed_handshakes)
{
    uint64_t deadline = clock_deadline_us(PATIENCE_MS);
    struct server_counters c;

    do /* the counter follows the close by an instant */
        server_counters(f->server, &c);
    while (c.handshakes_failed < failed_handshakes && clock_mono_us() < deadline);
    assert_int_equal(c.handshakes_failed, failed_handshakes);
}

static void stranger_is_dropped(struct fixture *f, const void *bytes, size_t len, bool end_writing,
                                uint64_t nth)
{
    int fd = raw_connect(f);

    assert_int_equal(send(fd, bytes, len, MSG_NOSIGNAL), (ssize_t)len);
    if (end_writing)
        shutdown(fd, SHUT_WR);
    assert_int_equal(raw_read_to_end(fd), 0); /* nothing is said to who speaks another language */
    close(fd);
    wait_counters(f, nth);
    assert_serves(f);
}

static void strangers_are_dropped_and_the_server_serves_on(void **state)
{
    (void)state;
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    static const uint8_t tvm[] = {0x71, 0xf2, 0x02, 0x00, 4, 0, 0, 0};
    static const uint8_t tls[] = {0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01};
    uint8_t noise[8192];
    struct fixture f;

    fixture_init(&f);
    fixture_start(&f);
    stranger_is_dropped(&f, http, sizeof(http) - 1, false, 1);
    stranger_is_dropped(&f, tvm, sizeof(tvm), false, 2);
    stranger_is_dropped(&f, tls, sizeof(tls), false, 3);
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (uint8_t)(i * 151 + 7);
    stranger_is_dropped(&f, noise, sizeof(noise), false, 4);
    stranger_is_dropped(&f, "SKE", 3, true, 5);
    stranger_is_dropped(&f, "", 0, true, 6);
    fixture_end(&f);
}

static void reset_in_any_state_is_survived(void **state)
{
    (void)state;
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    struct fixture f;

    fixture_init(&f);
    fixture_start(&f);
    for (int i = 0; i < 50; i++) {
        int fd = raw_connect(&f);
        if (i % 2 == 0)
            assert_int_equal(send(fd, "SK", 2, MSG_NOSIGNAL), 2);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        close(fd);
    }
    assert_serves(&f);
    fixture_end(&f);
}

static void silent_clients_hold_up_nobody_and_time_out(void **state)
{
    (void)state;
    enum { SILENT = 300 };
    struct fixture f;
    static int fds[SILENT];

    fixture_init(&f);
    f.config.limits.handshake_timeout_ms = 2000; /* enough for those who are not silent */
    fixture_start(&f);
    for (int i = 0; i < SILENT; i++)
        fds[i] = raw_connect(&f);
    assert_serves(&f);
    for (int i = 0; i < SILENT; i++) {
        assert_int_equal(raw_read_to_end(fds[i]), 0);
        close(fds[i]);
    }
    wait_counters(&f, SILENT);
    assert_serves(&f);
    fixture_end(&f);
}

static void wait_accepted(struct fixture *f, uint64_t count, struct server_counters *c)
{
    uint64_t deadline = clock_deadline_us(PATIENCE_MS);

    do
        server_counters(f->server, c);
    while (c->connections_accepted < count && clock_mono_us() < deadline);
    assert_int_equal(c->connections_accepted, count);
}

static void connections_over_the_limit_are_closed_and_counted(void **state)
{
    (void)state;
    enum { LIMIT = 5, OVER = 7 };
    struct fixture f;
    int fds[LIMIT];

    fixture_init(&f);
    f.config.max_connections = LIMIT;
    f.config.handshake_grace_ms = PATIENCE_MS;
    fixture_start(&f);
    for (int i = 0; i < LIMIT; i++)
        fds[i] = raw_connect(&f);
    struct server_counters c;
    wait_accepted(&f, LIMIT, &c);
    for (int i = 0; i < OVER; i++) {
        int fd = raw_connect(&f);
        assert_int_equal(raw_read_to_end(fd), 0);
        close(fd);
    }
    server_counters(f.server, &c);
    assert_int_equal(c.connections_refused, OVER);
    assert_int_equal(c.connections_open, LIMIT);
    for (int i = 0; i < LIMIT; i++)
        close(fds[i]);
    wait_counters(&f, LIMIT);
    assert_serves(&f);
    fixture_end(&f);
}

static bool is_open(int fd)
{
    char c;

    return recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

/* Calls until one gets through: the strangers' time of grace may have to pass first. */
static void call_until_served(struct fixture *f)
{
    uint64_t deadline = clock_deadline_us(PATIENCE_MS);
    struct pool_target target = target_of(f);
    skep_status status;

    do {
        struct waiter w;
        call_target(f->pool, &target, "echo", CLOCK_NEVER, &w);
        status = w.status;
        waiter_fini(&w);
    } while (status != SKEP_OK && clock_mono_us() < deadline);
    assert_int_equal(status, SKEP_OK);
}

static void silent_strangers_make_room_for_peers(void **state)
{
    (void)state;
    enum { LIMIT = 8, MORE = 3 * LIMIT };
    struct fixture f;
    struct server_counters c;
    int fds[LIMIT + MORE];

    fixture_init(&f);
    f.config.io_threads = 1;
    f.config.max_connections = LIMIT;
    f.config.handshake_grace_ms = 1;
    f.config.limits.handshake_timeout_ms = 10 * PATIENCE_MS;
    fixture_start(&f);
    for (int i = 0; i < LIMIT; i++)
        fds[i] = raw_connect(&f);
    wait_accepted(&f, LIMIT, &c);
    call_until_served(&f);
    assert_int_equal(raw_read_to_end(fds[0]), 0); /* the oldest went, and no other */
    assert_true(is_open(fds[1]));
    server_counters(f.server, &c);
    assert_int_equal(c.connections_open, LIMIT);
    assert_int_equal(c.handshakes_evicted, 1);
    assert_int_equal(c.handshakes_failed, 1);
    /* One that has made its handshake stays, however many come and however old it is. */
    uint64_t came = c.connections_accepted + c.connections_refused;
    uint64_t deadline = clock_deadline_us(PATIENCE_MS);
    for (int i = LIMIT; i < LIMIT + MORE; i++)
        fds[i] = raw_connect(&f);
    do
        server_counters(f.server, &c);
    while (c.connections_accepted + c.connections_refused < came + MORE &&
           clock_mono_us() < deadline);
    assert_serves(&f);
    server_counters(f.server, &c);
    assert_int_equal(c.connections_accepted + c.connections_refused, came + MORE);
    assert_int_equal(c.calls, 2);
    for (int i = 0; i < LIMIT + MORE; i++)
        close(fds[i]);
    fixture_end(&f);
}

/* The source address of a connection to the machine's own outer address is that address. */
static bool outer_address(struct endpoint *out)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
    struct sockaddr_in own;
    socklen_t len = sizeof(own);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);

    to.sin_addr.s_addr = htonl(0xc6336401); /* 198.51.100.1; a datagram socket sends nothing yet */
    bool ok = connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 &&
              getsockname(fd, (struct sockaddr *)&own, &len) == 0;
    close(fd);
    if (ok)
        endpoint_from_address(out, (struct sockaddr *)&own);
    return ok && !endpoint_is_loopback(out) && !endpoint_is_unspecified(out);
}

static void address_over_its_share_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    struct endpoint outer;
    int fds[2];

    if (!outer_address(&outer)) {
        print_message("no address other than loopback here\n");
        skip();
    }
    fixture_init(&f);
    snprintf(f.config.listen.host, sizeof(f.config.listen.host), "0.0.0.0");
    f.config.max_connections_per_address = 2;
    fixture_start(&f);
    uint16_t port = f.endpoint.port;
    f.endpoint = outer;
    f.endpoint.port = port;
    fds[0] = raw_connect(&f);
    fds[1] = raw_connect(&f);
    int third = raw_connect(&f);
    assert_int_equal(raw_read_to_end(third), 0);
    close(third);
    snprintf(f.endpoint.host, sizeof(f.endpoint.host), "127.0.0.1");
    assert_serves(&f);
    struct server_counters c;
    server_counters(f.server, &c);
    assert_int_equal(c.connections_refused, 1);
    close(fds[0]);
    close(fds[1]);
    fixture_end(&f);
}

/* Half-open connections of one address do not keep out who shares that address. */
static void silent_strangers_of_an_address_make_room_for_its_peers(void **state)
{
    (void)state;
    enum { SHARE = 3 };
    struct fixture f;
    struct endpoint outer;
    struct server_counters c;
    int fds[SHARE];

    if (!outer_address(&outer)) {
        print_message("no address other than loopback here\n");
        skip();
    }
    fixture_init(&f);
    snprintf(f.config.listen.host, sizeof(f.config.listen.host), "0.0.0.0");
    f.config.io_threads = 1;
    f.config.max_connections_per_address = SHARE;
    f.config.handshake_grace_ms = 1;
    f.config.limits.handshake_timeout_ms = 10 * PATIENCE_MS;
    fixture_start(&f);
    snprintf(f.endpoint.host, sizeof(f.endpoint.host), "127.0.0.1");
    int local = raw_connect(&f); /* older, silent too, and of another address */
    snprintf(f.endpoint.host, sizeof(f.endpoint.host), "%s", outer.host);
    for (int i = 0; i < SHARE; i++)
        fds[i] = raw_connect(&f);
    wait_accepted(&f, SHARE + 1, &c);
    call_until_served(&f);
    assert_int_equal(raw_read_to_end(fds[0]), 0); /* the oldest of this address went */
    assert_true(is_open(fds[1]));
    assert_true(is_open(local));
    server_counters(f.server, &c);
    assert_int_equal(c.handshakes_evicted, 1);
    for (int i = 0; i < SHARE; i++)
        close(fds[i]);
    close(local);
    fixture_end(&f);
}

static int highest_descriptor(void)
{
    int highest = 0;
    DIR *dir = opendir("/proc/self/fd");

    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (atoi(e->d_name) > highest)
            highest = atoi(e->d_name);
    closedir(dir);
    return highest;
}

/* Where descriptors are used up by those that say nothing, others are accepted all the same. */
static void silent_strangers_make_room_at_the_descriptor_limit(void **state)
{
    (void)state;
    enum { SILENT = 4, MOST_HOLES = 8192 };
    static int holes[MOST_HOLES];
    size_t hole_count = 0;
    struct fixture f;
    struct server_counters c;
    struct rlimit before, tight;
    int fds[SILENT];

    fixture_init(&f);
    f.config.io_threads = 1;
    f.config.handshake_grace_ms = 1;
    f.config.limits.handshake_timeout_ms = 10 * PATIENCE_MS;
    fixture_start(&f);
    for (int i = 0; i < SILENT; i++)
        fds[i] = raw_connect(&f);
    wait_accepted(&f, SILENT, &c);
    int waiting = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct address a;
    assert_true(endpoint_to_address(&f.endpoint, &a));
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    tight = before;
    tight.rlim_cur = (rlim_t)highest_descriptor() + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    while (hole_count < MOST_HOLES && (holes[hole_count] = dup(waiting)) >= 0)
        hole_count++;
    assert_true(hole_count < MOST_HOLES);
    int rc = connect(waiting, (struct sockaddr *)&a.sa, a.len);
    wait_accepted(&f, SILENT + 1, &c);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rc, 0);
    assert_int_equal(c.handshakes_evicted, 1);
    assert_int_equal(raw_read_to_end(fds[0]), 0); /* the oldest went, and no other */
    assert_true(is_open(fds[1]));
    for (size_t i = 0; i < hole_count; i++)
        close(holes[i]);
    close(waiting);
    for (int i = 0; i < SILENT; i++)
        close(fds[i]);
    fixture_end(&f);
}

static void running_out_of_descriptors_pauses_accepting(void **state)
{
    (void)state;
    struct fixture f;
    struct rlimit before, tight;

    fixture_init(&f);
    fixture_start(&f);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int fd = raw_connect(&f);
    struct server_counters c;
    do
        server_counters(f.server, &c);
    while (c.connections_accepted < 1);
    /* No new descriptor can be made; a connection still gets into the kernel's queue. */
    int waiting = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct address a;
    assert_true(endpoint_to_address(&f.endpoint, &a));
    tight = before;
    tight.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    int rc = connect(waiting, (struct sockaddr *)&a.sa, a.len);
    /* Served by the other thread or not: nothing is accepted while the limit is there. */
    assert_int_equal(send(waiting, "GET", 3, MSG_NOSIGNAL), 3);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rc, 0);
    assert_int_equal(raw_read_to_end(waiting), 0); /* accepted later, and dropped as a stranger */
    close(waiting);
    close(fd);
    assert_serves(&f);
    fixture_end(&f);
}

static void many_connections_at_once_are_all_served(void **state)
{
    (void)state;
    enum { CLIENTS = 300 };
    struct fixture f;
    static struct waiter w[CLIENTS];

    if (fd_raise_limit() < 8 * CLIENTS)
        skip();
    fixture_init(&f);
    snprintf(f.config.listen.host, sizeof(f.config.listen.host), "0.0.0.0");
    f.pool_config.max_connections = 2 * CLIENTS;
    take_time(&f);
    fixture_start(&f);
    struct pool_target target = target_of(&f);
    /* A pool makes one connection to a peer; by endpoints that differ it makes several. */
    for (int i = 0; i < CLIENTS; i++) {
        struct pool_target own = target;
        waiter_init(&w[i]);
        own.has_peer_id = false;
        snprintf(own.endpoints[0].host, sizeof(own.endpoints[0].host), "127.0.%d.%d", 1 + i / 100,
                 1 + i % 100);
        assert_int_equal(start_call_to(f.pool, &own, "hold", NULL, 0,
                                       clock_deadline_us(PATIENCE_MS), &w[i], NULL),
                         SKEP_OK);
    }
    wait_count(&f, &f.held_count, CLIENTS);
    struct server_counters c;
    server_counters(f.server, &c);
    assert_int_equal(c.connections_open, CLIENTS);
    release_held(&f);
    for (int i = 0; i < CLIENTS; i++) {
        waiter_wait(&w[i]);
        assert_int_equal(w[i].status, SKEP_OK);
        waiter_fini(&w[i]);
    }
    fixture_end(&f);
}

/* ---- A client that reads nothing ---- */

/* A proxy that passes bytes both ways until it is told to stop reading from the server. */
struct proxy {
    struct fixture *f;
    int listening;
    uint16_t port;
    struct thread thread;
    atomic_bool stop_reading;
};

static void pass(int from, int to)
{
    char scratch[16384];
    ssize_t n = recv(from, scratch, sizeof(scratch), MSG_DONTWAIT);

    for (ssize_t at = 0; at < n;) {
        ssize_t m = send(to, scratch + at, (size_t)(n - at), MSG_NOSIGNAL);
        if (m <= 0)
            return;
        at += m;
    }
}

static bool ended(int fd)
{
    char c;
    ssize_t n = recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);

    return n == 0 || (n < 0 && errno != EAGAIN);
}

static void run_proxy(void *arg)
{
    struct proxy *p = arg;
    int client = accept(p->listening, NULL, NULL);
    int small = 4096;
    int server = raw_connect(p->f);

    setsockopt(server, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    while (!ended(client)) {
        pass(client, server);
        if (!atomic_load(&p->stop_reading))
            pass(server, client);
    }
    close(client);
    close(server);
}

static void start_proxy(struct proxy *p, struct fixture *f)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);

    p->f = f;
    p->listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(p->listening, (struct sockaddr *)&at, len), 0);
    assert_int_equal(listen(p->listening, 4), 0);
    assert_int_equal(getsockname(p->listening, (struct sockaddr *)&at, &len), 0);
    p->port = ntohs(at.sin_port);
    assert_int_equal(thread_start(&p->thread, "proxy", run_proxy, p, NULL), SKEP_OK);
}

static void client_that_reads_nothing_is_closed_after_the_stall(void **state)
{
    (void)state;
    struct fixture f;
    struct proxy proxy = {0};
    struct waiter w;
    DLManagedTensor *tensor = floats(4 << 20, 0);

    fixture_init(&f);
    f.config.limits.stall_timeout_ms = 1000;
    f.config.limits.stream_window = 64 << 20;
    f.config.limits.connection_window = 64 << 20;
    f.pool_config.limits = f.config.limits;
    f.pool_config.limits.stall_timeout_ms = 60000;
    fixture_start(&f);
    start_proxy(&proxy, &f);
    waiter_init(&w);
    struct pool_target target = target_of(&f);
    target.endpoints[0].port = proxy.port;
    assert_int_equal(start_call_to(f.pool, &target, "hold", &tensor, 1, CLOCK_NEVER, &w, NULL),
                     SKEP_OK);
    wait_count(&f, &f.held_count, 1);
    atomic_store(&proxy.stop_reading, true);
    release_held(&f); /* 16 MB that nobody takes, four times what the kernel does */
    wait_count(&f, &f.finished, 1);
    struct server_counters c;
    uint64_t deadline = clock_deadline_us(PATIENCE_MS);
    do
        server_counters(f.server, &c);
    while (c.connections_open > 0 && clock_mono_us() < deadline);
    assert_int_equal(c.connections_open, 0);
    pool_free(f.pool);
    f.pool = NULL;
    thread_join(&proxy.thread);
    assert_int_equal(w.done, 1);
    waiter_fini(&w);
    close(proxy.listening);
    skep_tensor_free(tensor);
    fixture_end(&f);
}

/* ---- Whom the pool meets ---- */

static void wrong_identity_is_refused_naming_both(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;
    struct identity other;
    char expected[PEER_ID_HEX_BYTES], seen[PEER_ID_HEX_BYTES];

    fixture_init(&f);
    fixture_start(&f);
    assert_int_equal(identity_generate(&other, NULL), SKEP_OK);
    struct pool_target target = target_of(&f);
    memcpy(target.peer_id, other.peer_id, PEER_ID_BYTES);
    call_target(f.pool, &target, "echo", CLOCK_NEVER, &w);
    assert_false(w.got_reply);
    assert_false(w.sent);
    assert_int_equal(w.status, SKEP_UNAUTHENTICATED);
    peer_id_hex(other.peer_id, expected);
    peer_id_hex(f.server_id.peer_id, seen);
    expected[12] = seen[12] = '\0';
    assert_non_null(strstr(w.message, expected));
    assert_non_null(strstr(w.message, seen));
    waiter_fini(&w);
    fixture_end(&f);
    assert_int_equal(f.started, 0);
}

static void strangers_to_the_swarm_are_refused(void **state)
{
    (void)state;
    static const uint8_t key[32] = {1}, other_key[32] = {2};
    struct {
        const uint8_t *server_psk, *client_psk;
        bool server_plain, client_plain;
        const char *client_swarm;
        bool works;
    } cases[] = {
        {key, key, false, false, "test", true},   {key, other_key, false, false, "test", false},
        {key, NULL, false, false, "test", false}, {NULL, key, false, false, "test", false},
        {NULL, NULL, true, true, "test", true},   {NULL, NULL, true, false, "test", false},
        {NULL, NULL, false, true, "test", false}, {NULL, NULL, false, false, "other", false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fixture f;
        struct waiter w;
        fixture_init(&f);
        f.config.psk = cases[i].server_psk;
        f.config.plaintext = cases[i].server_plain;
        f.pool_config.psk = cases[i].client_psk;
        f.pool_config.plaintext = cases[i].client_plain;
        f.pool_config.swarm = cases[i].client_swarm;
        fixture_start(&f);
        struct pool_target target = target_of(&f);
        call_target(f.pool, &target, "echo", CLOCK_NEVER, &w);
        print_message("case %zu: %s\n", i, w.message);
        assert_int_equal(w.got_reply, cases[i].works);
        if (!cases[i].works) {
            assert_true(w.status == SKEP_UNAVAILABLE || w.status == SKEP_UNAUTHENTICATED);
            assert_non_null(strstr(w.message, "127.0.0.1:"));
        }
        waiter_fini(&w);
        fixture_end(&f);
        assert_int_equal(f.started, cases[i].works);
    }
}

/* Something that listens, says `words` and closes, or (words NULL) says nothing and stays. */
struct impostor {
    const char *words;
    int listening;
    struct endpoint endpoint;
    struct thread thread;
};

static void run_impostor(void *arg)
{
    struct impostor *im = arg;
    int fd = accept(im->listening, NULL, NULL);
    char c;

    if (im->words != NULL) {
        (void)recv(fd, &c, 1, 0);
        (void)send(fd, im->words, strlen(im->words), MSG_NOSIGNAL);
    } else {
        while (recv(fd, &c, 1, 0) > 0)
            continue;
    }
    close(fd);
}

static void start_impostor(struct impostor *im, const char *words)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);

    im->words = words;
    im->listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(im->listening, (struct sockaddr *)&at, len), 0);
    assert_int_equal(listen(im->listening, 4), 0);
    assert_int_equal(getsockname(im->listening, (struct sockaddr *)&at, &len), 0);
    endpoint_from_address(&im->endpoint, (struct sockaddr *)&at);
    im->thread.started = false;
    assert_int_equal(thread_start(&im->thread, "impostor", run_impostor, im, NULL), SKEP_OK);
}

static void end_impostor(struct impostor *im)
{
    shutdown(im->listening, SHUT_RDWR); /* if nobody has come, it waits no longer */
    thread_join(&im->thread);
    close(im->listening);
}

static void peer_that_is_no_skep_is_called_so(void **state)
{
    (void)state;
    static const char *const words[] = {"HTTP/1.1 400 Bad Request\r\n\r\n", "", NULL};
    struct fixture f;

    fixture_init(&f);
    f.pool_config.limits.handshake_timeout_ms = 200;
    fixture_start(&f);
    for (size_t i = 0; i < 3; i++) {
        struct impostor im;
        struct waiter w;
        start_impostor(&im, words[i]);
        struct pool_target target = target_of(&f);
        target.endpoints[0] = im.endpoint;
        call_target(f.pool, &target, "echo", CLOCK_NEVER, &w);
        print_message("impostor %zu: %s\n", i, w.message);
        assert_int_equal(w.status, SKEP_UNAVAILABLE);
        assert_false(w.sent);
        assert_non_null(strstr(w.message, "not a Skep endpoint"));
        assert_non_null(strstr(w.message, "127.0.0.1:"));
        /* Who says nothing may be a node that has been stopped. */
        assert_int_equal(strstr(w.message, "hangs or is overloaded") != NULL, words[i] == NULL);
        waiter_fini(&w);
        end_impostor(&im);
    }
    fixture_end(&f);
}

static struct endpoint closed_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    struct endpoint e;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&at, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    close(fd);
    endpoint_from_address(&e, (struct sockaddr *)&at);
    return e;
}

static void failure_to_connect_names_each_endpoint_and_cause(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;
    char text[ENDPOINT_TEXT_BYTES];

    fixture_init(&f);
    fixture_start(&f);
    struct pool_target target = target_of(&f);
    target.endpoint_count = 4;
    target.endpoints[0] = closed_port();
    target.endpoints[1] = (struct endpoint){.host = "no-such-host.invalid", .port = 5};
    target.endpoints[2] = (struct endpoint){.host = "0.0.0.0", .port = 5};
    target.endpoints[3] = closed_port();
    call_target(f.pool, &target, "echo", CLOCK_NEVER, &w);
    print_message("%s\n", w.message);
    assert_int_equal(w.status, SKEP_UNAVAILABLE);
    assert_false(w.sent);
    assert_non_null(strstr(w.message, endpoint_format(&target.endpoints[0], text)));
    assert_non_null(strstr(w.message, "refused"));
    assert_non_null(strstr(w.message, "no-such-host.invalid:5"));
    assert_non_null(strstr(w.message, "not an address to connect to"));
    waiter_fini(&w);
    fixture_end(&f);
}

static void later_endpoint_is_used_when_earlier_ones_fail(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;
    struct impostor im;

    fixture_init(&f);
    fixture_start(&f);
    start_impostor(&im, "HTTP/1.1 400 Bad Request\r\n\r\n");
    struct pool_target target = target_of(&f);
    target.endpoint_count = 3;
    target.endpoints[0] = closed_port();
    target.endpoints[1] = im.endpoint;
    target.endpoints[2] = f.endpoint;
    call_target(f.pool, &target, "echo", CLOCK_NEVER, &w);
    assert_int_equal(w.status, SKEP_OK);
    waiter_fini(&w);
    end_impostor(&im);
    fixture_end(&f);
}

static void name_is_tried_at_all_its_addresses(void **state)
{
    (void)state;
    static const char *const listens[] = {"127.0.0.1", "::1", "localhost", "0.0.0.0", "::"};
    struct skep_error err;

    for (size_t i = 0; i < sizeof(listens) / sizeof(listens[0]); i++) {
        struct fixture f;
        struct waiter w;
        fixture_init(&f);
        snprintf(f.config.listen.host, sizeof(f.config.listen.host), "%s", listens[i]);
        if (server_new(&f.config, &f.server, &err) != SKEP_OK) {
            print_message("skipped: %s\n", err.message);
            continue;
        }
        server_free(f.server);
        fixture_start(&f);
        struct pool_target target = target_of(&f);
        snprintf(target.endpoints[0].host, sizeof(target.endpoints[0].host), "localhost");
        call_target(f.pool, &target, "echo", CLOCK_NEVER, &w);
        if (w.status != SKEP_OK)
            print_message("%s: %s\n", listens[i], w.message);
        /* Only where "localhost" has an address of the family that is listened on. */
        if (strcmp(listens[i], "::1") != 0)
            assert_int_equal(w.status, SKEP_OK);
        waiter_fini(&w);
        fixture_end(&f);
    }
}

static void deadline_covers_connecting(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;
    struct impostor im;

    fixture_init(&f);
    fixture_start(&f);
    start_impostor(&im, NULL);
    struct pool_target target = target_of(&f);
    target.endpoints[0] = im.endpoint;
    call_target(f.pool, &target, "echo", clock_deadline_us(50), &w);
    assert_int_equal(w.status, SKEP_DEADLINE_EXCEEDED);
    assert_false(w.sent);
    waiter_fini(&w);
    pool_free(f.pool); /* hangs up on it */
    f.pool = NULL;
    end_impostor(&im);
    fixture_end(&f);
}

static void cancelled_while_connecting_is_done_once(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;
    struct impostor im;
    struct pool_call *call;

    fixture_init(&f);
    fixture_start(&f);
    start_impostor(&im, NULL);
    struct pool_target target = target_of(&f);
    target.endpoints[0] = im.endpoint;
    waiter_init(&w);
    assert_int_equal(start_call_to(f.pool, &target, "echo", NULL, 0, CLOCK_NEVER, &w, &call),
                     SKEP_OK);
    pool_cancel(f.pool, call);
    waiter_wait(&w);
    assert_int_equal(w.status, SKEP_CANCELLED);
    pool_free(f.pool);
    f.pool = NULL;
    assert_int_equal(w.done, 1);
    waiter_fini(&w);
    end_impostor(&im);
    fixture_end(&f);
}

static void calls_over_the_stream_limit_wait_and_then_run(void **state)
{
    (void)state;
    enum { CALLS = 50 };
    struct fixture f;
    static struct waiter w[CALLS];

    fixture_init(&f);
    f.config.limits.max_streams = 4;
    fixture_start(&f);
    for (int i = 0; i < CALLS; i++) {
        waiter_init(&w[i]);
        start_plain(&f, "echo", &w[i]);
    }
    for (int i = 0; i < CALLS; i++) {
        waiter_wait(&w[i]);
        assert_int_equal(w[i].status, SKEP_OK);
        waiter_fini(&w[i]);
    }
    struct server_counters c;
    server_counters(f.server, &c);
    assert_int_equal(c.connections_accepted, 1);
    assert_int_equal(c.protocol_errors, 0);
    fixture_end(&f);
}

static void queue_to_a_peer_is_bounded(void **state)
{
    (void)state;
    enum { CALLS = POOL_MAX_WAITING + 10 };
    struct fixture f;
    static struct waiter w[CALLS];
    unsigned refused = 0;

    fixture_init(&f);
    f.config.limits.max_streams = 1;
    fixture_start(&f);
    for (int i = 0; i < CALLS; i++) {
        waiter_init(&w[i]);
        start_plain(&f, i == 0 ? "hold" : "inline", &w[i]);
        if (i == 0)
            wait_count(&f, &f.held_count, 1);
    }
    for (int i = POOL_MAX_WAITING + 1; i < CALLS; i++) {
        waiter_wait(&w[i]);
        refused += w[i].status == SKEP_RESOURCE_EXHAUSTED && !w[i].sent;
    }
    assert_int_equal(refused, CALLS - POOL_MAX_WAITING - 1);
    release_held(&f);
    for (int i = 0; i < CALLS; i++) {
        waiter_wait(&w[i]);
        if (i <= POOL_MAX_WAITING)
            assert_int_equal(w[i].status, SKEP_OK);
        waiter_fini(&w[i]);
    }
    fixture_end(&f);
}

static void idle_connection_is_closed_and_made_anew(void **state)
{
    (void)state;
    struct fixture f;
    struct server_counters c;
    uint64_t deadline = clock_deadline_us(PATIENCE_MS);

    fixture_init(&f);
    f.pool_config.idle_timeout_ms = 30;
    fixture_start(&f);
    assert_serves(&f);
    do
        server_counters(f.server, &c);
    while (c.connections_open > 0 && clock_mono_us() < deadline);
    assert_int_equal(c.connections_open, 0);
    assert_serves(&f);
    server_counters(f.server, &c);
    assert_int_equal(c.connections_accepted, 2);
    fixture_end(&f);
}

static void idle_connection_makes_room_for_another_peer(void **state)
{
    (void)state;
    struct fixture a, b;
    struct waiter w, held;

    fixture_init(&a);
    fixture_init(&b);
    a.pool_config.max_connections = 1;
    fixture_start(&a);
    fixture_start(&b);
    assert_serves(&a);
    struct pool_target to_b = target_of(&b);
    call_target(a.pool, &to_b, "echo", CLOCK_NEVER, &w); /* b instead of a, who is idle */
    assert_int_equal(w.status, SKEP_OK);
    waiter_fini(&w);

    waiter_init(&held);
    assert_int_equal(start_call_to(a.pool, &to_b, "hold", NULL, 0, CLOCK_NEVER, &held, NULL),
                     SKEP_OK);
    wait_count(&b, &b.held_count, 1);
    struct pool_target to_a = target_of(&a);
    call_target(a.pool, &to_a, "echo", CLOCK_NEVER, &w); /* b is in use: no room */
    assert_int_equal(w.status, SKEP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(w.message, "max_connections"));
    waiter_fini(&w);
    release_held(&b);
    waiter_wait(&held);
    waiter_fini(&held);
    fixture_end(&a);
    fixture_end(&b);
}

/* The server closes idle connections at moments of its own; no call may fail for that. */
static void calls_survive_the_servers_idle_timeout(void **state)
{
    (void)state;
    struct fixture f;

    fixture_init(&f);
    f.config.limits.idle_timeout_ms = 1;
    fixture_start(&f);
    for (int i = 0; i < 300; i++) {
        struct waiter w;
        struct pool_target target = target_of(&f);
        call_target(f.pool, &target, "inline", CLOCK_NEVER, &w);
        /* A call that had left already may be lost, and says so. */
        if (w.status != SKEP_OK)
            assert_true(w.status == SKEP_UNAVAILABLE && w.sent);
        waiter_fini(&w);
    }
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_are_dropped_and_the_server_serves_on),
        cmocka_unit_test(reset_in_any_state_is_survived),
        cmocka_unit_test(silent_clients_hold_up_nobody_and_time_out),
        cmocka_unit_test(connections_over_the_limit_are_closed_and_counted),
        cmocka_unit_test(silent_strangers_make_room_for_peers),
        cmocka_unit_test(address_over_its_share_is_refused),
        cmocka_unit_test(silent_strangers_of_an_address_make_room_for_its_peers),
        cmocka_unit_test(silent_strangers_make_room_at_the_descriptor_limit),
        cmocka_unit_test(running_out_of_descriptors_pauses_accepting),
        cmocka_unit_test(many_connections_at_once_are_all_served),
        cmocka_unit_test(client_that_reads_nothing_is_closed_after_the_stall),
        cmocka_unit_test(wrong_identity_is_refused_naming_both),
        cmocka_unit_test(strangers_to_the_swarm_are_refused),
        cmocka_unit_test(peer_that_is_no_skep_is_called_so),
        cmocka_unit_test(failure_to_connect_names_each_endpoint_and_cause),
        cmocka_unit_test(later_endpoint_is_used_when_earlier_ones_fail),
        cmocka_unit_test(name_is_tried_at_all_its_addresses),
        cmocka_unit_test(deadline_covers_connecting),
        cmocka_unit_test(cancelled_while_connecting_is_done_once),
        cmocka_unit_test(calls_over_the_stream_limit_wait_and_then_run),
        cmocka_unit_test(queue_to_a_peer_is_bounded),
        cmocka_unit_test(idle_connection_is_closed_and_made_anew),
        cmocka_unit_test(idle_connection_makes_room_for_another_peer),
        cmocka_unit_test(calls_survive_the_servers_idle_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
