/* Watching a prefix: the tree of what is known, and watches in real swarms on loopback. */
#include <stdatomic.h>
#include <stdlib.h>

#include "dht_net.h"
#include "dht_rogue.h"
#include "dht/directory/beam.h"
#include "dht/directory/watch.h"
#include "dht/directory/watch_tree.h"

enum { NOW = 1800000000 };

/* ---- the tree, without a network ---- */

static struct watch_tree tree;

static int make_tree(void **state)
{
    (void)state;
    assert_int_equal(watch_tree_init(&tree, "ffn.", NULL), SKEP_OK);
    return 0;
}

static int free_tree(void **state)
{
    (void)state;
    watch_tree_fini(&tree);
    return 0;
}

struct said {
    uint8_t peer;
    uint64_t seq; /* in seconds after NOW */
    uint32_t depth;
    unsigned part, parts;
    size_t count;
    int64_t coords[8];
    uint16_t port;
    int64_t expires_in; /* 0: 60 s */
};

#define SAY(p, s, d, at, of, n, ...)                                                               \
    {                                                                                              \
        .peer = p, .seq = s, .depth = d, .part = at, .parts = of, .count = n,                      \
        .coords = __VA_ARGS__                                                                      \
    }

static struct collection *collection_of(const char *prefix, const struct said *said, size_t count)
{
    struct collection *c = collection_new();

    assert_non_null(c);
    for (size_t i = 0; i < count; i++) {
        struct record r = {
            .kind = RECORD_PREFIX,
            .seq = (NOW + said[i].seq) * 1000,
            .expires_at = NOW + (said[i].expires_in != 0 ? said[i].expires_in : 60),
            .prefix = {.endpoint_count = 1,
                       .endpoints = {{.host = "127.0.0.1",
                                      .port = said[i].port != 0 ? said[i].port : 7000}},
                       .depth = said[i].depth,
                       .part = said[i].part,
                       .parts = said[i].parts != 0 ? said[i].parts : 1,
                       .coord_count = said[i].count},
        };
        memset(r.peer_id, said[i].peer, sizeof(r.peer_id));
        snprintf(r.prefix.prefix, sizeof(r.prefix.prefix), "%s", prefix);
        r.prefix.coords = mem_calloc(said[i].count + 1, sizeof(int64_t));
        memcpy(r.prefix.coords, said[i].coords, said[i].count * sizeof(int64_t));
        collection_put(c, &r, said[i].seq * 1000 + said[i].peer * 10 + said[i].part);
    }
    return c;
}

/* What a reading of a prefix brings. */
static void reads(const char *prefix, const struct said *said, size_t count, int64_t now_s)
{
    struct branch *b = watch_tree_find(&tree, prefix, strlen(prefix));
    struct collection *c = collection_of(prefix, said, count);

    assert_non_null(b);
    watch_tree_take(&tree, b, 0, c, 1, now_s);
    watch_tree_rebuild(&tree, b, 1, now_s);
    collection_unref(c);
}

/* The changes since, as text: "+ffn.1 ~ffn.2 -ffn.3". */
static const char *changes(void)
{
    static char text[512];
    size_t len = 0;
    struct watch_change *all = watch_tree_take_changes(&tree);

    text[0] = '\0';
    for (struct watch_change *c = all; c != NULL; c = c->next)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%c%s", len > 0 ? " " : "",
                                "+~-"[c->kind], c -> uid);
    watch_changes_free(all);
    return text;
}

