/* The folder of checkpoints: generations, left-overs, and what is chosen at loading. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "checkpoint_fixture.h"

#define UID_TEXT "ffn.0.1"

struct place {
    struct tempdir base;
    char path[512]; /* of the folder of checkpoints */
    struct checkpoint_dir dir;
};

static int set_up(void **state)
{
    struct place *p = calloc(1, sizeof(*p));
    struct skep_error err;

    tempdir_make(&p->base);
    tempdir_file(&p->base, "kept", p->path);
    must(checkpoint_dir_open(&p->dir, p->path, true, &err), &err);
    *state = p;
    return 0;
}

static void remove_tree(const char *path)
{
    char command[600];

    snprintf(command, sizeof(command), "rm -rf '%s'", path);
    if (system(command) != 0)
        fail_msg("cannot remove %s", path);
}

static int tear_down(void **state)
{
    struct place *p = *state;

    checkpoint_dir_close(&p->dir);
    remove_tree(p->base.path);
    free(p);
    return 0;
}

static const char *inside(const struct place *p, const char *name, char out[600])
{
    snprintf(out, 600, "%s/" UID_TEXT "/%s", p->path, name);
    return out;
}

static bool is_there(const struct place *p, const char *name)
{
    char path[600];
    struct stat info;

    return lstat(inside(p, name, path), &info) == 0;
}

static void save(struct place *p, struct expert *e, size_t keep)
{
    struct checkpoint_header header = {
        .uid = UID_TEXT, .options = *expert_settings(e), .has_training = true};
    struct skep_error err;
    float *copy = copy_of(e, &header.counters);

    must(checkpoint_dir_save(&p->dir, &header, e, copy, keep, &err), &err);
    mem_free(copy);
}

static skep_status apply(void *arg, const struct checkpoint *c, const char *path,
                         struct skep_error *err)
{
    return checkpoint_apply(c, path, arg, err);
}

static skep_status load(struct place *p, struct expert *e, struct skep_error *err)
{
    return checkpoint_dir_load(&p->dir, UID_TEXT, apply, e, err);
}

static uint64_t loaded_updates(struct place *p)
{
    struct expert *e = create_default(9);
    struct skep_error err;

    must(load(p, e, &err), &err);
    uint64_t updates = expert_update_count(e);
    expert_free(e);
    return updates;
}

static skep_status note_updates(void *arg, const struct checkpoint *c, const char *path,
                                struct skep_error *err)
{
    (void)path;
    (void)err;
    *(uint64_t *)arg = checkpoint_header(c)->counters.updates;
    return SKEP_OK;
}

/* Of the newest whose header is whole. */
static uint64_t peeked_updates(struct place *p)
{
    uint64_t updates = UINT64_MAX;
    struct skep_error err;

    must(checkpoint_dir_peek(&p->dir, UID_TEXT, note_updates, &updates, &err), &err);
    return updates;
}

static void put(const struct place *p, const char *name, const char *text)
{
    char path[600];

    write_file(inside(p, name, path), text, strlen(text));
}

static void generations_are_kept_and_removed(void **state)
{
    struct place *p = *state;
    struct expert *e = create_default(1);
    char path[600];
    char target[100] = "";

    for (unsigned i = 1; i <= 4; i++) {
        train(e, i, i + 1);
        save(p, e, 2);
    }
    assert_false(is_there(p, "checkpoint_2_2.safetensors"));
    assert_true(is_there(p, "checkpoint_3_3.safetensors"));
    assert_true(is_there(p, "checkpoint_4_4.safetensors"));
    assert_true(readlink(inside(p, "checkpoint_last", path), target, sizeof(target) - 1) > 0);
    assert_string_equal(target, "checkpoint_4_4.safetensors");
    save(p, e, 1);
    assert_false(is_there(p, "checkpoint_4_4.safetensors"));
    assert_true(is_there(p, "checkpoint_4_5.safetensors"));
    save(p, e, 0); /* none is removed */
    assert_true(is_there(p, "checkpoint_4_5.safetensors"));
    expert_free(e);
}

/* A weight file with fewer updates may be the newer one, after an import or a return to an old one.
 */
