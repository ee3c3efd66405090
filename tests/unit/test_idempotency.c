/* The memory of backward calls: at most one step under one id. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/tensor.h"
#include "node/rpc/idempotency.h"

enum { ELEMENTS = 8, CONTENT = 77 };

static const uint8_t alice[IDEMPOTENCY_PEER_BYTES] = {1};
static const uint8_t bob[IDEMPOTENCY_PEER_BYTES] = {2};

struct waiter {
    struct idempotency_waiter waiter;
    int done;
    bool was_worked;
    skep_status status;
    size_t tensor_count;
    float first;
};

static void on_done(struct idempotency_waiter *base, const struct idempotency_outcome *outcome)
{
    struct waiter *w = (struct waiter *)base;

    w->done++;
    w->was_worked = outcome->was_worked;
    w->status = outcome->err != NULL ? outcome->err->status : SKEP_OK;
    w->tensor_count = outcome->tensor_count;
    for (size_t i = 0; i < outcome->tensor_count; i++) {
        w->first = *(const float *)skep_tensor_data(&outcome->tensors[i]->dl_tensor);
        skep_tensor_free(outcome->tensors[i]);
    }
}

static struct idempotency_cache *new_cache(struct idempotency_limits limits)
{
    struct idempotency_cache *cache;

    assert_int_equal(idempotency_new(&limits, &cache, NULL), SKEP_OK);
    return cache;
}

static void id_of(uint8_t id[static IDEMPOTENCY_ID_BYTES], uint32_t n)
{
    memset(id, 0, IDEMPOTENCY_ID_BYTES);
    memcpy(id, &n, sizeof(n));
}

static skep_status begin(struct idempotency_cache *cache, const uint8_t *peer, uint32_t id,
                         const char *uid, uint64_t now, struct waiter *w,
                         struct idempotency_entry **first, struct skep_error *err)
{
    uint8_t request_id[IDEMPOTENCY_ID_BYTES];

    *w = (struct waiter){.waiter.done = on_done};
    id_of(request_id, id);
    return idempotency_begin(cache, peer, request_id, uid, CONTENT, now, &w->waiter, first, err);
}

/* Begins a call that must be the first. */
static struct idempotency_entry *first_of(struct idempotency_cache *cache, const uint8_t *peer,
                                          uint32_t id, uint64_t now)
{
    struct waiter w;
    struct idempotency_entry *entry;

    assert_int_equal(begin(cache, peer, id, "t.1", now, &w, &entry, NULL), SKEP_OK);
    assert_non_null(entry);
    assert_int_equal(w.done, 0);
    return entry;
}

static void finish_ok(struct idempotency_cache *cache, struct idempotency_entry *entry, float value,
                      uint64_t now)
{
    DLManagedTensor *t;
    int64_t shape[2] = {2, ELEMENTS / 2};

    assert_int_equal(skep_tensor_new(DTYPE_F32, 2, shape, &t, NULL), SKEP_OK);
    for (int i = 0; i < ELEMENTS; i++)
        ((float *)skep_tensor_data(&t->dl_tensor))[i] = value;
    idempotency_finish(
        cache, entry,
        &(struct idempotency_outcome){.was_worked = true, .tensors = &t, .tensor_count = 1}, now);
    skep_tensor_free(t);
}

static void repeat_gets_the_remembered_tensors(void **state)
{
    (void)state;
    struct idempotency_cache *cache = new_cache((struct idempotency_limits){0});
    struct idempotency_entry *entry = first_of(cache, alice, 1, 0);
    struct idempotency_stats stats;
    struct waiter w;

    finish_ok(cache, entry, 42, 5);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(begin(cache, alice, 1, "t.1", 10, &w, &entry, NULL), SKEP_OK);
        assert_null(entry);
        assert_int_equal(w.done, 1);
        assert_int_equal(w.status, SKEP_OK);
        assert_int_equal(w.tensor_count, 1);
        assert_true(w.first == 42);
    }
    idempotency_stats(cache, &stats);
    assert_int_equal(stats.entries, 1);
    assert_int_equal(stats.repeats, 3);
    assert_int_equal(stats.bytes, ELEMENTS * sizeof(float));
    idempotency_free(cache);
}

