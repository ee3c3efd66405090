/* Provider sets, the cache over them, saved peers and the publication plan: without a network. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "unit.h"
#include <skep/log.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "dht/directory/lookup_cache.h"
#include "dht/bootstrap/peers_file.h"
#include "dht/directory/provider_set.h"
#include "dht/publish/publication.h"
#include "tempdir.h"

enum { NOW = 1000 };

static struct record expert(uint8_t peer, uint64_t seq, int64_t expires_at, bool offline)
{
    struct record r = {.kind = RECORD_EXPERT, .seq = seq, .expires_at = expires_at};

    r.peer_id[0] = peer;
    snprintf(r.expert.uid, sizeof(r.expert.uid), "ffn.1");
    snprintf(r.expert.cls, sizeof(r.expert.cls), "ffn");
    r.expert.endpoint_count = 2;
    snprintf(r.expert.endpoints[0].host, sizeof(r.expert.endpoints[0].host), "host-%d", peer);
    snprintf(r.expert.endpoints[1].host, sizeof(r.expert.endpoints[1].host), "::%d", peer);
    r.expert.endpoints[0].port = (uint16_t)(peer + 1);
    r.expert.endpoints[1].port = 9;
    r.expert.features = RECORD_FEATURE_AES_GCM;
    r.expert.load.queued_tasks = peer;
    r.expert.offline = offline;
    return r;
}

static bool merge(struct provider_set *set, uint8_t peer, uint64_t seq, int64_t expires_at,
                  bool offline)
{
    struct record r = expert(peer, seq, expires_at, offline);

    return provider_set_merge(set, &r, NOW, &(struct ranking){NULL, 0, 0});
}

static void providers_come_back_whole_and_freshest_first(void **state)
{
    (void)state;
    struct provider_set set = {0};
    struct provider *out = mem_calloc(DIRECTORY_MAX_PROVIDERS, sizeof(*out));

    assert_true(merge(&set, 1, 50, 2000, false));
    assert_true(merge(&set, 2, 70, 2000, false));
    assert_true(merge(&set, 3, 60, 2000, false));
    assert_int_equal(provider_set_list(&set, out, DIRECTORY_MAX_PROVIDERS), 3);
    assert_int_equal(out[0].peer_id[0], 2);
    assert_int_equal(out[1].peer_id[0], 3);
    assert_int_equal(out[2].peer_id[0], 1);
    assert_string_equal(out[0].endpoints[0].host, "host-2");
    assert_int_equal(out[0].endpoints[0].port, 3);
    assert_string_equal(out[0].endpoints[1].host, "::2");
    assert_int_equal(out[0].endpoint_count, 2);
    assert_string_equal(out[0].cls, "ffn");
    assert_int_equal(out[0].load.queued_tasks, 2);
    assert_int_equal(out[0].features, RECORD_FEATURE_AES_GCM);
    mem_free(out);
    provider_set_free(&set);
}

static void only_a_newer_record_of_a_peer_counts(void **state)
{
    (void)state;
    struct provider_set set = {0};

    assert_true(merge(&set, 1, 50, 2000, false));
    assert_false(merge(&set, 1, 50, 2000, true));
    assert_false(merge(&set, 1, 49, 2000, true));
    assert_int_equal(set.live, 1);
    assert_true(merge(&set, 1, 51, 2000, true));
    assert_int_equal(set.live, 0);
    assert_int_equal(set.withdrawn, 1);
    assert_false(merge(&set, 1, 50, 2000, false)); /* withdrawn stays withdrawn */
    assert_int_equal(set.live, 0);
    assert_true(merge(&set, 1, 52, 2000, false));
    assert_int_equal(set.live, 1);
    assert_int_equal(provider_set_seq(&set, (const uint8_t[PEER_ID_BYTES]){1}), 52);
    provider_set_free(&set);
}

static void a_full_set_keeps_those_it_knows(void **state)
{
    (void)state;
    struct provider_set set = {0};

    for (uint8_t i = 0; i < DIRECTORY_MAX_PROVIDERS; i++)
        assert_true(merge(&set, i, 50, i == 3 ? NOW : 2000, false));
    assert_true(merge(&set, 100, 60, 2000, false)); /* in place of the one that has expired */
    assert_int_equal(provider_set_seq(&set, (const uint8_t[PEER_ID_BYTES]){3}), 0);
    assert_false(merge(&set, 101, 70, 2000, false));
    assert_int_equal(set.live, DIRECTORY_MAX_PROVIDERS);
    assert_true(merge(&set, 5, 80, 2000, false)); /* one that is there may still change */
    for (uint8_t i = 0; i < 2 * DIRECTORY_MAX_PROVIDERS; i++)
        merge(&set, (uint8_t)(120 + i), 50, 2000, true);
    assert_int_equal(set.withdrawn, DIRECTORY_MAX_PROVIDERS);
    provider_set_free(&set);
}

