/* Copies beside writers: each is of one moment. */
#include <stdatomic.h>

#include "base/clock.h"
#include "base/thread.h"
#include "checkpoint_fixture.h"
#include "experts/snapshot.h"
#include "until.h"

enum { WORDS = 1 << 20, PART_WORDS = WORDS / 2, COPIES = 40 };

struct shared {
    struct snapshot_lock gate;
    uint32_t *words; /* all equal between two writes */
    uint32_t version;
    atomic_bool stop;
    atomic_uint writes;
};

static void write_on(void *arg)
{
    struct shared *s = arg;

    while (!atomic_load(&s->stop)) {
        snapshot_write_begin(&s->gate);
        s->version++;
        for (size_t i = 0; i < WORDS; i++)
            s->words[i] = s->version;
        snapshot_write_end(&s->gate);
        atomic_fetch_add(&s->writes, 1);
    }
}

struct moment {
    const struct shared *shared;
    uint32_t version;
    unsigned calls;
};

static void note_moment(void *arg)
{
    struct moment *m = arg;

    m->version = m->shared->version;
    m->calls++;
}

static void copies_are_of_one_moment(void **state)
{
    (void)state;
    struct shared s = {.words = calloc(WORDS, sizeof(uint32_t))};
    uint32_t *copy = calloc(WORDS, sizeof(uint32_t));
    struct thread writer = {0};
    struct skep_error err;
    bool torn = false;
    bool wrong_moment = false;

    snapshot_lock_init(&s.gate);
    must(thread_start(&writer, "writer", write_on, &s, &err), &err);
    for (unsigned n = 0; n < COPIES; n++) {
        struct moment m = {.shared = &s};
        const struct snapshot_part parts[2] = {
            {(const uint8_t *)s.words, (uint8_t *)copy, PART_WORDS * sizeof(*copy)},
            {(const uint8_t *)(s.words + PART_WORDS), (uint8_t *)(copy + PART_WORDS),
             (WORDS - PART_WORDS) * sizeof(*copy)},
        };

        if (snapshot_take(&s.gate, parts, 2, note_moment, &m, CLOCK_NEVER, &err) != SKEP_OK)
            break;
        for (size_t i = 0; i < WORDS; i++)
            torn = torn || copy[i] != copy[0];
        wrong_moment = wrong_moment || m.version != copy[0] || m.calls != 1;
    }
    atomic_store(&s.stop, true);
    thread_join(&writer);
    assert_false(torn);
    assert_false(wrong_moment);
    assert_true(atomic_load(&s.writes) > 1); /* the writer was never shut out */
    snapshot_lock_fini(&s.gate);
    free(s.words);
    free(copy);
}

static void nothing(void *arg)
{
    (void)arg;
}

static void a_write_that_does_not_end_is_not_waited_for(void **state)
{
    (void)state;
    struct snapshot_lock gate;
    struct skep_error err = {0};
    const uint8_t from[4] = {1, 2, 3, 4};
    uint8_t to[4] = {0};
    const struct snapshot_part part = {from, to, sizeof(from)};

    snapshot_lock_init(&gate);
    snapshot_write_begin(&gate);
    assert_int_equal(snapshot_take(&gate, &part, 1, nothing, NULL, clock_mono_us(), &err),
                     SKEP_DEADLINE_EXCEEDED);
    assert_int_equal(to[0], 0);
    snapshot_write_end(&gate);
    must(snapshot_take(&gate, &part, 1, nothing, NULL, clock_mono_us(), &err), &err);
    assert_memory_equal(to, from, sizeof(from));
    /* Nothing to copy is copied at once. */
    must(snapshot_take(&gate, NULL, 0, nothing, NULL, clock_mono_us(), &err), &err);
    snapshot_lock_fini(&gate);
}

struct taking {
    struct snapshot_lock *gate;
    struct snapshot_part part;
};

static void take_once(void *arg)
{
    struct taking *t = arg;
    struct skep_error err;

    (void)!snapshot_take(t->gate, &t->part, 1, nothing, NULL, CLOCK_NEVER, &err);
}

static bool is_wanted(struct snapshot_lock *gate)
{
    pthread_mutex_lock(&gate->lock);
    bool wanted = gate->is_wanted;
    pthread_mutex_unlock(&gate->lock);
    return wanted;
}

/* What saving costs a training step is told: nothing without a copy, and what it waited for one. */
static void what_a_write_waits_for_a_copy_is_told(void **state)
{
    (void)state;
    struct snapshot_lock gate;
    uint8_t *from = calloc(WORDS, sizeof(uint32_t)), *to = calloc(WORDS, sizeof(uint32_t));
    struct taking t = {&gate, {from, to, WORDS * sizeof(uint32_t)}};
    struct skep_error err;

    snapshot_lock_init(&gate);
    snapshot_write_begin(&gate);
    snapshot_write_end(&gate);
    assert_int_equal(snapshot_longest_wait_us(&gate), 0);
    /* The taker may be the quicker one and be done before the second write begins: once more. */
    for (int turn = 0; turn < 1000 && snapshot_longest_wait_us(&gate) == 0; turn++) {
        struct thread taker = {0};
        snapshot_write_begin(&gate);
        must(thread_start(&taker, "taker", take_once, &t, &err), &err);
        assert_true(UNTIL(is_wanted(&gate), 20000));
        snapshot_write_end(&gate);
        snapshot_write_begin(&gate);
        snapshot_write_end(&gate);
        thread_join(&taker);
    }
    assert_true(snapshot_longest_wait_us(&gate) > 0);
    snapshot_lock_fini(&gate);
    free(from);
    free(to);
}

struct trainer {
    struct expert *expert;
    atomic_bool stop;
};

static void train_on(void *arg)
{
    struct trainer *t = arg;

    for (unsigned i = 0; !atomic_load(&t->stop); i++)
        train(t->expert, i, i + 1);
}

/* A copy taken in the middle of training is what another expert has after as many steps. */
static void a_training_expert_is_copied_between_steps(void **state)
{
    (void)state;
    struct trainer t = {.expert = create_default(1)};
    struct expert *again = create_default(1);
    struct expert_counters counters = {0};
    struct expert_counters own;
    struct thread thread = {0};
    struct skep_error err;
    unsigned done = 0;

    must(thread_start(&thread, "trainer", train_on, &t, &err), &err);
    for (int n = 0; n < 10; n++) {
        float *copy = mem_aligned(64, expert_state_bytes(t.expert));

        skep_status rc = expert_snapshot(t.expert, copy, &counters, CLOCK_NEVER, &err);
        if (rc == SKEP_OK) {
            train(again, done, (unsigned)counters.updates);
            done = (unsigned)counters.updates;
            float *expected = copy_of(again, &own);
            if (memcmp(expected, copy, expert_state_bytes(again)) != 0 ||
                own.steps != counters.steps)
                rc = SKEP_INTERNAL;
            mem_free(expected);
        }
        mem_free(copy);
        if (rc != SKEP_OK) {
            atomic_store(&t.stop, true);
            thread_join(&thread);
            fail_msg("copy %d, after %u steps, differs", n, done);
        }
    }
    atomic_store(&t.stop, true);
    thread_join(&thread);
    expert_free(t.expert);
    expert_free(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_are_of_one_moment),
        cmocka_unit_test(a_write_that_does_not_end_is_not_waited_for),
        cmocka_unit_test(what_a_write_waits_for_a_copy_is_told),
        cmocka_unit_test(a_training_expert_is_copied_between_steps),
    };
    return cmocka_run_group_tests_name("snapshot", tests, NULL, NULL);
}