static void repeat_in_flight_waits_for_the_same_outcome(void **state)
{
    (void)state;
    struct idempotency_cache *cache = new_cache((struct idempotency_limits){0});
    struct idempotency_entry *entry = first_of(cache, alice, 1, 0);
    struct idempotency_entry *none;
    struct waiter waiters[3];

    for (int i = 0; i < 3; i++) {
        assert_int_equal(begin(cache, alice, 1, "t.1", 0, &waiters[i], &none, NULL), SKEP_OK);
        assert_null(none);
        assert_int_equal(waiters[i].done, 0);
    }
    finish_ok(cache, entry, 7, 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(waiters[i].done, 1);
        assert_true(waiters[i].was_worked);
        assert_true(waiters[i].first == 7);
    }
    idempotency_free(cache);
}

static void another_peers_same_id_is_another_call(void **state)
{
    (void)state;
    struct idempotency_cache *cache = new_cache((struct idempotency_limits){0});
    struct idempotency_entry *a = first_of(cache, alice, 1, 0);
    struct idempotency_entry *b = first_of(cache, bob, 1, 0);
    struct waiter w;

    finish_ok(cache, a, 1, 0);
    finish_ok(cache, b, 2, 0);
    assert_int_equal(begin(cache, bob, 1, "t.1", 0, &w, &a, NULL), SKEP_OK);
    assert_true(w.first == 2);
    idempotency_free(cache);
}

static void id_of_another_expert_is_refused(void **state)
{
    (void)state;
    struct idempotency_cache *cache = new_cache((struct idempotency_limits){0});
    struct idempotency_entry *entry = first_of(cache, alice, 1, 0);
    struct idempotency_entry *none;
    struct waiter w;
    struct skep_error err;

    assert_int_equal(begin(cache, alice, 1, "t.2", 0, &w, &none, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "t.2"));
    assert_int_equal(w.done, 0);
    finish_ok(cache, entry, 1, 0);
    idempotency_free(cache);
}

static void id_of_other_content_is_refused(void **state)
{
    (void)state;
    struct idempotency_cache *cache = new_cache((struct idempotency_limits){0});
    struct idempotency_entry *entry = first_of(cache, alice, 1, 0);
    struct idempotency_entry *none;
    struct waiter w = {.waiter.done = on_done};
    uint8_t id[IDEMPOTENCY_ID_BYTES];
    struct skep_error err;

    id_of(id, 1);
    for (int ended = 0; ended < 2; ended++) {
        assert_int_equal(
            idempotency_begin(cache, alice, id, "t.1", CONTENT + 1, 0, &w.waiter, &none, &err),
            SKEP_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "other inputs or gradients"));
        assert_int_equal(w.done, 0);
        if (!ended)
            finish_ok(cache, entry, 1, 0);
    }
    idempotency_free(cache);
}

/* Every byte counts, wherever it stands, and so does where one tensor ends. */
static void content_differs_with_any_number(void **state)
{
    (void)state;
    enum { MOST = 70 };
    uint8_t bytes[MOST] = {0};

    for (int64_t size = 1; size <= MOST; size++) {
        DLTensor t = {.data = bytes,
                      .device = {.device_type = kDLCPU},
                      .ndim = 1,
                      .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
                      .shape = &size};
        const DLTensor *list[] = {&t, &t};
        uint64_t zeros = idempotency_content(list, 1);
        uint64_t twice = idempotency_content(list, 2);

        assert_true(zeros == idempotency_content(list, 1));
        assert_true(zeros != twice);
        for (int64_t i = 0; i < size; i++) {
            bytes[i] = 0x80;
            assert_true(idempotency_content(list, 1) != zeros);
            assert_true(idempotency_content(list, 2) != twice);
            bytes[i] = 0;
        }
    }
}