static void experts_appear_change_and_go(void **state)
{
    (void)state;
    reads("ffn.", (struct said[]){SAY(1, 1, 2, 0, 1, 2, {3, 5})}, 1, NOW);
    assert_string_equal(changes(), "");
    assert_int_equal(tree.unread, 2);
    reads("ffn.3.", (struct said[]){SAY(1, 1, 1, 0, 1, 2, {0, 9})}, 1, NOW);
    assert_string_equal(changes(), "+ffn.3.0 +ffn.3.9");
    reads("ffn.3.", (struct said[]){SAY(1, 2, 1, 0, 1, 2, {0, 8}, .port = 7001)}, 1, NOW);
    assert_string_equal(changes(), "~ffn.3.0 +ffn.3.8 -ffn.3.9");
    reads("ffn.3.", (struct said[]){SAY(2, 2, 1, 0, 1, 1, {8})}, 1, NOW);
    assert_string_equal(changes(), "~ffn.3.8");
    assert_int_equal(tree.experts, 2);
    assert_int_equal(tree.table.count, 3);
}

static void a_reading_that_misses_a_record_takes_nothing_away(void **state)
{
    (void)state;
    reads("ffn.", (struct said[]){SAY(1, 1, 1, 0, 1, 1, {1}), SAY(2, 1, 1, 0, 1, 1, {2})}, 2, NOW);
    assert_string_equal(changes(), "+ffn.1 +ffn.2");
    reads("ffn.", (struct said[]){SAY(1, 2, 1, 0, 1, 1, {1})}, 1, NOW + 1);
    assert_string_equal(changes(), "");
    /* Its end does. */
    reads("ffn.", (struct said[]){SAY(1, 30, 1, 0, 1, 1, {1}, .expires_in = 90)}, 1, NOW + 60);
    assert_string_equal(changes(), "-ffn.2");
}

static void an_older_record_changes_nothing(void **state)
{
    (void)state;
    reads("ffn.", (struct said[]){SAY(1, 5, 1, 0, 1, 1, {1})}, 1, NOW);
    reads("ffn.", (struct said[]){SAY(1, 4, 1, 0, 1, 2, {1, 2})}, 1, NOW);
    assert_string_equal(changes(), "+ffn.1");
}

static void where_a_peer_joins_there_is_news(void **state)
{
    (void)state;
    reads("ffn.", (struct said[]){SAY(1, 1, 2, 0, 1, 2, {3, 4})}, 1, NOW);
    reads("ffn.3.", (struct said[]){SAY(1, 1, 1, 0, 1, 1, {7})}, 1, NOW);
    reads("ffn.4.", (struct said[]){SAY(1, 1, 1, 0, 1, 1, {7})}, 1, NOW);
    struct branch *three = watch_tree_find(&tree, "ffn.3.", 6);
    struct branch *four = watch_tree_find(&tree, "ffn.4.", 6);
    three->due_us = four->due_us = 1000;
    reads("ffn.", (struct said[]){SAY(2, 1, 2, 0, 1, 1, {3})}, 1, NOW);
    assert_true(three->due_us == 1);
    assert_true(four->due_us == 1000);
}

/* A node that withdrew at the top is gone below, whatever was read there. */
static void newer_words_at_the_top_outdo_older_ones_below(void **state)
{
    (void)state;
    reads("ffn.", (struct said[]){SAY(1, 1, 2, 0, 1, 2, {3, 4}), SAY(2, 1, 2, 0, 1, 1, {3})}, 2,
          NOW);
    reads("ffn.3.", (struct said[]){SAY(1, 2, 1, 0, 1, 1, {7}), SAY(2, 2, 1, 0, 1, 1, {7})}, 2,
          NOW);
    reads("ffn.4.", (struct said[]){SAY(1, 2, 1, 0, 1, 1, {7})}, 1, NOW);
    assert_string_equal(changes(), "+ffn.3.7 +ffn.4.7");
    reads("ffn.", (struct said[]){SAY(1, 9, 0, 0, 1, 0, {0})}, 1, NOW);
    /* The branch only it had goes with its experts; the other's experts lose a node. */
    assert_string_equal(changes(), "-ffn.4.7 ~ffn.3.7");
    assert_int_equal(tree.table.count, 2);
    /* And it stays so when an old record is read again; a newer one counts. */
    reads("ffn.3.", (struct said[]){SAY(1, 3, 1, 0, 1, 1, {7})}, 1, NOW);
    assert_string_equal(changes(), "");
    reads("ffn.3.", (struct said[]){SAY(1, 10, 1, 0, 1, 1, {8})}, 1, NOW);
    assert_string_equal(changes(), "+ffn.3.8");
}

