#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "tracker/scheduler.h"

/* ---- helpers ---- */

enum { MAX_LOG = 256, MAX_MODEL = 64 };

struct fixture {
    struct scheduler *s;
    char log[MAX_LOG][64]; /* "assign b:m1" */
    size_t count;
    bool refuse; /* answers cannot be told */
    uint64_t last_waiting;
    uint64_t mark; /* of the next answer; 0: they arrive at once */
    struct scheduler_owner a, b, c;
};

static const char *name_of(const struct fixture *f, const struct scheduler_owner *owner)
{
    return owner == &f->a ? "a" : owner == &f->b ? "b" : "c";
}

static bool on_assign(void *arg, struct scheduler_owner *to, const struct tracker_resource *r,
                      uint64_t *mark)
{
    struct fixture *f = arg;

    if (f->refuse)
        return false;
    snprintf(f->log[f->count++ % MAX_LOG], 64, "%s:%.*s@%.*s:%u", name_of(f, to),
             (int)r->match_key.len, r->match_key.data, (int)r->address.len, r->address.data,
             (unsigned)r->port);
    *mark = f->mark > 0 ? f->mark++ : 0;
    return true;
}

static void on_waiting(void *arg, const struct scheduler_request *request)
{
    struct fixture *f = arg;

    f->last_waiting = request->id;
    snprintf(f->log[f->count++ % MAX_LOG], 64, "waiting %.*s", (int)request->key.len,
             request->key.data);
}

static void on_ended(void *arg, uint64_t id, struct tracker_text key, enum scheduler_end how)
{
    struct fixture *f = arg;
    static const char *const names[] = {"served", "answered", "withdrawn"};

    (void)id;
    (void)key;
    snprintf(f->log[f->count++ % MAX_LOG], 64, "%s", names[how]);
}

static const struct scheduler_events events = {
    .assign = on_assign, .waiting = on_waiting, .ended = on_ended};

