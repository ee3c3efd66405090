/* Reachability without a swarm: what is concluded from answers, and the DHT's ping. */
#include "unit.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mp.h"
#include "base/thread.h"
#include "dht/opendht/udp_ping.h"
#include "node/reach/reach_ask.h"
#include "node/reach/udp_probe.h"
#include "node/reach/diagnosis.h"

/* --- verdicts ------------------------------------------------------------------------------ */

static struct endpoint endpoint_of(const char *text)
{
    struct endpoint e;

    assert_int_equal(endpoint_parse(&e, text, false, NULL), SKEP_OK);
    return e;
}

static struct diagnosis_answer answer_of(const char *dialled, bool is_announced, bool tcp)
{
    struct diagnosis_answer a = {.peer = "0123456789ab",
                                 .dialled = endpoint_of(dialled),
                                 .is_announced = is_announced,
                                 .tcp = tcp,
                                 .dht = DIAGNOSIS_DHT_ANSWERS,
                                 .dht_port = 4222};

    a.is_private = diagnosis_is_private(&a.dialled);
    if (!tcp)
        snprintf(a.why, sizeof(a.why), "timed out");
    return a;
}

static struct diagnosis_evidence facts_of(const char *announced, bool by_hand)
{
    struct diagnosis_evidence f = {.announced = endpoint_of(announced),
                                   .bound = endpoint_of("0.0.0.0:9000"),
                                   .by_hand = by_hand,
                                   .resolves = true};

    f.bound.port = 9000;
    f.is_private = diagnosis_is_private(&f.announced);
    return f;
}

static void expect(const struct diagnosis_evidence *evidence,
                   const struct diagnosis_answer *answers, size_t count,
                   enum skep_reachability state, const char *text)
{
    struct diagnosis v;

    diagnosis_reach(evidence, answers, count, &v);
    if (v.state != state || strstr(v.message, text) == NULL)
        fail_msg("%s: %s; expected %s with: %s", skep_reachability_name(v.state), v.message,
                 skep_reachability_name(state), text);
}

static void each_fault_is_told_apart(void **state)
{
    (void)state;
    struct diagnosis_evidence f = facts_of("192.0.2.7:9000", false);
    struct diagnosis_answer well = answer_of("192.0.2.7:9000", true, true);
    struct diagnosis_answer blocked = answer_of("192.0.2.7:9000", true, false);
    struct diagnosis_answer silent = well;
    struct diagnosis_answer both = blocked;

    silent.dht = DIAGNOSIS_DHT_SILENT;
    both.dht = DIAGNOSIS_DHT_SILENT;
    expect(&f, &well, 1, SKEP_REACH_REACHABLE, "0123456789ab has reached 192.0.2.7:9000");
    expect(&f, &blocked, 1, SKEP_REACH_TCP_BLOCKED, "TCP port 9000 (timed out)");
    expect(&f, &silent, 1, SKEP_REACH_UDP_BLOCKED, "--dht-listen");
    expect(&f, &both, 1, SKEP_REACH_TCP_BLOCKED, "UDP port 4222");
    /* A peer of an older version says nothing of the DHT. */
    well.dht = DIAGNOSIS_DHT_UNTRIED;
    expect(&f, &well, 1, SKEP_REACH_REACHABLE, "192.0.2.7:9000");
    f = facts_of("192.0.2.99:9000", true);
    well = answer_of("192.0.2.7:9000", false, true);
    expect(&f, &well, 1, SKEP_REACH_WRONG_ADDRESS, "give --announce 192.0.2.7:9000");
    blocked = answer_of("[2001:db8::7]:9000", false, false);
    expect(&f, &blocked, 1, SKEP_REACH_WRONG_ADDRESS, "give --announce [2001:db8::7]:9000");
    expect(&f, &blocked, 1, SKEP_REACH_WRONG_ADDRESS, "no connection either (timed out)");
}

static void one_peer_that_gets_through_is_enough(void **state)
{
    (void)state;
    struct diagnosis_evidence f = facts_of("192.0.2.7:9000", false);
    struct diagnosis_answer two[2] = {answer_of("192.0.2.7:9000", true, false),
                                      answer_of("192.0.2.7:9000", true, true)};

    two[1].dht = DIAGNOSIS_DHT_SILENT;
    expect(&f, two, 2, SKEP_REACH_REACHABLE, "192.0.2.7:9000");
    two[0].dht = DIAGNOSIS_DHT_SILENT;
    expect(&f, two, 2, SKEP_REACH_UDP_BLOCKED, "4222");
    /* Who has tried the announced address itself counts for more. */
    two[1] = answer_of("10.0.0.7:9000", false, true);
    expect(&f, two, 2, SKEP_REACH_TCP_BLOCKED, "192.0.2.7");
}

