/* Files that are written whole or not at all. */
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "base/file_kind.h"
#include "tempdir.h"

/* Counted from the next call on: 1 fails. In the place of the C library's. */
static int failing_fsync;

int fsync(int fd)
{
    if (failing_fsync > 0 && --failing_fsync == 0) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

static void assert_content(const char *path, const char *expected)
{
    struct file_map map;

    assert_int_equal(file_map(&map, path, NULL), SKEP_OK);
    assert_int_equal(map.len, strlen(expected));
    assert_memory_equal(map.data, expected, map.len);
    file_unmap(&map);
}

typedef skep_status (*commit_fn)(struct file_writer *w, struct skep_error *err);

static skep_status write_text(const char *path, const char *text, commit_fn commit,
                              struct skep_error *err)
{
    struct file_writer writer;

    assert_int_equal(file_writer_open(&writer, path, 0600, NULL), SKEP_OK);
    assert_int_equal(file_writer_write(&writer, text, strlen(text), NULL), SKEP_OK);
    skep_status rc = commit(&writer, err);
    file_writer_abort(&writer);
    return rc;
}

static void commit_replaces_and_commit_new_does_not(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    struct skep_error err;
    struct stat st;

    tempdir_make(&dir);
    tempdir_file(&dir, "file", path);
    assert_int_equal(write_text(path, "one", file_writer_commit_new, NULL), SKEP_OK);
    assert_int_equal(write_text(path, "two", file_writer_commit_new, &err),
                     SKEP_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, path));
    assert_content(path, "one");
    assert_int_equal(write_text(path, "three", file_writer_commit, NULL), SKEP_OK);
    assert_content(path, "three");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(tempdir_count(&dir, 0), 1); /* nothing temporary is left */
    tempdir_remove(&dir);
}

static void failed_commit_leaves_the_old_file(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    struct skep_error err;

    tempdir_make(&dir);
    tempdir_file(&dir, "file", path);
    assert_int_equal(write_text(path, "old", file_writer_commit, NULL), SKEP_OK);
    failing_fsync = 1;
    assert_int_not_equal(write_text(path, "new", file_writer_commit, NULL), SKEP_OK);
    assert_content(path, "old");
    /* The folder's turn: the file is there, and the sentence says what is not sure. */
    failing_fsync = 2;
    assert_int_not_equal(write_text(path, "new", file_writer_commit, &err), SKEP_OK);
    assert_non_null(strstr(err.message, "folder"));
    assert_content(path, "new");
    assert_int_equal(tempdir_count(&dir, 0), 1);
    tempdir_remove(&dir);
}

static void kinds_are_told_by_how_files_begin(void **state)
{
    (void)state;
#define BYTES(text) text, sizeof(text) - 1
    static const struct {
        const char *data;
        size_t len;
        const char *kind; /* NULL: none that is known */
    } rows[] = {
        {BYTES("\x93NUMPY\x01\0v\0{"), "a NumPy .npy file"},
        {BYTES("PK\x03\x04\0\0"), "a zip archive, as torch.save() and numpy.savez() write"},
        {BYTES("\x80\x02\x8a\nl\xfc"), "a Python pickle"},
        {BYTES("GGUF\x03\0\0\0"), "a GGUF file"},
        {BYTES("version https://git-lfs.github.com/spec/v1\n"),
         "a Git LFS pointer (git lfs pull fetches the file)"},
        {BYTES("hello\n"), "a text file"},
        {BYTES("{\"a\": 1}"), "a text file"},
        /* Headers of 640 and of 18,512 bytes begin like a pickle and a zip archive. */
        {BYTES("\x80\x02\0\0\0\0\0\0{\"a\":"), NULL},
        {BYTES("PK\0\0\0\0\0\0{\"a\":"), NULL},
        {BYTES("\0\0\0\0\0\0\0\0"), NULL},
        {BYTES("PK"), "a text file"},
        {NULL, 0, NULL},
    };
#undef BYTES

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *kind = file_kind(rows[i].data, rows[i].len);
        if (rows[i].kind == NULL ? kind != NULL : kind == NULL || strcmp(kind, rows[i].kind) != 0)
            fail_msg("row %zu: %s", i, kind != NULL ? kind : "(none)");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commit_replaces_and_commit_new_does_not),
        cmocka_unit_test(failed_commit_leaves_the_old_file),
        cmocka_unit_test(kinds_are_told_by_how_files_begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