static void a_bell_makes_its_peers_branches_due(void **state)
{
    (void)state;
    reads("ffn.", (struct said[]){SAY(1, 1, 2, 0, 1, 1, {3}), SAY(2, 1, 2, 0, 1, 1, {4})}, 2, NOW);
    reads("ffn.3.", (struct said[]){SAY(1, 1, 1, 0, 1, 1, {7})}, 1, NOW);
    reads("ffn.4.", (struct said[]){SAY(2, 1, 1, 0, 1, 1, {7})}, 1, NOW);
    (void)changes();
    struct branch *three = watch_tree_find(&tree, "ffn.3.", 6);
    struct branch *four = watch_tree_find(&tree, "ffn.4.", 6);
    three->due_us = four->due_us = 1000;
    const struct said rung[] = {SAY(1, 1, 2, 0, 1, 1, {3}), SAY(1, 2, 0, 77, 78, 0, {0})};
    reads("ffn.", rung, 2, NOW);
    assert_true(three->due_us == 1);
    assert_true(four->due_us == 1000);
    assert_string_equal(changes(), ""); /* it lists nothing and takes nothing away */
    three->due_us = 1000;
    reads("ffn.", rung, 2, NOW); /* the same once more is no news */
    assert_true(three->due_us == 1000);
}

static void uids_of_different_length_live_under_one_name(void **state)
{
    (void)state;
    reads("ffn.", (struct said[]){SAY(1, 1, 1, 0, 2, 2, {3, 4}), SAY(1, 2, 2, 1, 2, 1, {3})}, 2,
          NOW);
    assert_string_equal(changes(), "+ffn.3 +ffn.4");
    assert_int_equal(tree.table.count, 2); /* the root and ffn.3. */
    reads("ffn.3.", (struct said[]){SAY(1, 3, 1, 0, 1, 1, {5})}, 1, NOW);
    assert_string_equal(changes(), "+ffn.3.5");
}

static void a_tree_survives_any_failed_allocation(void **state)
{
    (void)state;
    bool failed = true;

    for (long nth = 1; failed && nth < 1000; nth++) {
        struct collection *c =
            collection_of("ffn.", (struct said[]){SAY(1, 1, 2, 0, 1, 3, {3, 4, 5})}, 1);
        watch_tree_fini(&tree);
        assert_int_equal(watch_tree_init(&tree, "ffn.", NULL), SKEP_OK);
        mem_fail_at(nth);
        watch_tree_take(&tree, tree.root, 0, c, 1, NOW);
        watch_tree_rebuild(&tree, tree.root, 1, NOW);
        failed = !mem_fail_pending();
        mem_fail_at(0);
        watch_tree_take(&tree, tree.root, 0, c, 1, NOW);
        watch_tree_rebuild(&tree, tree.root, 1, NOW);
        assert_int_equal(tree.table.count, 4); /* the next reading makes up for it */
        collection_unref(c);
    }
    assert_false(failed);
}

/* ---- watches ---- */

enum { MAX_EVENTS = 4096 };

/* What a watch told. */
struct log {
    pthread_mutex_t lock; /* guards all below */
    size_t appeared, changed, gone;
    char last[UID_BYTES];
    uint16_t last_port;
};

static struct log told;

static void on_event(void *arg, const struct watch_event *event)
{
    struct log *log = arg;

    pthread_mutex_lock(&log->lock);
    log->appeared += event->kind == WATCH_APPEARED;
    log->changed += event->kind == WATCH_CHANGED;
    log->gone += event->kind == WATCH_GONE;
    snprintf(log->last, sizeof(log->last), "%s", event->uid);
    log->last_port = event->provider_count > 0 ? event->providers[0].endpoints[0].port : 0;
    pthread_mutex_unlock(&log->lock);
}

