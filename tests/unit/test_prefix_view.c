/* What a prefix' records say of the level below them. */
#include "unit.h"
#include <string.h>
#include "base/alloc.h"
#include "dht/directory/prefix_view.h"

enum { NOW = 1000000 };

struct said {
    uint8_t peer;
    uint32_t depth;
    int64_t expires_at;
    size_t coord_count;
    int64_t coords[4];
    size_t below_len;
    int64_t below[12];
};

static void put(struct collection *c, const struct said *said)
{
    struct record r = {
        .kind = RECORD_PREFIX,
        .seq = (uint64_t)NOW * 1000 + said->peer,
        .expires_at = said->expires_at,
        .prefix = {.prefix = "ffn.3.",
                   .endpoint_count = 1,
                   .endpoints = {{.host = "192.0.2.7", .port = said->peer}},
                   .parts = 1,
                   .depth = said->depth,
                   .load = {.queued_tasks = 10u * said->peer},
                   .coord_count = said->coord_count,
                   .below_len = said->below_len},
    };

    r.peer_id[0] = said->peer;
    r.prefix.coords = mem_alloc(16 * sizeof(int64_t));
    assert_non_null(r.prefix.coords);
    memcpy(r.prefix.coords, said->coords, said->coord_count * sizeof(int64_t));
    if (said->below_len > 0) {
        memcpy(r.prefix.coords + 4, said->below, said->below_len * sizeof(int64_t));
        r.prefix.below = r.prefix.coords + 4;
    }
    collection_put(c, &r, said->peer);
}

static struct prefix_view *view_of(const struct said *said, size_t count)
{
    struct collection *c = collection_new();

    assert_non_null(c);
    for (size_t i = 0; i < count; i++)
        put(c, &said[i]);
    struct prefix_view *view = prefix_view_new(&c, 1, NOW, NULL, NULL, NULL);
    assert_non_null(view);
    collection_unref(c);
    return view;
}

/* Of the view under a coordinate; NULL: it has to be asked for. */
static struct prefix_view *below(const struct prefix_view *view, int64_t coord)
{
    size_t index = prefix_view_find(view, coord);

    assert_true(index != SIZE_MAX);
    return prefix_view_below(view, index, NOW, NULL);
}

static void expect_coords(const struct prefix_view *view, const int64_t *expected, size_t count)
{
    size_t n;

    assert_non_null(view);
    const int64_t *coords = prefix_view_coords(view, &n);
    assert_int_equal(n, count);
    assert_memory_equal(coords, expected, count * sizeof(*expected));
}

static void the_words_of_all_nodes_are_joined(void **state)
{
    (void)state;
    const struct said said[] = {
        {1, 2, NOW + 60, 2, {0, 5}, 5, {2, 1, 9, 1, 7}},
        {2, 2, NOW + 90, 2, {5, 6}, 5, {1, 8, 2, 0, 1}},
    };
    struct prefix_view *view = view_of(said, 2);
    struct provider found[4];

    struct prefix_view *of_0 = below(view, 0), *of_5 = below(view, 5), *of_6 = below(view, 6);
    expect_coords(of_0, (int64_t[]){1, 9}, 2);
    expect_coords(of_5, (int64_t[]){7, 8}, 2);
    expect_coords(of_6, (int64_t[]){0, 1}, 2);
    /* Coordinate 8 completes a UID, and peer 2 serves it at its endpoint, until its record ends. */
    assert_true(prefix_view_is_alive(of_5, 1, 1, NOW) && prefix_view_is_leaf(of_5, 1));
    assert_false(prefix_view_is_alive(of_5, 1, 2, NOW));
    assert_int_equal(prefix_view_providers(of_5, 1, NOW, found, 4), 1);
    assert_int_equal(found[0].peer_id[0], 2);
    assert_int_equal(found[0].endpoints[0].port, 2);
    assert_string_equal(found[0].endpoints[0].host, "192.0.2.7");
    assert_int_equal(found[0].expires_at, NOW + 90);
    assert_int_equal(found[0].load.queued_tasks, 20);
    prefix_view_unref(of_0);
    prefix_view_unref(of_5);
    prefix_view_unref(of_6);
    prefix_view_unref(view);
}

static void a_node_that_does_not_say_has_to_be_asked(void **state)
{
    (void)state;
    const struct said said[] = {
        {1, 2, NOW + 60, 2, {0, 5}, 4, {1, 1, 1, 7}},
        {2, 2, NOW + 60, 1, {5}, 0, {0}},
        {3, 0, NOW + 60, 1, {6}, 0, {0}}, /* says not even how deep it is */
    };
    struct prefix_view *view = view_of(said, 3);
    struct prefix_view *of_0 = below(view, 0);

    expect_coords(of_0, (int64_t[]){1}, 1);
    assert_null(below(view, 5));
    assert_null(below(view, 6));
    prefix_view_unref(of_0);
    prefix_view_unref(view);
}

static void who_serves_the_shorter_uid_has_nothing_below(void **state)
{
    (void)state;
    const struct said said[] = {
        {1, 2, NOW + 60, 1, {5}, 2, {1, 7}},
        {2, 1, NOW + 60, 1, {5}, 0, {0}},
    };
    struct prefix_view *view = view_of(said, 2);
    struct prefix_view *of_5 = below(view, 5);

    expect_coords(of_5, (int64_t[]){7}, 1);
    prefix_view_unref(of_5);
    prefix_view_unref(view);
}

static void what_has_ended_since_is_left_out(void **state)
{
    (void)state;
    const struct said said[] = {
        {1, 2, NOW + 60, 1, {5}, 2, {1, 7}},
        {2, 2, NOW + 10, 1, {5}, 2, {1, 8}},
    };
    struct prefix_view *view = view_of(said, 2);
    struct prefix_view *of_5 = prefix_view_below(view, 0, NOW + 20, NULL);

    expect_coords(of_5, (int64_t[]){7}, 1);
    prefix_view_unref(of_5);
    prefix_view_unref(view);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    const struct said said[] = {
        {1, 2, NOW + 60, 2, {0, 5}, 5, {2, 1, 9, 1, 7}},
        {2, 2, NOW + 90, 2, {5, 6}, 5, {1, 8, 2, 0, 1}},
    };
    struct collection *c = collection_new();
    bool failed = true;

    for (size_t i = 0; i < 2; i++)
        put(c, &said[i]);
    for (long nth = 1; failed; nth++) {
        mem_fail_at(nth);
        struct prefix_view *view = prefix_view_new(&c, 1, NOW, NULL, NULL, NULL);
        struct prefix_view *of_5 = view != NULL ? below(view, 5) : NULL;
        failed = !mem_fail_pending();
        mem_fail_at(0);
        assert_true(failed || of_5 != NULL);
        prefix_view_unref(of_5);
        prefix_view_unref(view);
    }
    collection_unref(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_words_of_all_nodes_are_joined),
        cmocka_unit_test(a_node_that_does_not_say_has_to_be_asked),
        cmocka_unit_test(who_serves_the_shorter_uid_has_nothing_below),
        cmocka_unit_test(what_has_ended_since_is_left_out),
        cmocka_unit_test(every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
