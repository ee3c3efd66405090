/* Joining by a tracker: the question over real sockets, and answers of all kinds. */
#include "dht_net.h"

#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "dht/bootstrap/initial_peer.h"
#include "dht/bootstrap/tracker_peers.h"
#include "own_swarm.h"

enum { NETWORK = 77 };

/* A tracker that answers one connection with these bytes, whatever is asked, and closes. */
struct fake {
    int fd;
    struct endpoint at;
    struct bytes answer;
    struct thread thread;
    uint8_t question[64];
    size_t question_len;
};

static void serve(void *arg)
{
    struct fake *f = arg;
    int fd = accept(f->fd, NULL, NULL);

    /* All of the question: magic, length and "[100]". */
    while (f->question_len < 13) {
        ssize_t n = recv(fd, f->question + f->question_len, 13 - f->question_len, 0);
        if (n <= 0)
            break;
        f->question_len += (size_t)n;
    }
    if (f->answer.len > 0)
        send(fd, f->answer.data, f->answer.len, MSG_NOSIGNAL);
    close(fd);
}

static void fake_listen(struct fake *f)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);

    *f = (struct fake){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_true(f->fd >= 0);
    assert_int_equal(bind(f->fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(listen(f->fd, 4), 0);
    assert_int_equal(getsockname(f->fd, (struct sockaddr *)&sa, &len), 0);
    endpoint_from_address(&f->at, (struct sockaddr *)&sa);
}

static void fake_answer(struct fake *f, const char *json)
{
    uint8_t head[8];

    store_u32(head, 0x2F271);
    store_u32(head + 4, (uint32_t)strlen(json));
    assert_true(bytes_append(&f->answer, head, sizeof(head)) &&
                bytes_append(&f->answer, json, strlen(json)));
}

static void fake_stop(struct fake *f)
{
    thread_join(&f->thread);
    close(f->fd);
    bytes_free(&f->answer);
}

static skep_status ask_until(const struct fake *f, struct tracker_peers_wait limit,
                             struct address *out, size_t *count)
{
    struct address at;
    struct tracker_peers peers = {.addresses = out, .cap = 8};

    assert_true(endpoint_to_address(&f->at, &at));
    skep_status rc = tracker_peers_ask(&at, 1, NETWORK, &limit, &peers, NULL);
    *count = peers.count;
    return rc;
}

static skep_status ask(struct fake *f, struct address *out, size_t *count)
{
    assert_int_equal(thread_start(&f->thread, "fake", serve, f, NULL), SKEP_OK);
    skep_status rc = ask_until(f, (struct tracker_peers_wait){net_deadline(), -1}, out, count);
    fake_stop(f);
    return rc;
}

static uint16_t port_of(const struct address *a)
{
    struct endpoint e;

    endpoint_from_address(&e, (const struct sockaddr *)&a->sa);
    return e.port;
}

static void the_question_is_asked_and_the_answer_understood(void **state)
{
    (void)state;
    struct address out[8];
    size_t count;
    struct fake f;

    fake_listen(&f);
    fake_answer(&f, "[0, {\"swarm\": \"s\", \"network\": 77, \"dht_port\": 4222, "
                    "\"peers\": [\"192.0.2.1:5\", \"127.0.0.1:6\", \"[2001:db8::1]:7\"]}]");
    assert_int_equal(ask(&f, out, &count), SKEP_OK);
    assert_memory_equal(f.question, "\x71\xf2\x02\x00\x05\x00\x00\x00[100]", 13);
    assert_int_equal(count, 4);
    assert_int_equal(port_of(&out[0]), 4222);
    assert_int_equal(port_of(&out[1]), 5);
    assert_int_equal(port_of(&out[3]), 7);
}

static void an_answer_of_many_packets_is_understood(void **state)
{
    (void)state;
    struct address out[8];
    size_t count;
    struct fake f;
    char *json = calloc(1, 40000);

    assert_non_null(json);
    strcpy(json, "[0, {\"network\": 77, \"swarm\": \"");
    memset(json + strlen(json), 's', 30000);
    strcat(json, "\", \"peers\": [\"192.0.2.1:5\"]}]");
    fake_listen(&f);
    fake_answer(&f, json);
    assert_int_equal(ask(&f, out, &count), SKEP_OK);
    assert_int_equal(count, 1);
    assert_int_equal(port_of(&out[0]), 5);
    free(json);
}

static void what_is_no_tracker_or_has_no_dht_is_told_apart(void **state)
{
    (void)state;
    struct address out[8];
    size_t count;
    struct fake f;

    fake_listen(&f); /* closes without a word, as a stock tracker does after an unknown code */
    assert_int_equal(ask(&f, out, &count), SKEP_DATA_LOSS);
    fake_listen(&f);
    assert_true(bytes_append(&f.answer, "HTTP/1.1 400 Bad Request\r\n\r\n", 28));
    assert_int_equal(ask(&f, out, &count), SKEP_DATA_LOSS);
    fake_listen(&f);
    fake_answer(&f, "-1");
    assert_int_equal(ask(&f, out, &count), SKEP_DATA_LOSS);
    fake_listen(&f);
    fake_answer(&f, "[-1, \"no\"]");
    assert_int_equal(ask(&f, out, &count), SKEP_NOT_FOUND);
    fake_listen(&f);
    assert_true(bytes_append(&f.answer, "\x71\xf2\x02\x00\xff\xff\xff\x7f", 8));
    assert_int_equal(ask(&f, out, &count), SKEP_DATA_LOSS); /* 2 GB announced */
    fake_listen(&f);
    close(f.fd);
    f.fd = -1;
    assert_int_equal(ask_until(&f, (struct tracker_peers_wait){net_deadline(), -1}, out, &count),
                     SKEP_UNAVAILABLE);
}

static void a_silent_tracker_is_given_up_at_the_deadline(void **state)
{
    (void)state;
    struct address out[8];
    size_t count;
    struct fake f;

    fake_listen(&f); /* the kernel accepts for it; nobody answers */
    assert_int_equal(
        ask_until(&f, (struct tracker_peers_wait){clock_deadline_us(50), -1}, out, &count),
        SKEP_DEADLINE_EXCEEDED);
    close(f.fd);
}

static void a_silent_tracker_is_given_up_when_told_so(void **state)
{
    (void)state;
    struct address out[8];
    size_t count;
    struct fake f;
    int stop[2];

    assert_int_equal(pipe(stop), 0);
    assert_int_equal(close(stop[1]), 0);
    fake_listen(&f);
    assert_int_equal(ask_until(&f, (struct tracker_peers_wait){CLOCK_NEVER, stop[0]}, out, &count),
                     SKEP_CANCELLED);
    assert_int_equal(count, 0);
    close(f.fd);
    close(stop[0]);
}

static skep_status parse(const char *text, const char *at, struct address *out, size_t cap,
                         size_t *count)
{
    struct endpoint e;
    struct address a;
    struct tracker_peers peers = {.addresses = out, .cap = cap};

    assert_int_equal(endpoint_parse(&e, at, false, NULL), SKEP_OK);
    assert_true(endpoint_to_address(&e, &a));
    skep_status rc = tracker_peers_parse(tracker_text(text), NETWORK, &a, &peers, NULL);
    *count = peers.count;
    return rc;
}

static void peers_of_strangers_are_taken_with_care(void **state)
{
    (void)state;
    struct address out[3];
    size_t count;

    /* Names, junk and ports that do not exist are left out, and loopback is another machine's. */
    assert_int_equal(parse("[0, {\"network\": 77, \"peers\": [\"example.org:5\", 5, null, \"x\", "
                           "\"127.0.0.1:6\", \"0.0.0.0:7\", \"192.0.2.1:0\", \"192.0.2.2:8\"]}]",
                           "192.0.2.9:9190", out, 3, &count),
                     SKEP_OK);
    assert_int_equal(count, 1);
    assert_int_equal(port_of(&out[0]), 8);
    assert_int_equal(parse("[0, {\"network\": 77, \"dht_port\": 70000, \"peers\": []}]",
                           "192.0.2.9:9190", out, 3, &count),
                     SKEP_NOT_FOUND);
    assert_int_equal(
        parse("[0, {\"network\": 78, \"dht_port\": 5}]", "192.0.2.9:9190", out, 3, &count),
        SKEP_FAILED_PRECONDITION);
    assert_int_equal(parse("[0, {\"dht_port\": 5}]", "192.0.2.9:9190", out, 3, &count),
                     SKEP_DATA_LOSS);
    assert_int_equal(parse("[0, {\"network\": 77, \"peers\": [\"192.0.2.1:1\", \"192.0.2.1:2\", "
                           "\"192.0.2.1:3\", \"192.0.2.1:4\"]}]",
                           "192.0.2.9:9190", out, 3, &count),
                     SKEP_OK);
    assert_int_equal(count, 3);
    static const char *const junk[] = {"", "[", "{}", "0", "[]", "[\"0\"]", "null"};
    for (size_t i = 0; i < sizeof(junk) / sizeof(junk[0]); i++)
        assert_int_equal(parse(junk[i], "192.0.2.9:9190", out, 3, &count), SKEP_DATA_LOSS);
    assert_int_equal(parse("[0]", "192.0.2.9:9190", out, 3, &count), SKEP_DATA_LOSS);
}

static void texts_of_initial_peers_are_read_and_written(void **state)
{
    (void)state;
    static const char *const good[] = {"tracker://127.0.0.1:9190", "tracker://[::1]:9190",
                                       "tracker://farm.example.org:9191", "10.0.0.1:4222"};
    static const char *const bad[] = {
        "tracker://",         "tracker://0.0.0.0:9190", "tracker://host",       "tracker://host:*",
        "tracker:/host:9190", "http://host:80",         "tracker://host:99999", "0.0.0.0:4222"};
    char text[INITIAL_PEER_TEXT_BYTES];
    struct initial_peer peer;

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(initial_peer_parse(&peer, good[i], NULL), SKEP_OK);
        assert_int_equal(peer.is_tracker, i < 3);
        assert_string_equal(initial_peer_format(&peer, text), good[i]);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct skep_error err = {0};
        assert_int_equal(initial_peer_parse(&peer, bad[i], &err), SKEP_INVALID_ARGUMENT);
        assert_true(err.message[0] != '\0');
    }
}

/* A swarm that knows nothing but a tracker joins by what that says, asking again until it works. */
static void a_swarm_is_joined_by_a_tracker(void **state)
{
    (void)state;
    struct net_node first, second = {0};
    char answer[256], text[64];
    const char *peer = text;
    struct fake f;

    net_start(&first, 0);
    fake_listen(&f);
    snprintf(answer, sizeof(answer), "[0, {\"network\": %u, \"dht_port\": %u, \"peers\": []}]",
             record_network_id(swarm_record(first.swarm)), (unsigned)net_port(&first));
    fake_answer(&f, answer);
    snprintf(text, sizeof(text), "tracker://127.0.0.1:%u", (unsigned)f.at.port);
    assert_int_equal(thread_start(&f.thread, "fake", serve, &f, NULL), SKEP_OK);
    assert_int_equal(identity_generate(&second.identity, NULL), SKEP_OK);
    const struct swarm_config config = {
        .name = own_swarm(),
        .identity = &second.identity,
        .dht_listen = {.host = "127.0.0.1"},
        .initial_peers = &peer,
        .initial_peer_count = 1,
    };
    assert_int_equal(swarm_join(&config, &second.swarm, NULL), SKEP_OK);
    assert_true(swarm_record(second.swarm)->loopback);
    assert_true(swarm_wait_joined(second.swarm, net_deadline()));
    assert_true(swarm_peer_count(second.swarm) >= 1);
    net_stop(&second);
    net_stop(&first);
    fake_stop(&f);
}

static int set_up(void **state)
{
    (void)state;
    return identity_system_init(NULL) == SKEP_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_question_is_asked_and_the_answer_understood),
        cmocka_unit_test(an_answer_of_many_packets_is_understood),
        cmocka_unit_test(what_is_no_tracker_or_has_no_dht_is_told_apart),
        cmocka_unit_test(a_silent_tracker_is_given_up_at_the_deadline),
        cmocka_unit_test(a_silent_tracker_is_given_up_when_told_so),
        cmocka_unit_test(peers_of_strangers_are_taken_with_care),
        cmocka_unit_test(texts_of_initial_peers_are_read_and_written),
        cmocka_unit_test(a_swarm_is_joined_by_a_tracker),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