static size_t count_of(const size_t *counter)
{
    pthread_mutex_lock(&told.lock);
    size_t n = *counter;
    pthread_mutex_unlock(&told.lock);
    return n;
}

static uint16_t last_port(void)
{
    pthread_mutex_lock(&told.lock);
    uint16_t port = told.last_port;
    pthread_mutex_unlock(&told.lock);
    return port;
}

static struct watch *start_watch(const struct net_node *node, const char *prefix)
{
    const struct watch_config config = {.prefix = prefix, .changed = on_event, .arg = &told};
    struct watch *w;
    struct skep_error err;

    memset(&told, 0, sizeof(told));
    pthread_mutex_init(&told.lock, NULL);
    if (watch_new(net_directory(node), &config, &w, &err) != SKEP_OK)
        fail_msg("watch_new: %s", err.message);
    return w;
}

static struct handler *publish(const struct net_node *node, const char *const *uids, size_t count,
                               uint16_t port)
{
    struct handler_expert experts[64];
    struct handler_config config = {
        .swarm = node->swarm,
        .endpoint_count = 1,
        .endpoints = {{.host = "127.0.0.1", .port = port}},
    };
    struct handler *h;

    assert_true(count <= 64);
    for (size_t i = 0; i < count; i++)
        experts[i] = (struct handler_expert){.uid = uids[i], .cls = "nop"};
    assert_int_equal(handler_new(&config, experts, count, &h, NULL), SKEP_OK);
    return h;
}

static const char *const grid[] = {"ffn.0.0", "ffn.0.1", "ffn.1.0", "ffn.1.1"};
static const char *const more[] = {"ffn.1.1", "ffn.2.0"};

static size_t experts_of(struct watch *w)
{
    struct watch_stats stats;

    watch_stats(w, &stats);
    return stats.experts;
}

/* Records live for a minute here, so what is told within the patience of a test was told by a bell.
 */
static void nodes_come_change_and_leave_while_watched(void **state)
{
    (void)state;
    struct net_node nodes[4];

    net_start_many(nodes, 4);
    struct watch *w = start_watch(&nodes[0], "ffn.");
    assert_int_equal(watch_wait_ready(w, net_deadline()), SKEP_OK);
    assert_int_equal(experts_of(w), 0);

    struct handler *first = publish(&nodes[1], grid, 4, 7001);
    assert_true(NET_UNTIL(experts_of(w) == 4));
    assert_true(NET_UNTIL(count_of(&told.appeared) == 4));
    struct handler *second = publish(&nodes[2], more, 2, 7002);
    assert_true(NET_UNTIL(experts_of(w) == 5 && count_of(&told.changed) >= 1 &&
                          count_of(&told.appeared) >= 5));
    assert_int_equal(count_of(&told.appeared), 5);

    size_t before = count_of(&told.changed);
    const struct endpoint moved = {.host = "127.0.0.1", .port = 7003};
    handler_set_endpoints(second, &moved, 1);
    assert_true(NET_UNTIL(count_of(&told.changed) > before && last_port() != 0));
    assert_int_equal(count_of(&told.gone), 0);

    handler_free(first, clock_deadline_us(2000)); /* a clean shutdown */
    assert_true(NET_UNTIL(experts_of(w) == 2));
    assert_true(NET_UNTIL(count_of(&told.gone) == 3));
    handler_free(second, clock_deadline_us(2000));
    assert_true(NET_UNTIL(experts_of(w) == 0));
    watch_free(w);
    net_stop_many(nodes, 4);
}

struct listing {
    size_t count;
    bool ordered;
    char last[UID_BYTES];
};

static void on_each(void *arg, const char *uid, const struct provider *providers, size_t count)
{
    struct listing *l = arg;

    assert_true(count >= 1 && providers[0].endpoint_count == 1);
    l->count++;
    snprintf(l->last, sizeof(l->last), "%s", uid);
}