static void a_withdrawal_counts_however_many_there_are(void **state)
{
    (void)state;
    struct provider_set set = {0};
    const uint8_t peer[PEER_ID_BYTES] = {5};

    for (uint8_t i = 0; i < DIRECTORY_MAX_PROVIDERS; i++) {
        assert_true(merge(&set, i, 50, 2000, false));
        assert_true(merge(&set, (uint8_t)(100 + i), 50, 2000, true));
    }
    assert_true(merge(&set, 5, 60, 2000, true));
    assert_int_equal(provider_set_seq(&set, peer), 60);
    assert_false(merge(&set, 5, 50, 2000, false)); /* replayed */
    assert_int_equal(set.live, DIRECTORY_MAX_PROVIDERS - 1);
    /* The place that became free is taken up by remembering: the set grows no further. */
    assert_false(merge(&set, 201, 70, 2000, true));
    assert_int_equal(set.live + set.withdrawn, 2 * DIRECTORY_MAX_PROVIDERS);
    /* But words of having gone keep out nobody who serves: the oldest of them goes. */
    assert_true(merge(&set, 200, 70, 2000, false));
    assert_int_equal(set.live, DIRECTORY_MAX_PROVIDERS);
    assert_int_equal(set.withdrawn, DIRECTORY_MAX_PROVIDERS);
    assert_int_equal(provider_set_seq(&set, peer), 60);
    provider_set_free(&set);
}

static void a_withdrawal_outlives_a_return_for_which_there_is_no_room(void **state)
{
    (void)state;
    struct provider_set set = {0};
    const uint8_t peer[PEER_ID_BYTES] = {100};

    assert_true(merge(&set, 100, 50, 2000, true));
    for (uint8_t i = 0; i < DIRECTORY_MAX_PROVIDERS; i++)
        assert_true(merge(&set, i, 50, i == 3 ? 1010 : 2000, false));
    assert_false(merge(&set, 100, 60, 2000, false));
    assert_int_equal(provider_set_seq(&set, peer), 50);
    provider_set_expire(&set, 1010);
    assert_false(merge(&set, 100, 40, 2000, false)); /* replayed, now that there would be room */
    assert_true(merge(&set, 100, 60, 2000, false));
    provider_set_free(&set);
}

static void expired_providers_go(void **state)
{
    (void)state;
    struct provider_set set = {0};

    merge(&set, 1, 50, 1010, false);
    merge(&set, 2, 51, 1020, false);
    merge(&set, 3, 52, 1005, true);
    provider_set_expire(&set, 1010);
    assert_int_equal(set.live, 1);
    assert_int_equal(set.withdrawn, 0);
    provider_set_free(&set);
}

static void a_failed_allocation_leaves_a_set_as_it_was(void **state)
{
    (void)state;
    struct provider_set set = {0};

    assert_true(merge(&set, 1, 50, 2000, false));
    mem_fail_at(1);
    assert_false(merge(&set, 1, 60, 2000, false));
    assert_int_equal(provider_set_seq(&set, (const uint8_t[PEER_ID_BYTES]){1}), 50);
    provider_set_free(&set);
}

static void the_cache_is_bounded_and_drops_the_oldest(void **state)
{
    (void)state;
    enum { CAP = 10 };
    struct lookup_cache cache;
    uint8_t key[RECORD_KEY_BYTES] = {0};

    assert_int_equal(lookup_cache_init(&cache, CAP, NULL), SKEP_OK);
    for (uint8_t i = 0; i < CAP; i++) {
        key[0] = i;
        assert_non_null(lookup_cache_touch(&cache, key));
    }
    key[0] = 0;
    assert_non_null(lookup_cache_touch(&cache, key)); /* refreshed: 1 is the oldest now */
    key[0] = CAP;
    assert_non_null(lookup_cache_touch(&cache, key));
    assert_int_equal(cache.table.count, CAP);
    key[0] = 1;
    assert_null(lookup_cache_find(&cache, key));
    key[0] = 0;
    assert_non_null(lookup_cache_find(&cache, key));
    lookup_cache_fini(&cache);
}