static void the_newest_is_that_of_the_highest_number(void **state)
{
    struct place *p = *state;
    struct expert *more = create_default(1);
    struct expert *less = create_default(2);

    train(more, 0, 12);
    save(p, more, 5);
    train(less, 0, 3);
    save(p, less, 5);
    assert_int_equal(loaded_updates(p), 3);
    for (unsigned i = 3; i < 11; i++) {
        train(less, i, i + 1);
        save(p, less, 20);
    }
    /* Numbers of two digits are higher, too. */
    assert_true(is_there(p, "checkpoint_11_10.safetensors"));
    assert_int_equal(loaded_updates(p), 11);
    expert_free(more);
    expert_free(less);
}

static void damaged_and_foreign_ones_are_passed_over(void **state)
{
    struct place *p = *state;
    struct expert *e = create_default(1);
    char path[600];
    size_t len;
    struct skep_error err = {0};

    train(e, 0, 1);
    save(p, e, 9);
    train(e, 1, 2);
    save(p, e, 9);
    uint8_t *data = read_file(inside(p, "checkpoint_2_2.safetensors", path), &len);
    data[len - 1] ^= 1;
    write_file(path, data, len);
    assert_int_equal(loaded_updates(p), 1);
    assert_int_equal(peeked_updates(p), 2); /* the damage is behind the header */
    put(p, "checkpoint_9_9.safetensors", "PK\003\004");
    put(p, "checkpoint_10_10.safetensors", "");
    assert_int_equal(mkdir(inside(p, "checkpoint_11_11.safetensors", path), 0777), 0);
    assert_int_equal(loaded_updates(p), 1);
    assert_int_equal(peeked_updates(p), 2);
    /* The next one gets a number of its own, and is the newest. */
    train(e, 2, 3);
    save(p, e, 9);
    assert_true(is_there(p, "checkpoint_3_12.safetensors"));
    assert_int_equal(loaded_updates(p), 3);

    unlink(inside(p, "checkpoint_3_12.safetensors", path));
    unlink(inside(p, "checkpoint_1_1.safetensors", path));
    struct expert *fresh = create_default(5);
    struct expert *same = create_default(5);
    assert_int_equal(load(p, fresh, &err), SKEP_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "none of its checkpoints can be used, of which it has 4"));
    assert_non_null(strstr(err.message, "checkpoint_11_11.safetensors"));
    assert_true(same_state(fresh, same));
    expert_free(fresh);
    expert_free(same);
    expert_free(e);
    free(data);
}

static void names_that_are_no_generations_are_left_alone(void **state)
{
    struct place *p = *state;
    static const char *const names[] = {
        "notes.txt",
        "checkpoint_1.safetensors",
        "checkpoint_01_1.safetensors",
        "checkpoint_1_-1.safetensors",
        "checkpoint_1_18446744073709551615.safetensors",
        "checkpoint_1_99999999999999999999.safetensors",
        "checkpoint_1_7.safetensors.bak",
    };
    struct expert *e = create_default(1);

    save(p, e, 1);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        put(p, names[i], "x");
    save(p, e, 1);
    assert_true(is_there(p, "checkpoint_0_2.safetensors"));
    assert_int_equal(loaded_updates(p), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_true(is_there(p, names[i]));
    expert_free(e);
}

static void left_overs_are_removed(void **state)
{
    struct place *p = *state;
    struct expert *e = create_default(1);

    save(p, e, 2);
    put(p, "checkpoint_7_9.safetensors.tmp.123.4", "half of a file");
    put(p, "checkpoint_last.tmp.link", "");
    put(p, "mine.tmp.1", "not ours");
    checkpoint_dir_clean(&p->dir, UID_TEXT);
    assert_false(is_there(p, "checkpoint_7_9.safetensors.tmp.123.4"));
    assert_false(is_there(p, "checkpoint_last.tmp.link"));
    assert_true(is_there(p, "mine.tmp.1"));
    assert_true(is_there(p, "checkpoint_0_1.safetensors"));
    checkpoint_dir_clean(&p->dir, "ffn.no.such");
    expert_free(e);
}

static void without_any_it_is_not_found(void **state)
{
    struct place *p = *state;
    struct expert *e = create_default(1);
    struct skep_error err = {0};
    char path[600];

    assert_int_equal(load(p, e, &err), SKEP_NOT_FOUND);
    assert_false(checkpoint_dir_has(&p->dir, UID_TEXT));
    snprintf(path, sizeof(path), "%s/" UID_TEXT, p->path);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(load(p, e, &err), SKEP_NOT_FOUND);
    save(p, e, 1);
    assert_true(checkpoint_dir_has(&p->dir, UID_TEXT));
    expert_free(e);
}

static void uids_that_are_paths_are_refused(void **state)
{
    struct place *p = *state;
    static const char *const uids[] = {"", "../x.1", "a/b.1", ".hidden.1", "/etc.1"};
    struct expert *e = create_default(1);

    for (size_t i = 0; i < sizeof(uids) / sizeof(uids[0]); i++) {
        struct skep_error err = {0};
        struct checkpoint_header header = {.uid = uids[i], .options = *expert_settings(e)};
        float *copy = copy_of(e, &header.counters);

        assert_int_equal(checkpoint_dir_save(&p->dir, &header, e, copy, 1, &err),
                         SKEP_INVALID_ARGUMENT);
        assert_int_equal(checkpoint_dir_load(&p->dir, uids[i], apply, e, &err),
                         SKEP_INVALID_ARGUMENT);
        mem_free(copy);
    }
    expert_free(e);
}

static void one_process_at_a_time_writes(void **state)
{
    struct place *p = *state;
    struct checkpoint_dir second;
    struct skep_error err = {0};

    assert_int_equal(checkpoint_dir_open(&second, p->path, true, &err), SKEP_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "another process"));
    must(checkpoint_dir_open(&second, p->path, false, &err), &err); /* reading is free */
    checkpoint_dir_close(&second);
    checkpoint_dir_close(&p->dir);
    must(checkpoint_dir_open(&p->dir, p->path, true, &err), &err);
}