static void failed_work_is_remembered_and_unworked_calls_are_not(void **state)
{
    (void)state;
    struct idempotency_cache *cache = new_cache((struct idempotency_limits){0});
    struct idempotency_entry *entry = first_of(cache, alice, 1, 0);
    struct skep_error failed = {.status = SKEP_INTERNAL, .message = "it broke"};
    struct skep_error full = {.status = SKEP_RESOURCE_EXHAUSTED, .message = "full"};
    struct waiter w;
    struct idempotency_entry *none;

    idempotency_finish(cache, entry,
                       &(struct idempotency_outcome){.was_worked = true, .err = &failed}, 0);
    assert_int_equal(begin(cache, alice, 1, "t.1", 0, &w, &none, NULL), SKEP_OK);
    assert_int_equal(w.done, 1);
    assert_int_equal(w.status, SKEP_INTERNAL);

    entry = first_of(cache, alice, 2, 0);
    assert_int_equal(begin(cache, alice, 2, "t.1", 0, &w, &none, NULL), SKEP_OK);
    idempotency_finish(cache, entry, &(struct idempotency_outcome){.err = &full}, 0);
    assert_int_equal(w.done, 1);
    assert_false(w.was_worked);
    finish_ok(cache, first_of(cache, alice, 2, 0), 3, 0);
    idempotency_free(cache);
}

static void oldest_are_forgotten_at_the_limit_but_never_those_under_way(void **state)
{
    (void)state;
    struct idempotency_cache *cache = new_cache((struct idempotency_limits){.max_entries = 3});
    struct idempotency_entry *under_way = first_of(cache, alice, 1, 0);
    struct idempotency_entry *more[2];
    struct idempotency_entry *entry;
    struct idempotency_stats stats;
    struct skep_error err;
    struct waiter w;

    for (uint32_t i = 2; i <= 4; i++) /* the last forgets 2 */
        finish_ok(cache, first_of(cache, alice, i, 0), (float)i, 0);
    idempotency_stats(cache, &stats);
    assert_int_equal(stats.entries, 3);
    assert_int_equal(stats.forgotten, 1);
    assert_int_equal(begin(cache, alice, 3, "t.1", 0, &w, &entry, NULL), SKEP_OK);
    assert_null(entry);

    more[0] = first_of(cache, alice, 2, 0); /* forgets 3 */
    more[1] = first_of(cache, alice, 5, 0); /* forgets 4 */
    assert_int_equal(begin(cache, alice, 6, "t.1", 0, &w, &entry, &err), SKEP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "at most 3"));
    for (int i = 0; i < 2; i++)
        finish_ok(cache, more[i], 1, 0);

    assert_int_equal(begin(cache, alice, 1, "t.1", 0, &w, &entry, NULL), SKEP_OK);
    assert_null(entry);
    assert_int_equal(w.done, 0);
    finish_ok(cache, under_way, 1, 0);
    assert_int_equal(w.done, 1);
    idempotency_free(cache);
}

static void results_over_the_limit_go_but_their_ids_stay(void **state)
{
    (void)state;
    const size_t each = ELEMENTS * sizeof(float);
    struct idempotency_cache *cache = new_cache((struct idempotency_limits){.max_bytes = 2 * each});
    struct idempotency_entry *entry;
    struct idempotency_stats stats;
    struct waiter w;

    for (uint32_t i = 1; i <= 4; i++)
        finish_ok(cache, first_of(cache, alice, i, 0), (float)i, 0);
    idempotency_stats(cache, &stats);
    assert_int_equal(stats.entries, 4);
    assert_int_equal(stats.bytes, 2 * each);
    for (uint32_t i = 1; i <= 4; i++) {
        assert_int_equal(begin(cache, alice, i, "t.1", 0, &w, &entry, NULL), SKEP_OK);
        assert_null(entry);
        assert_true(w.was_worked);
        assert_int_equal(w.status, i <= 2 ? SKEP_DATA_LOSS : SKEP_OK);
    }
    idempotency_free(cache);
}