static int setup(void **state)
{
    struct fixture *f = mem_calloc(1, sizeof(*f));

    assert_non_null(f);
    assert_int_equal(scheduler_new(NULL, &events, f, &f->s, NULL), SKEP_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    struct scheduler_totals t;

    scheduler_owner_gone(f->s, &f->a, 0);
    scheduler_owner_gone(f->s, &f->b, 0);
    scheduler_owner_gone(f->s, &f->c, 0);
    scheduler_totals(f->s, &t);
    assert_int_equal(t.free, 0);
    assert_int_equal(t.pending, 0);
    scheduler_free(f->s);
    mem_free(f);
    return 0;
}

static struct tracker_resource resource(const char *match_key, uint16_t port)
{
    return (struct tracker_resource){
        .address = tracker_text("10.0.0.1"), .port = port, .match_key = tracker_text(match_key)};
}

static void put(struct fixture *f, struct scheduler_owner *owner, const char *key,
                const char *match_key)
{
    struct tracker_resource r = resource(match_key, 9090);

    assert_int_equal(scheduler_put(f->s, owner, tracker_text(key), &r, 0, NULL), SKEP_OK);
}

static void ask(struct fixture *f, struct scheduler_owner *owner, const char *key, int64_t priority)
{
    assert_int_equal(scheduler_ask(f->s, owner, tracker_text(key), tracker_text(""),
                                   tracker_priority(priority), 0, NULL),
                     SKEP_OK);
}

static void assert_counts(struct fixture *f, const char *key, size_t free, size_t pending)
{
    struct scheduler_key_counters counters;

    assert_true(scheduler_counters(f->s, tracker_text(key), &counters));
    assert_int_equal(counters.free, free);
    assert_int_equal(counters.pending, pending);
}

static void assert_last(struct fixture *f, const char *expected)
{
    assert_true(f->count > 0);
    assert_string_equal(f->log[(f->count - 1) % MAX_LOG], expected);
}

/* ---- the order ---- */

static void a_free_resource_is_handed_out_at_once(void **state)
{
    struct fixture *f = *state;

    put(f, &f->a, "k", "m1");
    assert_counts(f, "k", 1, 0);
    ask(f, &f->b, "k", 1);
    assert_int_equal(f->count, 1);
    assert_last(f, "b:m1@10.0.0.1:9090");
    assert_counts(f, "k", 0, 0);
}

static void the_oldest_resource_goes_first(void **state)
{
    struct fixture *f = *state;

    put(f, &f->a, "k", "m1");
    put(f, &f->b, "k", "m2");
    put(f, &f->a, "k", "m3");
    ask(f, &f->c, "k", 1);
    assert_last(f, "c:m1@10.0.0.1:9090");
    ask(f, &f->c, "k", 1);
    assert_last(f, "c:m2@10.0.0.1:9090");
    ask(f, &f->c, "k", 1);
    assert_last(f, "c:m3@10.0.0.1:9090");
}

static void higher_priority_is_served_first_and_else_who_came_first(void **state)
{
    struct fixture *f = *state;

    ask(f, &f->a, "k", 1);
    ask(f, &f->b, "k", 5);
    ask(f, &f->c, "k", 5);
    ask(f, &f->b, "k", -1);
    assert_counts(f, "k", 0, 4);
    static const char *const order[] = {"b", "c", "a", "b"};
    for (int i = 0; i < 4; i++) {
        char expected[64], match_key[8];
        snprintf(match_key, sizeof(match_key), "m%d", i);
        size_t before = f->count;
        put(f, &f->a, "k", match_key);
        snprintf(expected, sizeof(expected), "%s:%s@10.0.0.1:9090", order[i], match_key);
        assert_string_equal(f->log[before], expected);
        assert_string_equal(f->log[before + 1], "served");
    }
    assert_counts(f, "k", 0, 0);
}

static void keys_are_apart_and_hold_any_character(void **state)
{
    struct fixture *f = *state;
    struct tracker_resource r = resource("192.168.0.143:5555:0.42", 1);
    const struct tracker_text with_nul = {.data = "k\0x", .len = 3};

    put(f, &f->a, "192.168.0.143:5555", "no colon");
    assert_int_equal(scheduler_put(f->s, &f->a, with_nul, &r, 0, NULL), SKEP_OK);
    ask(f, &f->b, "192.168.0.143", 1);
    ask(f, &f->b, "k", 1);
    ask(f, &f->b, "K", 1);
    ask(f, &f->b, "", 1);
    assert_counts(f, "192.168.0.143:5555", 1, 0);
    assert_counts(f, "192.168.0.143", 0, 1);
    assert_counts(f, "k", 0, 1);
    assert_counts(f, "", 0, 1);
    ask(f, &f->c, "192.168.0.143:5555", 1);
    assert_last(f, "c:no colon@10.0.0.1:9090");
}

/* ---- match keys ---- */

struct match_keys {
    char text[256];
    size_t len;
};

static bool append_key(void *arg, struct tracker_text match_key)
{
    struct match_keys *keys = arg;
    int n = snprintf(keys->text + keys->len, sizeof(keys->text) - keys->len, "%.*s ",
                     (int)match_key.len, match_key.data);

    assert_in_range(n, 1, sizeof(keys->text) - keys->len - 1);
    keys->len += (size_t)n;
    return true;
}

static void assert_match_keys(struct scheduler *s, struct scheduler_owner *owner,
                              const char *expected)
{
    struct match_keys keys = {.len = 0};

    scheduler_each_match_key(s, owner, append_key, &keys);
    assert_string_equal(keys.text, expected);
}

static void one_match_key_counts_once(void **state)
{
    struct fixture *f = *state;
    struct tracker_resource moved = resource("m1", 7777);

    put(f, &f->a, "k", "m1");
    put(f, &f->a, "k", "m1");
    assert_counts(f, "k", 1, 0);
    assert_int_equal(scheduler_put(f->s, &f->a, tracker_text("k"), &moved, 0, NULL), SKEP_OK);
    assert_counts(f, "k", 1, 0);
    assert_match_keys(f->s, &f->a, "m1 ");
    put(f, &f->b, "k", "m1"); /* another server's */
    assert_counts(f, "k", 2, 0);
    ask(f, &f->c, "k", 1);
    assert_last(f, "c:m1@10.0.0.1:7777");
    assert_match_keys(f->s, &f->a, "");
    /* Under another key it moves. */
    put(f, &f->b, "other", "m1");
    assert_counts(f, "k", 0, 0);
    assert_counts(f, "other", 1, 0);
}

/* B02 */
static void a_key_handed_out_and_never_used_is_replaced(void **state)
{
    struct fixture *f = *state;

    put(f, &f->a, "k", "m1");
    assert_match_keys(f->s, &f->a, "m1 ");
    ask(f, &f->b, "k", 1);
    assert_match_keys(f->s, &f->a, "");
    put(f, &f->a, "k", "m2");
    assert_counts(f, "k", 1, 0);
    assert_match_keys(f->s, &f->a, "m2 ");
    ask(f, &f->b, "k", 1);
    assert_last(f, "b:m2@10.0.0.1:9090");
}

/* ---- owners that go ---- */

/* B03: whatever the keys look like. */
static void an_owner_takes_its_resources_along(void **state)
{
    struct fixture *f = *state;

    put(f, &f->a, "192.168.0.143:5555", "192.168.0.143:5555:0.42");
    put(f, &f->a, "k", "nocolon");
    put(f, &f->b, "k", "m");
    scheduler_owner_gone(f->s, &f->a, 0);
    assert_counts(f, "192.168.0.143:5555", 0, 0);
    assert_counts(f, "k", 1, 0);
    ask(f, &f->c, "192.168.0.143:5555", 1);
    assert_last(f, "waiting 192.168.0.143:5555");
    ask(f, &f->c, "k", 1);
    assert_last(f, "c:m@10.0.0.1:9090");
}

/* B04 */
static void an_owner_takes_its_requests_along(void **state)
{
    struct fixture *f = *state;

    ask(f, &f->a, "k", 9);
    ask(f, &f->b, "k", 5);
    ask(f, &f->c, "k", 1);
    scheduler_owner_gone(f->s, &f->a, 0);
    assert_last(f, "withdrawn");
    scheduler_owner_gone(f->s, &f->b, 0);
    assert_counts(f, "k", 0, 1);
    size_t before = f->count;
    put(f, &f->b, "k", "m1");
    assert_string_equal(f->log[before], "c:m1@10.0.0.1:9090");
    assert_counts(f, "k", 0, 0);
}

static void an_answer_that_cannot_be_told_leaves_the_resource(void **state)
{
    struct fixture *f = *state;

    ask(f, &f->a, "k", 1);
    ask(f, &f->b, "k", 1);
    f->refuse = true;
    put(f, &f->c, "k", "m1");
    assert_counts(f, "k", 1, 0);
    f->refuse = false;
    ask(f, &f->c, "k", 1);
    assert_last(f, "c:m1@10.0.0.1:9090");
}

/* ---- other trackers ---- */

static void a_waiting_request_is_answered_from_elsewhere_once(void **state)
{
    struct fixture *f = *state;
    struct tracker_resource r = resource("far", 1);

    assert_false(scheduler_answer(f->s, tracker_text("k"), &r, 5));
    ask(f, &f->a, "k", 1);
    uint64_t id = f->last_waiting;
    assert_false(scheduler_answer(f->s, tracker_text("other"), &r, 5));
    assert_true(scheduler_answer(f->s, tracker_text("k"), &r, 5));
    assert_last(f, "answered");
    assert_false(scheduler_answer(f->s, tracker_text("k"), &r, 5));
    assert_counts(f, "k", 0, 0);
    ask(f, &f->a, "k", 1);
    assert_true(f->last_waiting != id);
    put(f, &f->b, "k", "near");
    assert_false(scheduler_answer(f->s, tracker_text("k"), &r, 5));
    ask(f, &f->b, "k", 1);
    scheduler_owner_gone(f->s, &f->b, 0);
    assert_false(scheduler_answer(f->s, tracker_text("k"), &r, 5));
}

static void what_comes_from_elsewhere_goes_to_the_highest_priority(void **state)
{
    struct fixture *f = *state;
    struct tracker_resource r = resource("far", 1);

    ask(f, &f->a, "k", 1);
    ask(f, &f->b, "k", 100);
    ask(f, &f->c, "k", 100);
    for (int i = 0; i < 3; i++) {
        size_t before = f->count;
        assert_true(scheduler_answer(f->s, tracker_text("k"), &r, 5));
        assert_int_equal(f->log[before][0], "bca"[i]);
    }
}

static void what_comes_from_elsewhere_is_not_lost_on_one_that_cannot_be_told(void **state)
{
    struct fixture *f = *state;
    struct tracker_resource r = resource("far", 1);

    ask(f, &f->a, "k", 1);
    ask(f, &f->b, "k", 1);
    f->refuse = true;
    assert_false(scheduler_answer(f->s, tracker_text("k"), &r, 5));
    assert_counts(f, "k", 0, 0);
    assert_last(f, "withdrawn");
}

static void a_taken_resource_is_returned_or_confirmed(void **state)
{
    struct fixture *f = *state;
    struct tracker_resource r;

    assert_int_equal(scheduler_take(f->s, tracker_text("k"), &r), 0);
    put(f, &f->a, "k", "m1");
    put(f, &f->a, "k", "m2");
    uint64_t taken = scheduler_take(f->s, tracker_text("k"), &r);
    assert_true(taken != 0);
    assert_int_equal(r.match_key.len, 2);
    assert_memory_equal(r.match_key.data, "m1", 2);
    assert_counts(f, "k", 1, 0);
    assert_match_keys(f->s, &f->a, "m2 ");
    assert_true(scheduler_return(f->s, taken, 0));
    assert_false(scheduler_return(f->s, taken, 0));
    assert_counts(f, "k", 2, 0);
    ask(f, &f->b, "k", 1);
    assert_last(f, "b:m1@10.0.0.1:9090"); /* it is the first again */
    taken = scheduler_take(f->s, tracker_text("k"), &r);
    scheduler_confirm(f->s, taken);
    assert_false(scheduler_return(f->s, taken, 0));
    assert_counts(f, "k", 0, 0);
    assert_int_equal(f->a.item_count, 0);
}

static void a_returned_resource_serves_who_waits(void **state)
{
    struct fixture *f = *state;
    struct tracker_resource r;

    put(f, &f->a, "k", "m1");
    uint64_t taken = scheduler_take(f->s, tracker_text("k"), &r);
    ask(f, &f->b, "k", 1);
    assert_true(scheduler_return(f->s, taken, 0));
    assert_last(f, "served");
    assert_counts(f, "k", 0, 0);
}

static void a_taken_resource_goes_with_its_owner_or_its_successor(void **state)
{
    struct fixture *f = *state;
    struct tracker_resource r;

    put(f, &f->a, "k", "m1");
    uint64_t taken = scheduler_take(f->s, tracker_text("k"), &r);
    scheduler_owner_gone(f->s, &f->a, 0);
    assert_false(scheduler_return(f->s, taken, 0));
    put(f, &f->b, "k", "m1");
    taken = scheduler_take(f->s, tracker_text("k"), &r);
    put(f, &f->b, "k", "m1"); /* anew */
    assert_counts(f, "k", 1, 0);
    assert_false(scheduler_return(f->s, taken, 0));
    assert_counts(f, "k", 1, 0);
}

/* ---- answers that do not arrive ---- */

/* b has been given m1 and m2 of a, by answers that end at 1 and 2. */
static void give_two(struct fixture *f)
{
    f->mark = 1;
    put(f, &f->a, "k", "m1");
    put(f, &f->a, "k", "m2");
    ask(f, &f->b, "k", 1);
    ask(f, &f->b, "k", 1);
    assert_counts(f, "k", 0, 0);
}

static uint64_t undelivered(const struct fixture *f)
{
    struct scheduler_totals t;

    scheduler_totals(f->s, &t);
    return t.undelivered;
}

static void what_did_not_arrive_is_free_again_in_its_order(void **state)
{
    struct fixture *f = *state;

    give_two(f);
    scheduler_owner_gone(f->s, &f->b, 0);
    assert_counts(f, "k", 2, 0);
    assert_int_equal(undelivered(f), 2);
    ask(f, &f->c, "k", 1);
    assert_last(f, "c:m1@10.0.0.1:9090");
    ask(f, &f->c, "k", 1);
    assert_last(f, "c:m2@10.0.0.1:9090");
}

static void what_arrived_is_gone(void **state)
{
    struct fixture *f = *state;

    give_two(f);
    scheduler_arrived(f->s, &f->b, 1);
    scheduler_owner_gone(f->s, &f->b, 0);
    assert_counts(f, "k", 1, 0);
    ask(f, &f->c, "k", 1);
    assert_last(f, "c:m2@10.0.0.1:9090");
    assert_int_equal(undelivered(f), 1);
}

static void what_did_not_arrive_serves_who_waits(void **state)
{
    struct fixture *f = *state;

    give_two(f);
    ask(f, &f->c, "k", 1);
    assert_counts(f, "k", 0, 1);
    scheduler_owner_gone(f->s, &f->b, 0);
    assert_counts(f, "k", 1, 0);
    scheduler_arrived(f->s, &f->c, UINT64_MAX);
}

/* Its server takes a match key that it was not told of for used, and offers another. */
static void what_its_server_holds_for_used_stays_gone(void **state)
{
    struct fixture *f = *state;

    give_two(f);
    assert_match_keys(f->s, &f->a, "");
    scheduler_owner_gone(f->s, &f->b, 0);
    assert_counts(f, "k", 0, 0);
    put(f, &f->a, "k", "m3");
    assert_counts(f, "k", 1, 0);
    ask(f, &f->c, "k", 1);
    put(f, &f->a, "k", "m4"); /* without asking */
    scheduler_owner_gone(f->s, &f->c, 0);
    assert_counts(f, "k", 1, 0);
    assert_match_keys(f->s, &f->a, "m4 ");
}

static void what_did_not_arrive_goes_with_its_server(void **state)
{
    struct fixture *f = *state;
    struct scheduler_totals t;

    give_two(f);
    scheduler_owner_gone(f->s, &f->a, 0);
    scheduler_arrived(f->s, &f->b, 1);
    scheduler_owner_gone(f->s, &f->b, 0);
    assert_counts(f, "k", 0, 0);
    scheduler_totals(f->s, &t);
    assert_int_equal(t.undelivered, 0);
}

/* One that serves very many, of whom none has acknowledged yet, is not held up by its limit. */
static void what_is_under_way_counts_against_no_limit(void **state)
{
    struct fixture *f = *state;
    char name[32];

    f->mark = 1;
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof(name), "m%d", i);
        put(f, &f->a, "k", name);
        ask(f, &f->b, "k", 1);
    }
    assert_int_equal(f->a.item_count, 0);
}