static void memory_that_runs_short_is_no_damage(void **state)
{
    struct place *p = *state;
    struct expert *e = create_default(1);
    bool done = false;

    save(p, e, 5);
    train(e, 0, 1);
    save(p, e, 5);
    for (long nth = 1; !done; nth++) {
        struct expert *fresh = create_default(2);
        struct skep_error err = {0};

        mem_fail_at(nth);
        skep_status rc = load(p, fresh, &err);
        done = mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(rc, done ? SKEP_OK : SKEP_RESOURCE_EXHAUSTED);
        assert_int_equal(expert_update_count(fresh), done ? 1 : 0); /* never the older one */
        expert_free(fresh);
    }
    expert_free(e);
}

static void a_save_that_fails_leaves_what_was_there(void **state)
{
    struct place *p = *state;
    struct expert *e = create_default(1);
    bool done = false;

    save(p, e, 1);
    train(e, 0, 1);
    struct checkpoint_header header = {
        .uid = UID_TEXT, .options = *expert_settings(e), .has_training = true};
    float *copy = copy_of(e, &header.counters);
    for (long nth = 1; !done; nth++) {
        struct skep_error err = {0};
        uint64_t updates;

        mem_fail_at(nth);
        skep_status rc = checkpoint_dir_save(&p->dir, &header, e, copy, 1, &err);
        done = mem_fail_pending();
        mem_fail_at(0);
        assert_true(rc == SKEP_RESOURCE_EXHAUSTED || rc == SKEP_OK);
        updates = loaded_updates(p);
        assert_true(rc == SKEP_OK ? updates == 1 : updates <= 1);
        checkpoint_dir_clean(&p->dir, UID_TEXT);
    }
    mem_free(copy);
    expert_free(e);
}

int main(void)
{
#define WITH_PLACE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH_PLACE(generations_are_kept_and_removed),
        WITH_PLACE(the_newest_is_that_of_the_highest_number),
        WITH_PLACE(damaged_and_foreign_ones_are_passed_over),
        WITH_PLACE(names_that_are_no_generations_are_left_alone),
        WITH_PLACE(left_overs_are_removed),
        WITH_PLACE(without_any_it_is_not_found),
        WITH_PLACE(uids_that_are_paths_are_refused),
        WITH_PLACE(one_process_at_a_time_writes),
        WITH_PLACE(memory_that_runs_short_is_no_damage),
        WITH_PLACE(a_save_that_fails_leaves_what_was_there),
    };
    return cmocka_run_group_tests_name("checkpoint_dir", tests, NULL, NULL);
}