static void lookups_under_a_watch_touch_no_network(void **state)
{
    (void)state;
    struct net_node nodes[3];
    const char *const uids[] = {"ffn.0.1", "ffn.1.1", "ffn.5.5", "ffn.0.77"};
    const char *const prefixes[] = {"ffn.0.", "ffn.7.", "ffn."};
    struct directory_stats before, after;
    struct successors answers[3];

    net_start_many(nodes, 3);
    struct handler *h = publish(&nodes[1], grid, 4, 7001);
    struct watch *w = start_watch(&nodes[0], "ffn.");
    assert_int_equal(watch_wait_ready(w, net_deadline()), SKEP_OK);
    assert_true(NET_UNTIL(experts_of(w) == 4));

    struct lookup_result *r = mem_calloc(4, sizeof(*r));
    unsigned tries = 0;
again: /* the watch itself may read meanwhile, now and then */
    directory_stats(net_directory(&nodes[0]), &before);
    assert_int_equal(
        directory_get_wait(net_directory(&nodes[0]), uids, 4, 0, net_deadline(), r, NULL), SKEP_OK);
    assert_int_equal(r[0].status, SKEP_OK);
    assert_int_equal(r[0].providers[0].endpoints[0].port, 7001);
    assert_memory_equal(r[0].providers[0].peer_id, nodes[1].identity.peer_id, PEER_ID_BYTES);
    assert_int_equal(r[1].status, SKEP_OK);
    assert_int_equal(r[2].status, SKEP_NOT_FOUND);
    assert_int_equal(r[3].status, SKEP_NOT_FOUND);
    assert_int_equal(directory_successors(net_directory(&nodes[0]),
                                          &(struct successors_question){prefixes, NULL, 3, 0},
                                          net_deadline(), answers, NULL),
                     SKEP_OK);
    assert_int_equal(answers[0].status, SKEP_OK);
    assert_int_equal(answers[1].status, SKEP_NOT_FOUND);
    assert_int_equal(answers[2].status, SKEP_OK);
    successors_free(answers, 3);

    const double lines[2][4] = {{0, 1, 2, 3}, {1, 0, 3, 2}};
    const double *scores[] = {lines[0], lines[1]};
    const int64_t sizes[] = {4, 4};
    const struct beam_query q = {.prefix = "ffn.",
                                 .dims = 2,
                                 .sizes = sizes,
                                 .samples = 1,
                                 .scores = scores,
                                 .k = 4,
                                 .deadline_us = net_deadline()};
    struct beam_result found;
    assert_int_equal(beam_search(net_directory(&nodes[0]), &q, &found, NULL), SKEP_OK);
    assert_int_equal(found.hit_count[0], 4);
    assert_string_equal(found.experts[found.hits[0].expert].uid, "ffn.1.0");
    beam_result_free(&found);
    directory_stats(net_directory(&nodes[0]), &after);
    if (after.gets != before.gets && ++tries < 10)
        goto again;
    assert_true(after.gets == before.gets);
    mem_free(r);

    struct listing listing = {0};
    watch_each(w, on_each, &listing);
    assert_int_equal(listing.count, 4);
    handler_free(h, clock_deadline_us(2000));
    watch_free(w);
    net_stop_many(nodes, 3);
}

/* B23: as after kill -9, nobody says goodbye. */
static void a_dead_nodes_experts_go_when_their_records_end(void **state)
{
    (void)state;
    struct net_node nodes[3];
    int64_t coords[] = {4};
    struct record record = {
        .kind = RECORD_PREFIX,
        .prefix = {.prefix = "ffn.",
                   .endpoint_count = 1,
                   .endpoints = {{.host = "127.0.0.1", .port = 7001}},
                   .depth = 1,
                   .parts = 1,
                   .coord_count = 1,
                   .coords = coords},
    };
    struct declaration declaration = {.record = &record};

    net_start_many(nodes, 3);
    struct watch *w = start_watch(&nodes[0], "ffn.");
    record.expires_at = directory_now_ms(net_directory(&nodes[2])) / 1000 + RECORD_MIN_LIFETIME_S;
    record_key_prefix(swarm_record(nodes[2].swarm), "ffn.", nodes[2].identity.peer_id,
                      declaration.key);
    net_declare(&nodes[2], &declaration, 1);
    net_stop(&nodes[2]);
    assert_true(NET_UNTIL(experts_of(w) == 1));
    assert_true(UNTIL(experts_of(w) == 0, 2000 * RECORD_MIN_LIFETIME_S));
    assert_true(clock_wall_ms() / 1000 >= record.expires_at);
    assert_true(NET_UNTIL(count_of(&told.gone) == 1));
    watch_free(w);
    net_stop_many(nodes, 2);
}