static void forgetting_a_peer_empties_its_entries_only(void **state)
{
    (void)state;
    struct lookup_cache cache;
    uint8_t a[RECORD_KEY_BYTES] = {1}, b[RECORD_KEY_BYTES] = {2};

    assert_int_equal(lookup_cache_init(&cache, 10, NULL), SKEP_OK);
    merge(&lookup_cache_touch(&cache, a)->found, 1, 50, 2000, false);
    merge(&lookup_cache_touch(&cache, a)->found, 2, 50, 2000, false);
    merge(&lookup_cache_touch(&cache, b)->found, 2, 50, 2000, false);
    lookup_cache_forget(&cache, (const uint8_t[PEER_ID_BYTES]){1}, &(struct ranking){NULL, 0, 0});
    assert_int_equal(lookup_cache_find(&cache, a)->found.live, 0);
    assert_int_equal(lookup_cache_find(&cache, b)->found.live, 1);
    lookup_cache_fini(&cache);
}

static void forget(struct lookup_cache *cache, unsigned peer)
{
    const uint8_t id[PEER_ID_BYTES] = {(uint8_t)peer, 0, (uint8_t)(peer >> 8)};

    lookup_cache_forget(cache, id, &(struct ranking){NULL, 0, 0});
}

/* The directory's lock is held meanwhile, and there may be 65,536 entries. */
static void forgetting_a_peer_looks_at_no_entry(void **state)
{
    (void)state;
    enum { ENTRIES = 1000 };
    struct lookup_cache cache;
    struct cache_entry *entries[ENTRIES];
    uint8_t key[RECORD_KEY_BYTES] = {0};

    assert_int_equal(lookup_cache_init(&cache, ENTRIES, NULL), SKEP_OK);
    for (size_t i = 0; i < ENTRIES; i++) {
        store_u32(key, (uint32_t)i);
        entries[i] = lookup_cache_touch(&cache, key);
        merge(&entries[i]->found, 1, 50, 2000, false);
    }
    forget(&cache, 1);
    for (size_t i = 0; i < ENTRIES; i++) {
        assert_int_equal(entries[i]->found.live, 1);
        assert_true(entries[i]->looked_at != cache.forgets);
    }
    for (size_t i = 0; i < ENTRIES; i++) { /* each is held against the note when it is used */
        store_u32(key, (uint32_t)i);
        assert_ptr_equal(lookup_cache_find(&cache, key), entries[i]);
        assert_int_equal(entries[i]->found.live, 0);
    }
    lookup_cache_fini(&cache);
}

static void a_record_that_comes_after_its_peer_was_forgotten_stays(void **state)
{
    (void)state;
    struct lookup_cache cache;
    uint8_t a[RECORD_KEY_BYTES] = {1};

    assert_int_equal(lookup_cache_init(&cache, 10, NULL), SKEP_OK);
    merge(&lookup_cache_touch(&cache, a)->found, 1, 50, 2000, false);
    forget(&cache, 1);
    merge(&lookup_cache_touch(&cache, a)->found, 1, 60, 2000, false);
    assert_int_equal(lookup_cache_find(&cache, a)->found.live, 1);
    forget(&cache, 2);
    assert_int_equal(lookup_cache_find(&cache, a)->found.live, 1);
    forget(&cache, 1); /* and again */
    assert_int_equal(lookup_cache_find(&cache, a)->found.live, 0);
    lookup_cache_fini(&cache);
}

/* More than there are notes for, between two uses of an entry. */
static void a_peer_is_forgotten_however_many_are_after_it(void **state)
{
    (void)state;
    struct lookup_cache cache;
    uint8_t a[RECORD_KEY_BYTES] = {1}, b[RECORD_KEY_BYTES] = {2};

    assert_int_equal(lookup_cache_init(&cache, 10, NULL), SKEP_OK);
    merge(&lookup_cache_touch(&cache, a)->found, 1, 50, 2000, false);
    forget(&cache, 1);
    for (unsigned i = 0; i < 2 * LOOKUP_CACHE_FORGOTTEN; i++)
        forget(&cache, 256 + i);
    merge(&lookup_cache_touch(&cache, b)->found, 1, 50, 2000, false);
    assert_int_equal(lookup_cache_find(&cache, a)->found.live, 0);
    assert_int_equal(lookup_cache_find(&cache, b)->found.live, 1);
    for (unsigned i = 0; i < 2 * LOOKUP_CACHE_FORGOTTEN; i++)
        forget(&cache, 300); /* the same one takes up one note */
    assert_int_equal(lookup_cache_find(&cache, b)->found.live, 1);
    lookup_cache_fini(&cache);
}