static void ports_that_are_forwarded_are_understood(void **state)
{
    (void)state;
    struct diagnosis_evidence f = facts_of("192.0.2.7:443", true);
    struct diagnosis_answer a = answer_of("192.0.2.7:443", true, false);

    expect(&f, &a, 1, SKEP_REACH_TCP_BLOCKED, "forward it in the router to port 9000 here");
    a.tried_bound = true;
    expect(&f, &a, 1, SKEP_REACH_TCP_BLOCKED, "TCP port 443");
    a.bound_tcp = true;
    expect(&f, &a, 1, SKEP_REACH_WRONG_ADDRESS, "forward TCP port 443 to 9000");
}

static void what_peers_cannot_tell_is_no_fault(void **state)
{
    (void)state;
    struct diagnosis_evidence f = facts_of("192.0.2.7:9000", true);
    struct diagnosis_answer neighbour = answer_of("192.168.1.5:9000", false, true);

    /* Behind one router, whose outer address does not lead back. */
    expect(&f, &neighbour, 1, SKEP_REACH_UNCHECKED, "same private network");
    f.leads_here = true;
    expect(&f, &neighbour, 1, SKEP_REACH_REACHABLE, "192.0.2.7:9000");
    /* Two interfaces of one machine. */
    f = facts_of("192.0.2.7:9000", false);
    f.is_local = true;
    struct diagnosis_answer other = answer_of("198.51.100.7:9000", false, true);
    other.is_local = true;
    expect(&f, &other, 1, SKEP_REACH_REACHABLE, "192.0.2.7:9000");
    other.tcp = false;
    expect(&f, &other, 1, SKEP_REACH_UNCHECKED, "where it listens");
    /* A private address is announced, and the Internet sees the router: no use to anybody there. */
    f = facts_of("192.168.1.5:9000", false);
    f.is_local = f.leads_here = true;
    other = answer_of("198.51.100.7:9000", false, true);
    expect(&f, &other, 1, SKEP_REACH_WRONG_ADDRESS, "192.168.1.5:9000 of --listen");
    f.resolves = false;
    expect(&f, &other, 1, SKEP_REACH_WRONG_ADDRESS, "a name without an address");
}

static void private_addresses_are_known(void **state)
{
    (void)state;
    static const char *const inside[] = {"10.1.2.3:1",    "172.31.0.1:1", "192.168.0.1:1",
                                         "169.254.1.1:1", "100.64.0.1:1", "[fd00::1]:1",
                                         "[fe80::1]:1",   "127.0.0.1:1"};
    static const char *const outside[] = {"11.0.0.1:1", "172.32.0.1:1",    "192.169.0.1:1",
                                          "8.8.8.8:1",  "[2001:db8::1]:1", "node.example:1"};

    for (size_t i = 0; i < sizeof(inside) / sizeof(inside[0]); i++) {
        struct endpoint e = endpoint_of(inside[i]);
        assert_true(diagnosis_is_private(&e));
    }
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        struct endpoint e = endpoint_of(outside[i]);
        assert_false(diagnosis_is_private(&e));
    }
}

/* --- the answer of a peer ------------------------------------------------------------------ */

static void answers_of_strangers_are_checked(void **state)
{
    (void)state;
    struct reach_answer a = {0};
    msgpack_sbuffer buffer;
    msgpack_packer pk;

    static const char *const endpoints[] = {"192.0.2.7:9", "node.example:9", "192.0.2.7:0", ""};
    for (size_t i = 0; i < sizeof(endpoints) / sizeof(endpoints[0]); i++) {
        msgpack_sbuffer_init(&buffer);
        msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
        msgpack_pack_map(&pk, 4);
        mp_pack_str(&pk, "endpoint");
        mp_pack_str(&pk, endpoints[i]);
        mp_pack_str(&pk, "reachable");
        msgpack_pack_false(&pk);
        mp_pack_str(&pk, "dht_reachable");
        msgpack_pack_true(&pk);
        mp_pack_str(&pk, "message");
        mp_pack_str(&pk, "\x1b[2Jgone");
        skep_status rc = reach_read_answer((const uint8_t *)buffer.data, buffer.size, &a, NULL);
        assert_int_equal(rc == SKEP_OK, i == 0);
        msgpack_sbuffer_destroy(&buffer);
    }
    assert_true(a.has_dht && a.dht_reachable && !a.reachable);
    assert_string_equal(a.message, "?[2Jgone");
}

/* --- the DHT's ping ------------------------------------------------------------------------ */

/* A peer that answers every ping but the first few, on a socket of its own. */
struct responder {
    int fd;
    unsigned deaf; /* to so many */
    unsigned heard;
    uint32_t network_id;
    struct thread thread;
};

static size_t pong(uint64_t id, uint8_t *out, size_t cap)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    static const uint8_t peer[20] = {1};

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, 3);
    mp_pack_str(&pk, "r");
    msgpack_pack_map(&pk, 1);
    mp_pack_str(&pk, "id");
    mp_pack_bin(&pk, peer, sizeof(peer));
    mp_pack_str(&pk, "t");
    msgpack_pack_uint64(&pk, id);
    mp_pack_str(&pk, "y");
    mp_pack_str(&pk, "r");
    assert_true(buffer.size <= cap);
    memcpy(out, buffer.data, buffer.size);
    size_t len = buffer.size;
    msgpack_sbuffer_destroy(&buffer);
    return len;
}