/* ---- limits ---- */

/* What keys take is bounded by what an answer that lists them takes. */
static void keys_are_bounded_by_what_they_take_where_they_are_listed(void **state)
{
    struct fixture *f = *state;
    struct scheduler *s;
    struct scheduler_owner one = {0}, other = {0}, third = {0};
    struct scheduler_account account = {0}, elsewhere = {0};
    /* Two quotes and an escape, and the numbers. */
    const size_t written = SCHEDULER_KEY_WRITTEN + 2 + 6;
    const struct scheduler_limits limits = {.max_key_bytes = 6 * written,
                                            .max_key_bytes_per_owner = 3 * written,
                                            .max_key_bytes_per_account = 5 * written};
    struct scheduler_totals totals;
    struct skep_error err;
    char name[] = "\x01";

    one.account = other.account = &account;
    third.account = &elsewhere;
    assert_int_equal(scheduler_new(&limits, &events, f, &s, NULL), SKEP_OK);
    /* A resource, a request that waits and a registration count alike. */
    const struct tracker_resource r = resource("m", 1);
    assert_int_equal(scheduler_put(s, &one, tracker_text(name), &r, 0, NULL), SKEP_OK);
    name[0]++;
    assert_int_equal(
        scheduler_ask(s, &one, tracker_text(name), tracker_text(""), tracker_priority(0), 0, NULL),
        SKEP_OK);
    name[0]++;
    assert_int_equal(scheduler_register(s, &one, tracker_text(name), NULL), SKEP_OK);
    assert_int_equal(one.key_bytes, 3 * written);
    name[0]++;
    assert_int_equal(scheduler_put(s, &one, tracker_text(name), &r, 0, &err),
                     SKEP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "the keys of one connection take too many bytes"));
    assert_int_equal(
        scheduler_ask(s, &one, tracker_text(name), tracker_text(""), tracker_priority(0), 0, &err),
        SKEP_RESOURCE_EXHAUSTED);
    assert_int_equal(scheduler_register(s, &one, tracker_text(name), &err),
                     SKEP_RESOURCE_EXHAUSTED);
    scheduler_totals(s, &totals);
    assert_int_equal(totals.keys, 3); /* nobody remembers what was refused */
    assert_int_equal(totals.key_bytes, 3 * written);
    /* What it has goes on as before. */
    assert_int_equal(scheduler_put(s, &one, tracker_text("\x01"), &r, 0, NULL), SKEP_OK);
    assert_int_equal(scheduler_register(s, &one, tracker_text("\x03"), NULL), SKEP_OK);
    /* Another connection from the same address, and one from elsewhere. */
    for (int i = 0; i < 2; i++, name[0]++) {
        const struct tracker_resource own = resource(i == 0 ? "m" : "n", 1);
        assert_int_equal(scheduler_put(s, &other, tracker_text(name), &own, 0, NULL), SKEP_OK);
    }
    assert_int_equal(scheduler_register(s, &other, tracker_text(name), &err),
                     SKEP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "all connections from one address"));
    assert_int_equal(scheduler_register(s, &third, tracker_text(name), NULL), SKEP_OK);
    name[0]++;
    assert_int_equal(scheduler_put(s, &third, tracker_text(name), &r, 0, &err),
                     SKEP_RESOURCE_EXHAUSTED); /* all there is */
    assert_non_null(strstr(err.message, "the tracker's keys take too many bytes"));
    /* It is all given back. */
    scheduler_owner_gone(s, &other, 0);
    assert_int_equal(account.key_bytes, 3 * written);
    scheduler_owner_gone(s, &one, 0);
    scheduler_owner_gone(s, &third, 0);
    assert_int_equal(one.key_bytes + other.key_bytes + third.key_bytes, 0);
    assert_int_equal(account.key_bytes + elsewhere.key_bytes, 0);
    scheduler_free(s);
}