/* B41: a node may list as much as a record holds, and twice that in two parts. */
static void long_lists_are_read_whole(void **state)
{
    (void)state;
    enum { PARTS = 2, COORDS = 19000 };
    struct net_node nodes[3];
    int64_t *coords = mem_calloc(PARTS * COORDS, sizeof(*coords));
    struct record records[PARTS];
    struct declaration declarations[PARTS] = {0};

    assert_non_null(coords);
    for (size_t i = 0; i < (size_t)PARTS * COORDS; i++)
        coords[i] = (int64_t)i * 1000; /* three bytes each */
    net_start_many(nodes, 3);
    for (unsigned i = 0; i < PARTS; i++) {
        records[i] = (struct record){
            .kind = RECORD_PREFIX,
            .expires_at = directory_now_ms(net_directory(&nodes[2])) / 1000 + 60,
            .prefix = {.prefix = "ffn.7.",
                       .endpoint_count = 1,
                       .endpoints = {{.host = "127.0.0.1", .port = 7001}},
                       .depth = 1,
                       .part = i,
                       .parts = PARTS,
                       .coord_count = COORDS,
                       .coords = coords + (size_t)i * COORDS},
        };
        declarations[i].record = &records[i];
        record_key_prefix(swarm_record(nodes[2].swarm), "ffn.7.", nodes[2].identity.peer_id,
                          declarations[i].key);
    }
    net_declare(&nodes[2], declarations, PARTS);
    assert_int_equal(declarations[0].outcome, SKEP_OK);
    assert_int_equal(declarations[1].outcome, SKEP_OK);
    struct watch *w = start_watch(&nodes[0], "ffn.7.");
    assert_true(NET_UNTIL(experts_of(w) == (size_t)PARTS * COORDS));
    const char *uid = "ffn.7.37999000";
    struct lookup_result *r = mem_calloc(1, sizeof(*r));
    assert_int_equal(
        directory_get_wait(net_directory(&nodes[0]), &uid, 1, 0, net_deadline(), r, NULL), SKEP_OK);
    assert_int_equal(r->status, SKEP_OK);
    mem_free(r);
    watch_free(w);
    net_stop_many(nodes, 3);
    mem_free(coords);
}

/* B31: a thousand listens pin OpenDHT's thread. Publishers need none, a watch of a name 16. */
static void nobody_listens_for_an_expert(void **state)
{
    (void)state;
    struct net_node nodes[2];
    struct runner_status status;
    const char *uids[64];
    char texts[64][16];

    for (size_t i = 0; i < 64; i++) {
        snprintf(texts[i], sizeof(texts[i]), "ffn.%zu.%zu", i / 8, i % 8);
        uids[i] = texts[i];
    }
    net_start_many(nodes, 2);
    struct handler *h = publish(&nodes[1], uids, 64, 7001);
    struct watch *w = start_watch(&nodes[0], "ffn.");
    assert_true(NET_UNTIL(experts_of(w) == 64));
    runner_status(swarm_runner(nodes[1].swarm), &status);
    assert_int_equal(status.listens, 0);
    runner_status(swarm_runner(nodes[0].swarm), &status);
    assert_int_equal(status.listens, RECORD_SHARDS);
    handler_free(h, clock_deadline_us(2000));
    watch_free(w);
    net_stop_many(nodes, 2);
}

