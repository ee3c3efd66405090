/* The publisher's thread: its rounds in a real swarm, what failed, what is urgent, the withdrawal.
 */
#include "dht_net.h"

#include "dht/publish/publisher.h"

enum { LOG_SIZE = 64, PERIOD_S = 1800 };

/* Publishes a node's record under a key of its own, and writes down what comes. */
struct user {
    struct net_node *node;
    struct publisher *publisher;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    struct statement statement;
    bool urgent;
    bool due;    /* what is_due() says, once */
    bool refuse; /* fill() hands over a record that cannot be encoded */
    size_t begun, ended;
    enum publisher_scope scopes[LOG_SIZE];
    size_t said[LOG_SIZE], failed[LOG_SIZE];
};

static void fill(void *arg, struct publisher_round *round)
{
    struct user *u = arg;
    const struct record_swarm *swarm = swarm_record(u->node->swarm);
    uint8_t key[RECORD_KEY_BYTES];

    pthread_mutex_lock(&u->lock);
    assert_true(u->begun < LOG_SIZE);
    u->scopes[u->begun++] = round->scope;
    bool alive = round->scope != PUBLISH_OFFLINE, urgent = u->urgent;
    u->urgent = false;
    if (statement_is_due(&u->statement, round, alive, urgent)) {
        assert_true(publisher_round_reserve(round, 1));
        struct record *record = publisher_round_next(round);
        record->kind = RECORD_NODE;
        record->node.endpoint_count = u->refuse ? 0 : 1;
        record->node.endpoints[0] = (struct endpoint){.host = "127.0.0.1", .port = 7001};
        snprintf(record->node.state, sizeof(record->node.state), alive ? "online" : "offline");
        record_key_node(swarm, u->node->identity.peer_id, key);
        publisher_round_say(round, &u->statement, alive, key);
    }
    pthread_mutex_unlock(&u->lock);
}

static void on_ended(void *arg, struct publisher_round *round)
{
    struct user *u = arg;

    pthread_mutex_lock(&u->lock);
    publisher_round_note(round);
    u->said[u->ended] = round->said;
    u->failed[u->ended++] = round->failed;
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
}

static bool is_due(void *arg)
{
    struct user *u = arg;

    pthread_mutex_lock(&u->lock);
    bool due = u->due;
    u->due = false;
    pthread_mutex_unlock(&u->lock);
    return due;
}

static void start(struct user *u, struct net_node *node, bool refuse)
{
    *u = (struct user){.node = node, .refuse = refuse, .statement = {.failed = true}};
    pthread_mutex_init(&u->lock, NULL);
    cond_init(&u->changed);
    const struct publisher_config config = {
        .swarm = node->swarm,
        .thread_name = "publisher",
        .log_name = "test",
        .update_period_s = PERIOD_S,
        .round_ms = 10000,
        .max_rounds = 1,
        .fill = fill,
        .ended = on_ended,
        .is_due = is_due,
        .arg = u,
    };
    assert_int_equal(publisher_new(&config, &u->publisher, NULL), SKEP_OK);
}

static void wait_ended(struct user *u, size_t rounds)
{
    pthread_mutex_lock(&u->lock);
    while (u->ended < rounds)
        assert_true(cond_wait_until(&u->changed, &u->lock, net_deadline()));
    pthread_mutex_unlock(&u->lock);
}

static void stop(struct user *u)
{
    publisher_stop(u->publisher, net_deadline());
    publisher_free(u->publisher);
    pthread_cond_destroy(&u->changed);
    pthread_mutex_destroy(&u->lock);
}

static void set(struct user *u, bool *flag, bool value)
{
    pthread_mutex_lock(&u->lock);
    *flag = value;
    pthread_mutex_unlock(&u->lock);
}

static size_t ended_now(struct user *u)
{
    pthread_mutex_lock(&u->lock);
    size_t ended = u->ended;
    pthread_mutex_unlock(&u->lock);
    return ended;
}