/* ---- saved peers ---- */

static void write_text(const char *path, const char *text, size_t len)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    fclose(f);
}

static void saved_peers_round_trip_and_garbage_is_left_out(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    struct address out[PEERS_FILE_MAX], back[PEERS_FILE_MAX];
    static const char text[] = "# comment\n127.0.0.1:1\n\nhost.example:2\n[::1]:3\nnonsense\n"
                               "0.0.0.0:4\n1.2.3.4:99999\n\x80\xff\x01:5\n10.0.0.1:6";
    struct stat st;

    tempdir_make(&dir);
    tempdir_file(&dir, "peers", path);
    assert_int_equal(peers_file_load(path, out, PEERS_FILE_MAX), 0); /* there is none */
    write_text(path, text, sizeof(text) - 1);
    assert_int_equal(peers_file_load(path, out, PEERS_FILE_MAX), 3);
    assert_int_equal(peers_file_load(path, out, 2), 2);

    assert_int_equal(peers_file_load(path, out, PEERS_FILE_MAX), 3);
    assert_int_equal(peers_file_save(path, out, 3, NULL), SKEP_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(tempdir_count(&dir, 0), 1); /* no temporary file is left */
    assert_int_equal(peers_file_load(path, back, PEERS_FILE_MAX), 3);
    for (size_t i = 0; i < 3; i++) {
        struct endpoint x, y;
        endpoint_from_address(&x, (const struct sockaddr *)&out[i].sa);
        endpoint_from_address(&y, (const struct sockaddr *)&back[i].sa);
        assert_true(endpoint_equal(&x, &y));
    }
    tempdir_remove(&dir);
}

static void line_cut_at_the_size_limit_is_no_peer(void **state)
{
    (void)state;
    static const char first[] = "10.0.0.1:7001\n#", last[] = "\n10.0.0.2:7002\n";
    struct tempdir dir;
    char path[512];
    struct address out[PEERS_FILE_MAX];
    char *text = mem_alloc(PEERS_FILE_MAX_BYTES + sizeof(last));

    tempdir_make(&dir);
    tempdir_file(&dir, "peers", path);
    assert_non_null(text);
    /* The last line would still be an address with its last digits or its end gone. */
    for (size_t over = 0; over < sizeof(last) - 1; over++) {
        size_t len = PEERS_FILE_MAX_BYTES + over;
        memset(text, 'x', len);
        memcpy(text, first, sizeof(first) - 1);
        memcpy(text + len - (sizeof(last) - 1), last, sizeof(last) - 1);
        write_text(path, text, len);
        /* Of a line that fits, the newline may be the first byte that does not. */
        assert_int_equal(peers_file_load(path, out, PEERS_FILE_MAX), over <= 1 ? 2 : 1);
    }
    mem_free(text);
    tempdir_remove(&dir);
}

static char last_warning[1024];

static void keep_warning(enum skep_log_level level, const char *line, void *arg)
{
    (void)arg;
    if (level == SKEP_LOG_WARNING)
        snprintf(last_warning, sizeof(last_warning), "%s", line);
}

static void every_damage_is_told(void **state)
{
    (void)state;
#define TITLE "# DHT peers seen last, tried at the next start\n"
    static const struct {
        const char *text;
        size_t len, peers;
        const char *warning; /* NULL: none */
    } rows[] = {
        {TITLE "10.0.0.1:7001\n", sizeof(TITLE) + 13, 1, NULL},
        {TITLE, sizeof(TITLE) - 1, 0, NULL},
        {"10.0.0.1:7001", 13, 1, NULL},
        {"", 0, 0, "is empty"},
        {"\0\0\0\0", 4, 0, "1 line ignored, the first is line 1: \"\\x00\\x00"},
        {TITLE "10.0.0.1:7001\0\n10.0.0.2:1\n", sizeof(TITLE) + 25, 1,
         "line 2: \"10.0.0.1:7001\\x00"},
        {TITLE "10.0.0.1:7001\n10.0.0.2:70", sizeof(TITLE) + 24, 1, "line 3: \"10.0.0.2:70\""},
        {"x\ny\n", 4, 0, "2 lines ignored"},
    };
    struct tempdir dir;
    char path[512];
    struct address out[PEERS_FILE_MAX];

    tempdir_make(&dir);
    tempdir_file(&dir, "peers", path);
    skep_log_set(SKEP_LOG_WARNING, keep_warning, NULL);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        last_warning[0] = '\0';
        write_text(path, rows[i].text, rows[i].len);
        size_t peers = peers_file_load(path, out, PEERS_FILE_MAX);
        if (peers != rows[i].peers || (rows[i].warning == NULL) != (last_warning[0] == '\0') ||
            (rows[i].warning != NULL && strstr(last_warning, rows[i].warning) == NULL))
            fail_msg("row %zu: %zu peers, warning \"%s\"", i, peers, last_warning);
    }
    skep_log_set(SKEP_LOG_INFO, NULL, NULL);
    tempdir_remove(&dir);
}