/* Every other node goes and new ones come at the same address: the watch goes on. */
static void a_watch_survives_the_loss_of_its_peers(void **state)
{
    (void)state;
    const struct net_options quick = {.minute_ms = 500};
    struct net_node peer, watcher;

    net_start_with(&peer, NULL, 0, &quick);
    const uint16_t port = net_port(&peer);
    net_start_with(&watcher, &port, 1, &quick);
    assert_true(swarm_wait_joined(watcher.swarm, net_deadline()));
    struct watch *w = start_watch(&watcher, "ffn.");
    assert_int_equal(watch_wait_ready(w, net_deadline()), SKEP_OK);
    net_stop(&peer);

    const struct net_options again = {.minute_ms = 500, .port = port};
    net_start_with(&peer, NULL, 0, &again);
    struct handler *h = publish(&peer, grid, 4, 7001);
    assert_true(UNTIL(experts_of(w) == 4, 4 * NET_PATIENCE_MS));
    handler_free(h, clock_deadline_us(1000));
    watch_free(w);
    net_stop(&watcher);
    net_stop(&peer);
}

static void what_strangers_put_there_is_not_believed(void **state)
{
    (void)state;
    struct net_node nodes[2];
    struct rogue rogue;
    struct net_event event;
    struct identity stranger;
    int64_t coords[] = {6};
    struct record record = {
        .kind = RECORD_PREFIX,
        .seq = (uint64_t)clock_wall_ms(),
        .expires_at = clock_wall_ms() / 1000 + 60,
        .prefix = {.prefix = "ffn.",
                   .endpoint_count = 1,
                   .endpoints = {{.host = "127.0.0.1", .port = 7666}},
                   .depth = 1,
                   .parts = 1,
                   .coord_count = 1,
                   .coords = coords},
    };
    struct bytes data = {0};
    uint8_t key[RECORD_KEY_BYTES];

    net_start_many(nodes, 2);
    rogue_start(&rogue, &nodes[0]);
    struct watch *w = start_watch(&nodes[0], "ffn.");
    assert_int_equal(watch_wait_ready(w, net_deadline()), SKEP_OK);
    assert_int_equal(identity_generate(&stranger, NULL), SKEP_OK);
    record_key_prefix(swarm_record(nodes[0].swarm), "ffn.", stranger.peer_id, key);
    assert_int_equal(
        record_encode(&record, &stranger, swarm_record(nodes[0].swarm), key, &data, NULL), SKEP_OK);
    data.data[data.len - 1] ^= 1; /* the signature */
    net_event_init(&event);
    rogue_put(&rogue, key, 1, data.data, data.len, &event);
    rogue_put(&rogue, key, 2, (const uint8_t *)"junk", 4, &event);
    assert_true(net_event_wait(&event, 2));
    struct handler *h = publish(&nodes[1], grid, 4, 7001);
    assert_true(NET_UNTIL(experts_of(w) == 4 && count_of(&told.appeared) == 4));
    handler_free(h, clock_deadline_us(2000));
    watch_free(w);
    bytes_free(&data);
    rogue_stop(&rogue);
    net_event_fini(&event);
    net_stop_many(nodes, 2);
}

static void a_deeper_prefix_can_be_watched_alone(void **state)
{
    (void)state;
    struct net_node nodes[2];

    net_start_many(nodes, 2);
    struct watch *w = start_watch(&nodes[0], "ffn.1.");
    struct handler *h = publish(&nodes[1], grid, 4, 7001);
    assert_true(NET_UNTIL(experts_of(w) == 2));
    /* What is beside it is asked of the network. */
    assert_true(NET_UNTIL(net_get_status(&nodes[0], "ffn.0.0", 0) == SKEP_OK));
    handler_free(h, clock_deadline_us(2000));
    watch_free(w);
    net_stop_many(nodes, 2);
}