static void bytes_of_a_text_are_those_that_are_written(void **state)
{
    (void)state;
    static const char *const texts[] = {"",         "abc",          "\"\\\n\r\t\f\b",   "\x01\x7f",
                                        "\xc3\xa9", "\xe2\x98\x83", "\xf0\x9f\x98\x80", "\xff",
                                        "a\xc3"};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct bytes out = {0};
        assert_true(tracker_append_text(&out, tracker_text(texts[i])));
        assert_int_equal(tracker_text_written(tracker_text(texts[i])), out.len);
        bytes_free(&out);
    }
    const struct tracker_text nul = {.data = "\0", .len = 1};
    assert_int_equal(tracker_text_written(nul), 8);
    assert_int_equal(tracker_text_written(tracker_text(NULL)), 4);
}

static void an_owner_has_so_many_and_no_more(void **state)
{
    struct fixture *f = *state;
    struct scheduler *s;
    const struct scheduler_limits limits = {.max_items_per_owner = 2, .max_waiters_per_owner = 2};
    struct scheduler_owner owner = {0};
    struct tracker_resource r1 = resource("1", 1), r2 = resource("2", 1), r3 = resource("3", 1);
    const struct tracker_text k = tracker_text("k"), w = tracker_text("w");

    assert_int_equal(scheduler_new(&limits, &events, f, &s, NULL), SKEP_OK);
    assert_int_equal(scheduler_put(s, &owner, k, &r1, 0, NULL), SKEP_OK);
    assert_int_equal(scheduler_put(s, &owner, k, &r2, 0, NULL), SKEP_OK);
    assert_int_equal(scheduler_put(s, &owner, k, &r3, 0, NULL), SKEP_RESOURCE_EXHAUSTED);
    assert_int_equal(scheduler_put(s, &owner, k, &r2, 0, NULL), SKEP_OK); /* the same one */
    for (int i = 0; i < 3; i++)
        assert_int_equal(scheduler_ask(s, &owner, w, w, tracker_priority(1), 0, NULL),
                         i < 2 ? SKEP_OK : SKEP_RESOURCE_EXHAUSTED);
    scheduler_owner_gone(s, &owner, 0);
    scheduler_free(s);
}