static void a_file_of_any_bytes_is_survived(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    struct address out[PEERS_FILE_MAX];
    size_t len = PEERS_FILE_MAX_BYTES * 2;
    char *noise = mem_alloc(len);

    tempdir_make(&dir);
    tempdir_file(&dir, "peers", path);
    for (size_t i = 0; i < len; i++)
        noise[i] = (char)(i * 2654435761u >> 13);
    write_text(path, noise, len);
    assert_int_equal(peers_file_load(path, out, PEERS_FILE_MAX), 0);
    memset(noise, '\n', len);
    memcpy(noise, "1.2.3.4:5", 9);
    write_text(path, noise, len);
    assert_int_equal(peers_file_load(path, out, PEERS_FILE_MAX), 1);
    assert_int_equal(peers_file_load(dir.path, out, PEERS_FILE_MAX), 0); /* a folder */
    mem_free(noise);
    tempdir_remove(&dir);
}

static void saving_where_it_cannot_be_says_where(void **state)
{
    (void)state;
    struct skep_error err = {0};

    assert_int_equal(peers_file_save("/nonexistent/folder/peers", NULL, 0, &err), SKEP_NOT_FOUND);
    assert_non_null(strstr(err.message, "/nonexistent/folder/peers"));
}

/* ---- the publication plan ---- */

static const struct endpoint here = {.host = "127.0.0.1", .port = 7001};
static const struct record_swarm swarm = {.name = "test", .loopback = true, .clock_skew_s = 60};

static const struct publication_state state_here = {
    .endpoints = &here, .endpoint_count = 1, .version = "1"};

/* The records of a round at this time. */
static struct publisher_round round_at(struct publication *p, int64_t now_s,
                                       enum publisher_scope scope)
{
    struct publisher_round round = {
        .scope = scope, .now_s = now_s, .lifetime_s = 60, .clock_skew_s = 60};

    publication_round(p, &state_here, &round);
    return round;
}

static void end_round(struct publisher_round *round, skep_status outcome)
{
    for (size_t i = 0; i < round->count; i++)
        round->declarations[i].outcome = outcome;
    publisher_round_note(round);
    (void)publication_ended(round);
    assert_int_equal(round->failed, outcome == SKEP_OK ? 0 : round->said);
    publisher_round_fini(round);
}

/* A whole round. Returns how many records it had. */
static size_t play_round(struct publication *p, int64_t now_s, enum publisher_scope scope,
                         skep_status outcome)
{
    struct publisher_round round = round_at(p, now_s, scope);
    size_t count = round.count;

    end_round(&round, outcome);
    return count;
}

static bool none_publishable(void *arg, const char *uid, struct record_load *out)
{
    (void)uid;
    (void)out;
    return *(bool *)arg;
}