static uint64_t reads_of(struct watch *w)
{
    struct watch_stats stats;

    watch_stats(w, &stats);
    return stats.reads;
}

static bool is_quiet(struct watch *w)
{
    uint64_t reads = reads_of(w);

    return !UNTIL(reads_of(w) != reads, 3000);
}

/* Publishers ring under the name alone. */
static void who_watches_a_deeper_prefix_hears_of_a_goodbye(void **state)
{
    (void)state;
    struct net_node nodes[2];

    net_start_many(nodes, 2);
    struct watch *w = start_watch(&nodes[0], "ffn.1.");
    struct handler *h = publish(&nodes[1], grid, 4, 7001);
    assert_true(NET_UNTIL(experts_of(w) == 2));
    /* The bell of its start has been answered for the last time: it is read no more for now. */
    assert_true(NET_UNTIL(is_quiet(w)));
    handler_free(h, clock_deadline_us(2000));
    assert_true(NET_UNTIL(experts_of(w) == 0));
    assert_true(NET_UNTIL(count_of(&told.gone) == 2));
    watch_free(w);
    net_stop_many(nodes, 2);
}

static void alone_it_is_not_ready_and_says_so(void **state)
{
    (void)state;
    struct net_node node;

    net_start(&node, 0);
    struct watch *w = start_watch(&node, "ffn.");
    assert_int_equal(watch_wait_ready(w, clock_deadline_us(1500)), SKEP_UNAVAILABLE);
    assert_false(watch_is_in_step(w));
    watch_free(w);
    net_stop(&node);
}

static void making_a_watch_survives_any_failed_allocation(void **state)
{
    (void)state;
    struct net_node node;
    struct watch *w = NULL;
    struct skep_error err;
    skep_status rc = SKEP_RESOURCE_EXHAUSTED;
    const struct watch_config bad = {.prefix = "ffn"}, config = {.prefix = "ffn."};

    net_start(&node, 0);
    assert_int_equal(watch_new(net_directory(&node), &bad, &w, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "\"ffn\""));
    for (long nth = 1; rc != SKEP_OK && nth < 100; nth++) {
        mem_fail_at(nth);
        rc = watch_new(net_directory(&node), &config, &w, NULL);
        mem_fail_at(0);
        assert_true(rc == SKEP_OK || w == NULL);
    }
    assert_int_equal(rc, SKEP_OK);
    watch_free(w);
    net_stop(&node);
}

#define TREE_TEST(f) cmocka_unit_test_setup_teardown(f, make_tree, free_tree)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TREE_TEST(experts_appear_change_and_go),
        TREE_TEST(a_reading_that_misses_a_record_takes_nothing_away),
        TREE_TEST(an_older_record_changes_nothing),
        TREE_TEST(newer_words_at_the_top_outdo_older_ones_below),
        TREE_TEST(where_a_peer_joins_there_is_news),
        TREE_TEST(a_bell_makes_its_peers_branches_due),
        TREE_TEST(uids_of_different_length_live_under_one_name),
        TREE_TEST(a_tree_survives_any_failed_allocation),
        cmocka_unit_test(nodes_come_change_and_leave_while_watched),
        cmocka_unit_test(lookups_under_a_watch_touch_no_network),
        cmocka_unit_test(a_dead_nodes_experts_go_when_their_records_end),
        cmocka_unit_test(long_lists_are_read_whole),
        cmocka_unit_test(nobody_listens_for_an_expert),
        cmocka_unit_test(a_watch_survives_the_loss_of_its_peers),
        cmocka_unit_test(what_strangers_put_there_is_not_believed),
        cmocka_unit_test(a_deeper_prefix_can_be_watched_alone),
        cmocka_unit_test(who_watches_a_deeper_prefix_hears_of_a_goodbye),
        cmocka_unit_test(alone_it_is_not_ready_and_says_so),
        cmocka_unit_test(making_a_watch_survives_any_failed_allocation),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("watch", tests, NULL, NULL);
}