static void memory_is_bounded_and_given_back(void **state)
{
    struct fixture *f = *state;
    struct scheduler *s;
    const struct scheduler_limits limits = {.max_bytes = 100000};
    struct scheduler_totals t;
    char key[64];

    assert_int_equal(scheduler_new(&limits, &events, f, &s, NULL), SKEP_OK);
    for (int round = 0; round < 20; round++) {
        struct scheduler_owner owner = {0};
        int refused = 0;
        for (int i = 0; i < 2000; i++) {
            struct tracker_resource r = resource(key, 1);
            snprintf(key, sizeof(key), "key %d of round %d", i, round);
            r.match_key = tracker_text(key);
            skep_status rc = i % 2 == 0
                                 ? scheduler_put(s, &owner, tracker_text(key), &r, 0, NULL)
                                 : scheduler_ask(s, &owner, tracker_text(key), tracker_text(key),
                                                 tracker_priority(i), 0, NULL);
            refused += rc == SKEP_RESOURCE_EXHAUSTED;
        }
        scheduler_totals(s, &t);
        assert_true(t.bytes <= 100000);
        assert_true(refused > 0 && refused < 2000);
        scheduler_owner_gone(s, &owner, 0);
        scheduler_changes(s, NULL, NULL);
    }
    scheduler_totals(s, &t);
    assert_true(t.keys <= SCHEDULER_MAX_IDLE_KEYS);
    assert_true(t.bytes <= 50000);
    scheduler_free(s);
}