/* Those that have ended and had a record. */
static size_t rounds_of(struct user *u, enum publisher_scope scope)
{
    size_t count = 0;

    pthread_mutex_lock(&u->lock);
    for (size_t i = 0; i < u->ended; i++)
        count += u->scopes[i] == scope && u->said[i] == 1;
    pthread_mutex_unlock(&u->lock);
    return count;
}

static void each_cause_brings_its_round_and_the_end_a_withdrawal(void **state)
{
    (void)state;
    struct net_node nodes[2];
    struct user u;

    net_start(&nodes[0], 0);
    net_start(&nodes[1], net_port(&nodes[0]));
    assert_true(swarm_wait_joined(nodes[1].swarm, net_deadline()));
    start(&u, &nodes[1], false);
    wait_ended(&u, 1); /* at start */
    /* A full round that comes in between takes the change with it. */
    while (rounds_of(&u, PUBLISH_CHANGED) == 0) {
        set(&u, &u.urgent, true);
        publisher_changed(u.publisher);
        wait_ended(&u, ended_now(&u) + 1);
    }
    size_t full = rounds_of(&u, PUBLISH_ALL);
    set(&u, &u.due, true);
    while (rounds_of(&u, PUBLISH_ALL) == full) {
        publisher_wake(u.publisher);
        wait_ended(&u, ended_now(&u) + 1);
    }
    full = rounds_of(&u, PUBLISH_ALL);
    while (rounds_of(&u, PUBLISH_ALL) == full) {
        publisher_refresh(u.publisher);
        wait_ended(&u, ended_now(&u) + 1);
    }
    stop(&u);
    assert_int_equal(u.scopes[0], PUBLISH_ALL);
    assert_int_equal(u.scopes[u.ended - 1], PUBLISH_OFFLINE);
    assert_int_equal(u.begun, u.ended);
    for (size_t i = 0; i < u.ended; i++)
        assert_int_equal(u.failed[i], 0);
    assert_int_equal(u.said[u.ended - 1], 1);
    net_stop(&nodes[1]);
    net_stop(&nodes[0]);
}

static void what_fails_is_tried_again_until_it_succeeds(void **state)
{
    (void)state;
    struct net_node nodes[2];
    struct user u;

    net_start(&nodes[0], 0);
    net_start(&nodes[1], net_port(&nodes[0]));
    assert_true(swarm_wait_joined(nodes[1].swarm, net_deadline()));
    start(&u, &nodes[1], true);
    wait_ended(&u, 2);
    set(&u, &u.refuse, false);
    bool succeeded = false;
    for (size_t n = 3; !succeeded; n++) {
        wait_ended(&u, n);
        succeeded = u.failed[n - 1] == 0;
    }
    stop(&u);
    assert_int_equal(u.failed[0], 1);
    assert_int_equal(u.failed[1], 1);
    assert_int_equal(u.scopes[u.ended - 1], PUBLISH_OFFLINE);
    net_stop(&nodes[1]);
    net_stop(&nodes[0]);
}

static void without_peers_a_round_ends_and_the_first_peer_brings_another(void **state)
{
    (void)state;
    struct net_node nodes[2];
    struct user u;

    net_start(&nodes[0], 0);
    start(&u, &nodes[0], false);
    wait_ended(&u, 1);
    assert_int_equal(u.failed[0], 1);
    net_start(&nodes[1], net_port(&nodes[0]));
    wait_ended(&u, 2);
    assert_int_equal(u.scopes[1], PUBLISH_ALL);
    stop(&u);
    net_stop(&nodes[1]);
    net_stop(&nodes[0]);
}

static int set_up(void **state)
{
    (void)state;
    return identity_system_init(NULL) == SKEP_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_cause_brings_its_round_and_the_end_a_withdrawal),
        cmocka_unit_test(what_fails_is_tried_again_until_it_succeeds),
        cmocka_unit_test(without_peers_a_round_ends_and_the_first_peer_brings_another),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