static void respond(void *arg)
{
    struct responder *r = arg;
    uint8_t data[1500];
    struct sockaddr_storage from;
    socklen_t from_len = sizeof(from);
    ssize_t len;

    /* An empty datagram ends it. */
    while ((len = recvfrom(r->fd, data, sizeof(data), 0, (struct sockaddr *)&from, &from_len)) >
           0) {
        struct mp mp;
        uint64_t id = 0, network = 0;
        bool client = false;

        if (mp_parse(&mp, data, (size_t)len, "ping", NULL) != SKEP_OK)
            continue;
        mp_u64(mp_get(mp.root, "t"), &id);
        mp_u64(mp_get(mp.root, "n"), &network);
        mp_bool(mp_get(mp.root, "s"), &client);
        mp_free(&mp);
        if (network != r->network_id || !client || r->heard++ < r->deaf)
            continue;
        /* First what answers another ping, which must not count. */
        len = (ssize_t)pong(id + 1, data, sizeof(data));
        sendto(r->fd, data, (size_t)len, 0, (struct sockaddr *)&from, from_len);
        sendto(r->fd, "junk", 4, 0, (struct sockaddr *)&from, from_len);
        len = (ssize_t)pong(id, data, sizeof(data));
        sendto(r->fd, data, (size_t)len, 0, (struct sockaddr *)&from, from_len);
    }
}

struct outcome {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    int ended;
    bool answered;
};

static void on_probed(void *arg, bool answered)
{
    struct outcome *o = arg;

    pthread_mutex_lock(&o->lock);
    o->ended++;
    o->answered = answered;
    pthread_cond_signal(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

static bool probe(struct udp_probes *probes, const struct address *address, uint32_t network_id)
{
    struct outcome o = {.lock = PTHREAD_MUTEX_INITIALIZER};
    uint64_t deadline = clock_deadline_us(30000);

    cond_init(&o.changed);
    assert_int_equal(udp_probe_start(probes, address, network_id, on_probed, &o, NULL), SKEP_OK);
    pthread_mutex_lock(&o.lock);
    while (o.ended == 0)
        assert_true(cond_wait_until(&o.changed, &o.lock, deadline));
    pthread_mutex_unlock(&o.lock);
    assert_int_equal(o.ended, 1);
    pthread_cond_destroy(&o.changed);
    return o.answered;
}

static void a_dht_port_answers_strangers_of_its_network_only(void **state)
{
    (void)state;
    struct responder r = {.network_id = 77, .deaf = 1};
    struct udp_probes probes;
    struct address address;
    struct endpoint any = endpoint_of("127.0.0.1:1");

    assert_true(endpoint_to_address(&any, &address));
    address_set_port(&address, 0);
    r.fd = socket(AF_INET, SOCK_DGRAM, 0);
    assert_true(r.fd >= 0);
    assert_int_equal(bind(r.fd, (struct sockaddr *)&address.sa, address.len), 0);
    address.len = sizeof(address.sa);
    assert_int_equal(getsockname(r.fd, (struct sockaddr *)&address.sa, &address.len), 0);
    assert_int_equal(thread_start(&r.thread, "responder", respond, &r, NULL), SKEP_OK);

    udp_probes_init(&probes);
    assert_true(probe(&probes, &address, 77)); /* the first ping was lost */
    assert_int_equal(r.heard, 2);
    assert_false(probe(&probes, &address, 78));
    int end = socket(AF_INET, SOCK_DGRAM, 0);
    assert_int_equal(sendto(end, "", 0, 0, (struct sockaddr *)&address.sa, address.len), 0);
    close(end);
    thread_join(&r.thread);
    close(r.fd);
    assert_false(probe(&probes, &address, 77)); /* nobody is there */
    udp_probes_fini(&probes);
}

static void probes_under_way_end_with_their_owner(void **state)
{
    (void)state;
    struct outcome o = {.lock = PTHREAD_MUTEX_INITIALIZER, .answered = true};
    struct udp_probes probes;
    struct endpoint nobody = endpoint_of("192.0.2.1:9");
    struct address address;

    cond_init(&o.changed);
    assert_true(endpoint_to_address(&nobody, &address));
    udp_probes_init(&probes);
    for (int i = 0; i < 5; i++)
        assert_int_equal(udp_probe_start(&probes, &address, 77, on_probed, &o, NULL), SKEP_OK);
    udp_probes_fini(&probes);
    assert_int_equal(o.ended, 5);
    assert_false(o.answered);
    pthread_cond_destroy(&o.changed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_fault_is_told_apart),
        cmocka_unit_test(one_peer_that_gets_through_is_enough),
        cmocka_unit_test(ports_that_are_forwarded_are_understood),
        cmocka_unit_test(what_peers_cannot_tell_is_no_fault),
        cmocka_unit_test(private_addresses_are_known),
        cmocka_unit_test(answers_of_strangers_are_checked),
        cmocka_unit_test(a_dht_port_answers_strangers_of_its_network_only),
        cmocka_unit_test(probes_under_way_end_with_their_owner),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