/* A key whose servers are all busy stays; others are forgotten, the longest idle first. */
static void idle_keys_are_forgotten_registered_ones_are_not(void **state)
{
    struct fixture *f = *state;
    struct scheduler_key_counters counters;
    char key[32];

    put(f, &f->a, "busy", "m");
    assert_int_equal(scheduler_register(f->s, &f->a, tracker_text("busy"), NULL), SKEP_OK);
    ask(f, &f->b, "busy", 1);
    assert_counts(f, "busy", 0, 0);
    for (int i = 0; i < SCHEDULER_MAX_IDLE_KEYS + 10; i++) {
        snprintf(key, sizeof(key), "idle%d", i);
        put(f, &f->b, key, key);
        ask(f, &f->c, key, 1);
        scheduler_changes(f->s, NULL, NULL);
    }
    assert_true(scheduler_counters(f->s, tracker_text("busy"), &counters));
    assert_int_equal(counters.servers, 1);
    assert_false(scheduler_counters(f->s, tracker_text("idle9"), &counters));
    assert_true(scheduler_counters(f->s, tracker_text("idle10"), &counters));
    assert_int_equal(scheduler_register(f->s, &f->a, tracker_text(NULL), NULL), SKEP_OK);
    assert_true(scheduler_counters(f->s, tracker_text("busy"), &counters));
    assert_int_equal(counters.servers, 0);
}