static void only_what_failed_is_tried_again_and_only_what_was_told_is_withdrawn(void **state)
{
    (void)state;
    struct identity identity;
    struct publication *p;
    const struct record_expert *locals;
    const struct handler_expert experts[] = {{.uid = "a.1", .cls = "nop"},
                                             {.uid = "a.2", .cls = "nop"}};
    bool publishable = true;
    const struct publication_source source = {.load = none_publishable, .arg = &publishable};

    assert_int_equal(identity_generate(&identity, NULL), SKEP_OK);
    assert_int_equal(publication_new(&swarm, &identity, experts, 2, &p, NULL), SKEP_OK);

    assert_int_equal(play_round(p, NOW, PUBLISH_OFFLINE, SKEP_OK), 0); /* nobody knows of us */
    assert_int_equal(publication_update(p, &source, &state_here, &locals), 2);
    /* 2 experts, 1 prefix, 2 of the node, and a notification of who listens to the prefix. */
    struct publisher_round round = round_at(p, NOW, PUBLISH_ALL);
    const struct declaration *d = round.declarations;
    assert_int_equal(round.count, 6);
    assert_int_equal(d[5].record->prefix.coord_count, 0);
    assert_true(d[5].record->prefix.part >= d[2].record->prefix.parts);
    assert_memory_equal(d[5].key, d[2].key, RECORD_KEY_BYTES);
    assert_true(record_value_id(d[5].record) != record_value_id(d[2].record));
    end_round(&round, SKEP_OK);
    assert_int_equal(play_round(p, NOW, PUBLISH_CHANGED, SKEP_OK), 0);
    assert_int_equal(play_round(p, NOW, PUBLISH_ALL, SKEP_UNAVAILABLE), 5);
    assert_int_equal(play_round(p, NOW, PUBLISH_CHANGED, SKEP_OK), 6);

    publishable = false;
    assert_int_equal(publication_update(p, &source, &state_here, &locals), 0);
    round = round_at(p, NOW, PUBLISH_ALL);
    d = round.declarations;
    assert_int_equal(round.count, 6);
    assert_true(d[0].record->expert.offline);
    assert_int_equal(d[2].record->prefix.coord_count, 0);
    assert_string_equal(d[3].record->node.state, "online");
    end_round(&round, SKEP_OK);
    assert_int_equal(play_round(p, NOW, PUBLISH_ALL, SKEP_OK), 2); /* said once is enough */
    publishable = true;
    assert_int_equal(publication_update(p, &source, &state_here, &locals), 2);
    assert_int_equal(play_round(p, NOW, PUBLISH_ALL, SKEP_OK), 6);

    /* Now what is watched and searched comes first, and the experts, who may be many, last. */
    round = round_at(p, NOW, PUBLISH_OFFLINE);
    d = round.declarations;
    assert_int_equal(round.count, 6);
    assert_int_equal(round.said, 5);
    assert_int_equal(d[0].record->prefix.coord_count, 0);
    assert_string_equal(d[2].record->node.state, "offline");
    assert_true(d[3].record->prefix.part >= d[0].record->prefix.parts);
    assert_true(d[4].record->expert.offline && d[5].record->expert.offline);
    end_round(&round, SKEP_OK);
    assert_int_equal(play_round(p, NOW + 200, PUBLISH_OFFLINE, SKEP_OK), 0); /* all has expired */
    publication_free(p);
}

static void without_memory_a_round_says_nothing_and_the_next_one_all(void **state)
{
    (void)state;
    struct identity identity;
    struct publication *p;
    const struct handler_expert experts[] = {{.uid = "a.1", .cls = "nop"}};
    const struct record_expert *locals;

    assert_int_equal(identity_generate(&identity, NULL), SKEP_OK);
    assert_int_equal(publication_new(&swarm, &identity, experts, 1, &p, NULL), SKEP_OK);
    assert_int_equal(publication_update(p, &(struct publication_source){0}, &state_here, &locals),
                     1);
    for (long nth = 1; nth <= 3; nth++) {
        mem_fail_at(nth);
        assert_int_equal(play_round(p, NOW, PUBLISH_ALL, SKEP_OK), 0);
        assert_false(mem_fail_pending());
        mem_fail_at(0);
    }
    assert_int_equal(play_round(p, NOW, PUBLISH_CHANGED, SKEP_OK), 5);
    publication_free(p);
}

/* ---- the rules of a round ---- */

static const uint8_t some_key[RECORD_KEY_BYTES] = {1};

/* The expiry of a statement said in a round of this time; 0: it is not due. */
static int64_t say_at(struct statement *s, int64_t now_s, enum publisher_scope scope, bool alive,
                      bool urgent, skep_status outcome)
{
    struct publisher_round round = {
        .scope = scope, .now_s = now_s, .lifetime_s = 100, .clock_skew_s = 60};
    int64_t expires_at = 0;

    assert_true(publisher_round_reserve(&round, 1));
    if (statement_is_due(s, &round, alive, urgent)) {
        publisher_round_next(&round)->kind = RECORD_NODE;
        publisher_round_say(&round, s, alive, some_key);
        assert_int_equal(s->under_way, 1);
        assert_true(s->failed);
        expires_at = round.records[0].expires_at;
        round.declarations[0].outcome = outcome;
    }
    publisher_round_note(&round);
    assert_int_equal(s->under_way, 0);
    publisher_round_fini(&round);
    return expires_at;
}

