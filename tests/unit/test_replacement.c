/* A record that replaces another one, in a swarm where a peer has just died. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dht_net.h"

enum { TRIES = 5, DATAGRAM_BYTES = 2048 };

/* The place of a peer that died: hears what is sent to it and says nothing. */
struct dead {
    int fd;
    uint16_t asker; /* the port of whoever asks it */
    uint8_t key[RECORD_KEY_BYTES];
    uint8_t first[DATAGRAM_BYTES]; /* the first question about the key */
    size_t first_len;
    bool asked_again; /* the same question came once more: OpenDHT has given up the first one */
};

static void dead_take_place(struct dead *dead, uint16_t port)
{
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};

    memset(dead, 0, sizeof(*dead));
    dead->fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(dead->fd >= 0);
    assert_int_equal(bind(dead->fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
}

static void dead_listen(struct dead *dead)
{
    uint8_t data[DATAGRAM_BYTES];
    struct sockaddr_in from;
    socklen_t from_len = sizeof(from);
    ssize_t n;

    while ((n = recvfrom(dead->fd, data, sizeof(data), 0, (struct sockaddr *)&from, &from_len)) >=
           0) {
        size_t len = (size_t)n;
        from_len = sizeof(from);
        if (ntohs(from.sin_port) != dead->asker ||
            memmem(data, len, dead->key, sizeof(dead->key)) == NULL)
            continue;
        if (dead->first_len == 0) {
            memcpy(dead->first, data, len);
            dead->first_len = len;
        } else if (len == dead->first_len && memcmp(data, dead->first, len) == 0) {
            dead->asked_again = true;
        }
    }
}

static unsigned good_nodes(const struct net_node *node)
{
    struct runner_status status;

    runner_status(swarm_runner(node->swarm), &status);
    return status.good_nodes;
}

/* The first value that a get brings: what is stored at the node that asks, if anything is. */
struct stored {
    const struct record_swarm *swarm;
    const uint8_t *key;
    uint16_t port; /* 0: none so far */
    struct net_event done;
};

static bool on_stored(void *arg, uint64_t value_id, const uint8_t *data, size_t len)
{
    struct stored *stored = arg;
    struct record record = {0};

    (void)value_id;
    if (record_decode(&record, data, len, stored->swarm, stored->key, clock_wall_ms() / 1000,
                      NULL) == SKEP_OK)
        stored->port = record.expert.endpoints[0].port;
    record_free(&record);
    return false;
}

static void on_stored_done(void *arg, bool ok)
{
    struct stored *stored = arg;

    net_event_set(&stored->done, ok);
}

static uint16_t stored_port(const struct net_node *node, const uint8_t *key)
{
    struct stored stored = {.swarm = swarm_record(node->swarm), .key = key};

    net_event_init(&stored.done);
    runner_get(swarm_runner(node->swarm), key, on_stored, on_stored_done, &stored);
    assert_true(net_event_wait(&stored.done, 1));
    net_event_fini(&stored.done);
    return stored.port;
}

/*
 * Whether the storing peer gets the replacement before OpenDHT has given up the first question to
 * the dead one. A machine that stands still for a second says nothing about that: false as well.
 */
static bool arrives_without_the_dead(void)
{
    struct net_node storing, first, third, second;
    struct net_options options = {0};
    struct dead dead;
    struct net_event event;
    struct declaration declaration = {0};
    struct identity identity;

    net_start(&storing, 0);
    record_key_expert(swarm_record(storing.swarm), "ffn.3", declaration.key);
    net_start(&first, net_port(&storing));
    assert_true(swarm_wait_joined(first.swarm, net_deadline()));
    assert_int_equal(net_declare_expert(&first, "ffn.3", 7001, 60, false), SKEP_OK);
    assert_int_equal(stored_port(&storing, declaration.key), 7001);
    identity = first.identity;
    net_stop(&first);

    /* It comes back, and knows a peer that dies before it publishes. */
    net_start(&third, net_port(&storing));
    assert_true(swarm_wait_joined(third.swarm, net_deadline()));
    const uint16_t ports[] = {net_port(&storing), net_port(&third)};
    options.identity = &identity;
    net_start_with(&second, ports, 2, &options);
    assert_true(NET_UNTIL(good_nodes(&second) == 2));
    net_stop(&third);
    dead_take_place(&dead, ports[1]);
    dead.asker = net_port(&second);

    struct record record = net_expert(&second, "ffn.3", 7002, 60);
    declaration.record = &record;
    memcpy(dead.key, declaration.key, sizeof(dead.key));
    net_event_init(&event);
    assert_int_equal(directory_declare(net_directory(&second), &declaration, 1, net_deadline(),
                                       net_on_declared, &event, NULL),
                     SKEP_OK);
    /* The storing peer asks the dead one as well, each time: its socket must not run over. */
    assert_true(NET_UNTIL((dead_listen(&dead), stored_port(&storing, declaration.key) == 7002)));
    dead_listen(&dead);
    bool in_time = dead.first_len > 0 && !dead.asked_again;

    assert_true(net_event_wait(&event, 1));
    net_event_fini(&event);
    net_stop(&second);
    net_stop(&storing);
    close(dead.fd);
    return in_time;
}

static void a_replacement_reaches_the_living_while_a_dead_peer_is_awaited(void **state)
{
    (void)state;
    bool in_time = false;

    for (int i = 0; i < TRIES && !in_time; i++)
        in_time = arrives_without_the_dead();
    assert_true(in_time);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replacement_reaches_the_living_while_a_dead_peer_is_awaited),
    };

    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("replacement", tests, NULL, NULL);
}