/* ---- changes ---- */

static void count_change(void *arg, const struct scheduler_key_counters *counters)
{
    char *list = arg;

    snprintf(list + strlen(list), 256 - strlen(list), "%.*s %zu/%zu,", (int)counters->key.len,
             counters->key.data, counters->free, counters->pending);
}

static void changes_are_told_once_a_key(void **state)
{
    struct fixture *f = *state;
    char list[256] = "";

    put(f, &f->a, "k", "m1");
    put(f, &f->a, "k", "m2");
    ask(f, &f->b, "k", 1);
    scheduler_changes(f->s, count_change, list);
    assert_string_equal(list, "k 1/0,");
    list[0] = '\0';
    scheduler_changes(f->s, count_change, list);
    assert_string_equal(list, "");
    scheduler_owner_gone(f->s, &f->a, 0);
    scheduler_changes(f->s, count_change, list);
    assert_string_equal(list, "k 0/0,");
}

static void waits_are_counted(void **state)
{
    struct fixture *f = *state;
    struct tracker_resource r = resource("m", 1);
    struct scheduler_totals t;

    assert_int_equal(scheduler_ask(f->s, &f->a, tracker_text("k"), tracker_text(""),
                                   tracker_priority(1), 1000000, NULL),
                     SKEP_OK);
    assert_int_equal(scheduler_put(f->s, &f->b, tracker_text("k"), &r, 1003000, NULL), SKEP_OK);
    scheduler_totals(f->s, &t);
    assert_int_equal(t.wait_us_sum, 3000);
    assert_int_equal(t.wait_us_max, 3000);
    assert_int_equal(t.waits[2], 1); /* over 2 ms, up to 4 */
    assert_int_equal(t.served, 1);
}

/* ---- against a slow, obvious model ---- */

struct model_waiter {
    int owner, priority;
    unsigned order;
};
struct model {
    char items[MAX_MODEL][16]; /* match keys, oldest first */
    int item_owner[MAX_MODEL];
    size_t item_count;
    struct model_waiter waiters[MAX_MODEL];
    size_t waiter_count;
    char expected[64];
};

static size_t best_waiter(const struct model *m)
{
    size_t best = 0;

    for (size_t i = 1; i < m->waiter_count; i++)
        if (m->waiters[i].priority > m->waiters[best].priority)
            best = i; /* of equals the first stays */
    return best;
}

static void model_serve(struct model *m)
{
    m->expected[0] = '\0';
    while (m->item_count > 0 && m->waiter_count > 0) {
        size_t best = best_waiter(m);
        snprintf(m->expected, sizeof(m->expected), "%c:%s@10.0.0.1:9090",
                 "abc"[m->waiters[best].owner], m -> items[0]);
        memmove(m->items, m->items + 1, sizeof(m->items[0]) * --m->item_count);
        memmove(m->item_owner, m->item_owner + 1, sizeof(int) * m->item_count);
        m->waiter_count--;
        memmove(&m->waiters[best], &m->waiters[best + 1],
                sizeof(m->waiters[0]) * (m->waiter_count - best));
    }
}

static void model_gone(struct model *m, int owner)
{
    size_t kept = 0;

    for (size_t i = 0; i < m->item_count; i++)
        if (m->item_owner[i] != owner) {
            memmove(m->items[kept], m->items[i], sizeof(m->items[0]));
            m->item_owner[kept++] = m->item_owner[i];
        }
    m->item_count = kept;
    kept = 0;
    for (size_t i = 0; i < m->waiter_count; i++)
        if (m->waiters[i].owner != owner)
            m->waiters[kept++] = m->waiters[i];
    m->waiter_count = kept;
}