static void a_withdrawal_outlives_what_it_contradicts(void **state)
{
    (void)state;
    struct statement s = {.failed = true};

    assert_int_equal(say_at(&s, NOW, PUBLISH_OFFLINE, false, false, SKEP_OK), 0);
    assert_int_equal(say_at(&s, NOW, PUBLISH_ALL, true, false, SKEP_OK), NOW + 100);
    assert_int_equal(say_at(&s, NOW + 10, PUBLISH_ALL, false, false, SKEP_UNAVAILABLE), NOW + 160);
    /* It failed: it is said again, for no longer than needed, until nobody can find anything. */
    assert_int_equal(say_at(&s, NOW + 20, PUBLISH_CHANGED, false, false, SKEP_UNAVAILABLE),
                     NOW + 160);
    assert_int_equal(say_at(&s, NOW + 159, PUBLISH_OFFLINE, false, false, SKEP_OK),
                     NOW + 159 + RECORD_MIN_LIFETIME_S);
    assert_int_equal(say_at(&s, NOW + 159, PUBLISH_OFFLINE, false, false, SKEP_OK), 0);
    s.failed = true;
    assert_int_equal(say_at(&s, NOW + 160, PUBLISH_OFFLINE, false, false, SKEP_OK), 0);
    s.until_s = NOW + 2 * RECORD_MAX_LIFETIME_S;
    assert_int_equal(say_at(&s, NOW, PUBLISH_OFFLINE, false, false, SKEP_OK),
                     NOW + RECORD_MAX_LIFETIME_S);
}

static void a_round_of_changes_has_what_failed_and_what_is_urgent(void **state)
{
    (void)state;
    struct statement s = {.failed = true};

    assert_true(say_at(&s, NOW, PUBLISH_CHANGED, true, false, SKEP_OK) > 0);
    assert_int_equal(say_at(&s, NOW, PUBLISH_CHANGED, true, false, SKEP_OK), 0);
    assert_true(say_at(&s, NOW, PUBLISH_CHANGED, true, true, SKEP_UNAVAILABLE) > 0);
    assert_true(say_at(&s, NOW, PUBLISH_CHANGED, true, false, SKEP_OK) > 0);
    assert_true(say_at(&s, NOW, PUBLISH_CHANGED, false, true, SKEP_OK) > 0);
    assert_int_equal(say_at(&s, NOW, PUBLISH_CHANGED, false, true, SKEP_OK), 0);
}

static bool all_but_one(void *arg, const char *uid, struct record_load *out)
{
    (void)out;
    return strcmp(uid, arg) != 0;
}

static void claim_of(void *arg, const char *uid, struct record_claim *out)
{
    (void)arg;
    if (strcmp(uid, "a.3") == 0)
        *out = (struct record_claim){RECORD_CLAIM_NEW, true, 1700000000};
}

static void one_expert_takes_the_place_of_another(void **state)
{
    (void)state;
    struct identity identity;
    struct publication *before, *p;
    const struct record_expert *locals;
    const struct handler_expert experts[] = {{.uid = "a.1", .cls = "nop"},
                                             {.uid = "a.2", .cls = "nop"}};
    const struct handler_expert more[] = {{.uid = "a.3", .cls = "nop"},
                                          {.uid = "a.1", .cls = "nop"}};
    struct publication_source source = {.load = all_but_one, .claim = claim_of, .arg = "none"};

    assert_int_equal(identity_generate(&identity, NULL), SKEP_OK);
    assert_int_equal(publication_new(&swarm, &identity, experts, 2, &before, NULL), SKEP_OK);
    assert_int_equal(publication_update(before, &source, &state_here, &locals), 2);
    assert_int_equal(play_round(before, NOW, PUBLISH_ALL, SKEP_OK), 6);

    assert_int_equal(publication_extend(before, &identity, more, 2, &p, NULL), SKEP_OK);
    publication_free(before);
    source.arg = "a.2"; /* which a.3 replaces */
    assert_int_equal(publication_update(p, &source, &state_here, &locals), 2);
    /* What was published stays published: only the newcomer has something to say at once. */
    struct publisher_round round = round_at(p, NOW, PUBLISH_CHANGED);
    const struct declaration *d = round.declarations;
    assert_int_equal(round.count, 1);
    assert_string_equal(d[0].record->expert.uid, "a.3");
    assert_int_equal(d[0].record->expert.claim.level, RECORD_CLAIM_NEW);
    assert_true(d[0].record->expert.claim.random);
    assert_int_equal(d[0].record->expert.claim.since_s, 1700000000);
    end_round(&round, SKEP_OK);
    /* 3 experts of which one goes, the prefix, 2 of the node, and a change notification. */
    round = round_at(p, NOW, PUBLISH_ALL);
    d = round.declarations;
    assert_int_equal(round.count, 7);
    assert_int_equal(d[0].record->expert.claim.level, RECORD_CLAIM_KEPT);
    assert_true(d[1].record->expert.offline);
    assert_string_equal(d[1].record->expert.uid, "a.2");
    assert_int_equal(d[3].record->prefix.coord_count, 2);
    assert_int_equal(d[3].record->prefix.coords[1], 3);
    end_round(&round, SKEP_OK);
    assert_int_equal(play_round(p, NOW, PUBLISH_ALL, SKEP_OK), 5); /* a.2 has been withdrawn */
    publication_free(p);
}