static void ids_expire_after_their_time(void **state)
{
    (void)state;
    struct idempotency_cache *cache = new_cache((struct idempotency_limits){.ttl_us = 100});
    struct idempotency_entry *entry;
    struct idempotency_stats stats;
    struct waiter w;

    finish_ok(cache, first_of(cache, alice, 1, 0), 1, 50);
    assert_int_equal(begin(cache, alice, 1, "t.1", 149, &w, &entry, NULL), SKEP_OK);
    assert_null(entry);
    finish_ok(cache, first_of(cache, alice, 1, 150), 1, 150);
    idempotency_stats(cache, &stats);
    assert_int_equal(stats.entries, 1);
    assert_int_equal(stats.forgotten, 0);
    idempotency_free(cache);
}

static void many_ids_are_told_apart(void **state)
{
    (void)state;
    struct idempotency_cache *cache = new_cache((struct idempotency_limits){0});
    struct idempotency_entry *entry;
    struct waiter w;

    for (uint32_t i = 0; i < 5000; i++)
        finish_ok(cache, first_of(cache, i % 2 == 0 ? alice : bob, i, 0), (float)i, 0);
    for (uint32_t i = 0; i < 5000; i++) {
        assert_int_equal(begin(cache, i % 2 == 0 ? alice : bob, i, "t.1", 0, &w, &entry, NULL),
                         SKEP_OK);
        assert_null(entry);
        assert_true(w.first == (float)i);
    }
    idempotency_free(cache);
}

/* Without memory for the result the id must stay: forgetting it would allow a second step. */
static void every_failed_allocation_keeps_the_promise(void **state)
{
    (void)state;
    for (long n = 1; n < 8; n++) {
        struct idempotency_cache *cache = new_cache((struct idempotency_limits){0});
        struct idempotency_entry *entry = first_of(cache, alice, 1, 0);
        DLManagedTensor *t;
        int64_t shape[1] = {1};
        struct waiter w;

        assert_int_equal(skep_tensor_new(DTYPE_F32, 1, shape, &t, NULL), SKEP_OK);
        *(float *)skep_tensor_data(&t->dl_tensor) = 9;
        mem_fail_at(n);
        idempotency_finish(
            cache, entry,
            &(struct idempotency_outcome){.was_worked = true, .tensors = &t, .tensor_count = 1}, 0);
        assert_int_equal(begin(cache, alice, 1, "t.1", 0, &w, &entry, NULL), SKEP_OK);
        mem_fail_at(0);
        assert_null(entry);
        assert_int_equal(w.done, 1);
        assert_true(w.was_worked);
        assert_true(w.status != SKEP_OK || w.first == 9);
        skep_tensor_free(t);
        idempotency_free(cache);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeat_gets_the_remembered_tensors),
        cmocka_unit_test(repeat_in_flight_waits_for_the_same_outcome),
        cmocka_unit_test(another_peers_same_id_is_another_call),
        cmocka_unit_test(id_of_another_expert_is_refused),
        cmocka_unit_test(id_of_other_content_is_refused),
        cmocka_unit_test(content_differs_with_any_number),
        cmocka_unit_test(failed_work_is_remembered_and_unworked_calls_are_not),
        cmocka_unit_test(oldest_are_forgotten_at_the_limit_but_never_those_under_way),
        cmocka_unit_test(results_over_the_limit_go_but_their_ids_stay),
        cmocka_unit_test(ids_expire_after_their_time),
        cmocka_unit_test(many_ids_are_told_apart),
        cmocka_unit_test(every_failed_allocation_keeps_the_promise),
    };
    return cmocka_run_group_tests_name("once", tests, NULL, NULL);
}