static void random_histories_agree_with_the_model(void **state)
{
    struct fixture *f = *state;
    struct scheduler_owner *owners[] = {&f->a, &f->b, &f->c};
    struct model m = {0};
    const char *given = getenv("SKEP_TEST_SEED");
    unsigned seed = given != NULL ? (unsigned)strtoul(given, NULL, 10) : 20240611u;

    print_message("seed %u\n", seed);
    for (unsigned step = 0; step < 20000; step++) {
        int owner = rand_r(&seed) % 3;
        int action = rand_r(&seed) % 20;
        size_t before = f->count;
        if (action == 0) {
            scheduler_owner_gone(f->s, owners[owner], 0);
            model_gone(&m, owner);
            m.expected[0] = '\0';
        } else if (action < 10 && m.item_count < MAX_MODEL) {
            char match_key[16];
            snprintf(match_key, sizeof(match_key), "m%u", step);
            memcpy(m.items[m.item_count], match_key, sizeof(match_key));
            m.item_owner[m.item_count++] = owner;
            model_serve(&m);
            put(f, owners[owner], "k", match_key);
        } else if (m.waiter_count < MAX_MODEL) {
            int priority = rand_r(&seed) % 4;
            m.waiters[m.waiter_count++] =
                (struct model_waiter){.owner = owner, .priority = priority};
            model_serve(&m);
            ask(f, owners[owner], "k", priority);
        } else {
            continue;
        }
        bool found = m.expected[0] == '\0';
        for (size_t i = before; i < f->count && !found; i++)
            found = strcmp(f->log[i % MAX_LOG], m.expected) == 0;
        if (!found)
            fail_msg("step %u: expected %s", step, m.expected);
        struct scheduler_key_counters counters;
        if (scheduler_counters(f->s, tracker_text("k"), &counters)) {
            assert_int_equal(counters.free, m.item_count);
            assert_int_equal(counters.pending, m.waiter_count);
        }
    }
}

static void every_allocation_may_fail(void **state)
{
    struct fixture *f = *state;

    for (long nth = 1;; nth++) {
        struct scheduler *s = NULL;
        struct scheduler_owner owner = {0};
        struct tracker_resource r = resource("m", 1);
        mem_fail_at(nth);
        skep_status rc = scheduler_new(NULL, &events, f, &s, NULL);
        if (rc == SKEP_OK)
            rc = scheduler_put(s, &owner, tracker_text("k"), &r, 0, NULL);
        for (int i = 0; i < 5 && rc == SKEP_OK; i++)
            rc = scheduler_ask(s, &owner, tracker_text("w"), tracker_text("u"), tracker_priority(i),
                               0, NULL);
        if (rc == SKEP_OK)
            rc = scheduler_register(s, &owner, tracker_text("r"), NULL);
        bool reached = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(rc, reached ? SKEP_RESOURCE_EXHAUSTED : SKEP_OK);
        if (s != NULL)
            scheduler_owner_gone(s, &owner, 0);
        scheduler_free(s);
        if (!reached)
            return;
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_free_resource_is_handed_out_at_once),
        TEST(the_oldest_resource_goes_first),
        TEST(higher_priority_is_served_first_and_else_who_came_first),
        TEST(keys_are_apart_and_hold_any_character),
        TEST(one_match_key_counts_once),
        TEST(a_key_handed_out_and_never_used_is_replaced),
        TEST(an_owner_takes_its_resources_along),
        TEST(an_owner_takes_its_requests_along),
        TEST(an_answer_that_cannot_be_told_leaves_the_resource),
        TEST(a_waiting_request_is_answered_from_elsewhere_once),
        TEST(what_comes_from_elsewhere_goes_to_the_highest_priority),
        TEST(what_comes_from_elsewhere_is_not_lost_on_one_that_cannot_be_told),
        TEST(a_taken_resource_is_returned_or_confirmed),
        TEST(a_returned_resource_serves_who_waits),
        TEST(a_taken_resource_goes_with_its_owner_or_its_successor),
        TEST(what_did_not_arrive_is_free_again_in_its_order),
        TEST(what_arrived_is_gone),
        TEST(what_did_not_arrive_serves_who_waits),
        TEST(what_its_server_holds_for_used_stays_gone),
        TEST(what_did_not_arrive_goes_with_its_server),
        TEST(what_is_under_way_counts_against_no_limit),
        TEST(keys_are_bounded_by_what_they_take_where_they_are_listed),
        TEST(bytes_of_a_text_are_those_that_are_written),
        TEST(an_owner_has_so_many_and_no_more),
        TEST(memory_is_bounded_and_given_back),
        TEST(idle_keys_are_forgotten_registered_ones_are_not),
        TEST(changes_are_told_once_a_key),
        TEST(waits_are_counted),
        TEST(random_histories_agree_with_the_model),
        TEST(every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