static void a_very_long_prefix_is_split_into_parts_that_fit(void **state)
{
    (void)state;
    enum { EXPERTS = 13000 };
    struct handler_expert *experts = mem_calloc(EXPERTS, sizeof(*experts));
    char(*uids)[32] = mem_calloc(EXPERTS, sizeof(*uids));
    struct identity identity;
    struct publication *p;
    const struct record_expert *locals;
    size_t parts = 0, coords = 0;
    int64_t last = -1;
    const struct publication_source no_source = {0};

    for (size_t i = 0; i < EXPERTS; i++) {
        snprintf(uids[i], sizeof(uids[i]), "big.%lld", (1ll << 62) + (long long)i * 7);
        experts[i] = (struct handler_expert){.uid = uids[i], .cls = "nop"};
    }
    assert_int_equal(identity_generate(&identity, NULL), SKEP_OK);
    assert_int_equal(publication_new(&swarm, &identity, experts, EXPERTS, &p, NULL), SKEP_OK);
    assert_int_equal(publication_update(p, &no_source, &state_here, &locals), EXPERTS);
    struct publisher_round round = round_at(p, clock_wall_ms() / 1000, PUBLISH_ALL);
    const struct declaration *d = round.declarations;
    for (size_t i = 0; i < round.count; i++) {
        if (d[i].record->kind != RECORD_PREFIX)
            continue;
        struct bytes data = {0};
        const struct record_prefix *prefix = &d[i].record->prefix;

        if (prefix->coord_count == 0)
            continue; /* a change notification */
        assert_int_equal(prefix->part, parts);
        assert_int_equal(prefix->parts, 3);
        for (size_t c = 0; c < prefix->coord_count; c++) {
            assert_true(prefix->coords[c] > last);
            last = prefix->coords[c];
        }
        coords += prefix->coord_count;
        assert_int_equal(record_encode(d[i].record, &identity, &swarm, d[i].key, &data, NULL),
                         SKEP_OK);
        bytes_free(&data);
        parts++;
    }
    assert_int_equal(parts, 3);
    assert_int_equal(coords, EXPERTS);
    publisher_round_fini(&round);
    publication_free(p);
    mem_free(uids);
    mem_free(experts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(providers_come_back_whole_and_freshest_first),
        cmocka_unit_test(only_a_newer_record_of_a_peer_counts),
        cmocka_unit_test(a_full_set_keeps_those_it_knows),
        cmocka_unit_test(a_withdrawal_counts_however_many_there_are),
        cmocka_unit_test(a_withdrawal_outlives_a_return_for_which_there_is_no_room),
        cmocka_unit_test(expired_providers_go),
        cmocka_unit_test(a_failed_allocation_leaves_a_set_as_it_was),
        cmocka_unit_test(the_cache_is_bounded_and_drops_the_oldest),
        cmocka_unit_test(forgetting_a_peer_empties_its_entries_only),
        cmocka_unit_test(forgetting_a_peer_looks_at_no_entry),
        cmocka_unit_test(a_record_that_comes_after_its_peer_was_forgotten_stays),
        cmocka_unit_test(a_peer_is_forgotten_however_many_are_after_it),
        cmocka_unit_test(saved_peers_round_trip_and_garbage_is_left_out),
        cmocka_unit_test(line_cut_at_the_size_limit_is_no_peer),
        cmocka_unit_test(every_damage_is_told),
        cmocka_unit_test(a_file_of_any_bytes_is_survived),
        cmocka_unit_test(saving_where_it_cannot_be_says_where),
        cmocka_unit_test(without_memory_a_round_says_nothing_and_the_next_one_all),
        cmocka_unit_test(a_withdrawal_outlives_what_it_contradicts),
        cmocka_unit_test(a_round_of_changes_has_what_failed_and_what_is_urgent),
        cmocka_unit_test(only_what_failed_is_tried_again_and_only_what_was_told_is_withdrawn),
        cmocka_unit_test(one_expert_takes_the_place_of_another),
        cmocka_unit_test(a_very_long_prefix_is_split_into_parts_that_fit),
    };
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("directory_parts", tests, NULL, NULL);
}
