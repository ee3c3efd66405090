#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <skep/safetensors.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/safetensors.h"
#include "base/tensor.h"
#include "golden_dir.h"
#include "tempdir.h"

/* A file in memory: length prefix, header text, `data_len` bytes of data counting up. */
static struct bytes make_file(const char *header, size_t data_len)
{
    struct bytes file = {0};
    uint8_t prefix[8];

    store_u64(prefix, strlen(header));
    assert_true(bytes_append(&file, prefix, sizeof(prefix)));
    assert_true(bytes_append(&file, header, strlen(header)));
    for (size_t i = 0; i < data_len; i++) {
        uint8_t byte = (uint8_t)i;
        assert_true(bytes_append(&file, &byte, 1));
    }
    return file;
}

static void same_tensor(const DLTensor *a, const DLTensor *b)
{
    size_t a_bytes, b_bytes;

    assert_non_null(a);
    assert_non_null(b);
    assert_true(dtype_equal(a->dtype, b->dtype));
    assert_int_equal(a->ndim, b->ndim);
    for (int i = 0; i < a->ndim; i++)
        assert_int_equal(a->shape[i], b->shape[i]);
    assert_int_equal(skep_tensor_bytes(a, &a_bytes, NULL), SKEP_OK);
    assert_int_equal(skep_tensor_bytes(b, &b_bytes, NULL), SKEP_OK);
    assert_int_equal(a_bytes, b_bytes);
    if (a_bytes > 0)
        assert_memory_equal(skep_tensor_data(a), skep_tensor_data(b), a_bytes);
}

static void round_trip(const char *path, const char *copy_path)
{
    struct skep_safetensors *file, *copy;
    struct skep_error err;

    if (skep_safetensors_open(path, &file, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    size_t count = skep_safetensors_count(file);
    assert_true(count > 0);
    struct skep_named_tensor *tensors = mem_calloc(count, sizeof(*tensors));
    assert_non_null(tensors);
    for (size_t i = 0; i < count; i++) {
        tensors[i].name = skep_safetensors_name(file, i);
        tensors[i].tensor = skep_safetensors_tensor(file, i);
        assert_ptr_equal(skep_safetensors_find(file, tensors[i].name), tensors[i].tensor);
        assert_int_equal((uintptr_t)tensors[i].tensor->data % dtype_bytes(tensors[i].tensor->dtype),
                         0);
    }
    const char *metadata[] = {"one", "1", "\xc3\xb6", "\"quoted\"\n", NULL};
    if (skep_safetensors_save(copy_path, tensors, count, metadata, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(skep_safetensors_open(copy_path, &copy, NULL), SKEP_OK);
    assert_int_equal(skep_safetensors_count(copy), count);
    for (size_t i = 0; i < count; i++)
        same_tensor(tensors[i].tensor, skep_safetensors_find(copy, tensors[i].name));
    assert_string_equal(skep_safetensors_metadata(copy, "\xc3\xb6"), "\"quoted\"\n");
    assert_null(skep_safetensors_metadata(copy, "two"));
    skep_safetensors_close(copy);
    mem_free(tensors);
    skep_safetensors_close(file);
}

static struct tempdir walk_dir;
static size_t files_walked;

static int visit(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info;
    (void)where;
    size_t len = strlen(path);
    char copy[512];

    if (type == FTW_F && len > 12 && strcmp(path + len - 12, ".safetensors") == 0) {
        round_trip(path, tempdir_file(&walk_dir, "copy", copy));
        files_walked++;
    }
    return 0;
}

static void every_golden_file_round_trips(void **state)
{
    (void)state;
    char golden[GOLDEN_PATH_BYTES];

    tempdir_make(&walk_dir);
    files_walked = 0;
    assert_int_equal(nftw(golden_path("", golden), visit, 8, FTW_PHYS), 0);
    assert_true(files_walked > 0);
    assert_int_equal(tempdir_count(&walk_dir, 0), 1); /* the copy and no temporary file */
    tempdir_remove(&walk_dir);
}

static const char good_header[] =
    "{\"__metadata__\":{\"k\":\"v\"},\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}"
    ","
    "\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
    "\"e\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[8,8]},"
    "\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[11,12]}}  ";

static void tensors_come_in_the_order_of_their_data(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "e", "b", "s"};
    struct bytes raw = make_file(good_header, 12);
    struct skep_safetensors *file;

    assert_int_equal(skep_safetensors_parse(raw.data, raw.len, &file, NULL), SKEP_OK);
    assert_int_equal(skep_safetensors_count(file), 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(skep_safetensors_name(file, i), names[i]);
    assert_null(skep_safetensors_name(file, 4));
    assert_null(skep_safetensors_tensor(file, 4));
    assert_null(skep_safetensors_find(file, "ab"));
    assert_null(skep_safetensors_find(file, "__metadata__"));
    assert_string_equal(skep_safetensors_metadata(file, "k"), "v");
    assert_int_equal(*(uint8_t *)skep_safetensors_find(file, "s")->data, 11);
    assert_int_equal(skep_safetensors_find(file, "s")->ndim, 0);
    skep_safetensors_close(file);
    bytes_free(&raw);
}

/* At every alignment of the whole, numbers can be read through the tensor's own pointer type. */
static void unaligned_data_is_handed_out_aligned(void **state)
{
    (void)state;
    struct bytes raw = make_file(good_header, 12);
    uint8_t *moved = mem_alloc(raw.len + 8);

    for (size_t shift = 0; shift < 8; shift++) {
        struct skep_safetensors *file;
        memcpy(moved + shift, raw.data, raw.len);
        assert_int_equal(skep_safetensors_parse(moved + shift, raw.len, &file, NULL), SKEP_OK);
        const DLTensor *a = skep_safetensors_find(file, "a");
        assert_int_equal((uintptr_t)a->data % 4, 0);
        assert_memory_equal(a->data, "\0\1\2\3\4\5\6\7", 8);
        skep_safetensors_close(file);
    }
    mem_free(moved);
    bytes_free(&raw);
}

static void hostile_headers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *header, *reason;
    } rows[] = {
        {"", "start with {"},
        {"[]", "start with {"},
        {" {}", "start with {"},
        {"{ ", "header at byte"},
        {"{}x", "header at byte"},
        {"{}", "bytes of data"},
        {"{\"a\":1}", "not described by an object"},
        {"{\"__metadata__\":[]}", "__metadata__ is not an object"},
        {"{\"__metadata__\":{\"k\":1}}", "is not a string"},
        {"{\"\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "header at byte"},
        {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         "header at byte"},
        {"{\"a\":{\"shape\":[4],\"data_offsets\":[0,4]}}", "no dtype"},
        {"{\"a\":{\"dtype\":4,\"shape\":[4],\"data_offsets\":[0,4]}}", "no dtype"},
        {"{\"a\":{\"dtype\":\"C64\",\"data_offsets\":[0,4]}}", "no shape"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "non-negative"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[8],\"data_offsets\":[0,5]}}",
         "beyond the end of the file"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[6],\"data_offsets\":[0,3]}}", "4 bytes of data"},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", "no shape"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]}}", "non-negative"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4.0],\"data_offsets\":[0,4]}}", "non-negative"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[\"4\"],\"data_offsets\":[0,4]}}", "non-negative"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4,1,1,1,1,1,1,1,-1],\"data_offsets\":[0,4]}}",
         "non-negative"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", "no data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0]}}", "no data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,4]}}", "no data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-4,0]}}", "no data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]}}",
         "beyond the end of the file"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}}", "in the wrong order"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],"
         "\"data_offsets\":[9223372036854775807,9223372036854775807]}}",
         "beyond the end of the file"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,18446744073709551616]}}",
         "header at byte"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,4]}}", "do not fit"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,4],\"data_offsets\":[0,4]}}",
         "do not fit"},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}",
         "do not fit"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
         "overlaps"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         "overlaps"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
         "gap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[1,4]}}", "gap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", "4 bytes of data"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         "header at byte"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         "header at byte"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[[4]],\"data_offsets\":[0,4]}}", "nested"},
        {"{\"a\":{},\"b\":{},\"c\":{},\"d\":{},\"e\":{},\"f\":{},\"g\":{},\"h\":{}}", "nested"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct bytes raw = make_file(rows[i].header, 4);
        struct skep_safetensors *file = (struct skep_safetensors *)&raw;
        struct skep_error err = {0};
        assert_int_equal(skep_safetensors_parse(raw.data, raw.len, &file, &err), SKEP_DATA_LOSS);
        assert_null(file);
        if (strstr(err.message, rows[i].reason) == NULL)
            fail_msg("%s: %s; expected %s", rows[i].header, err.message, rows[i].reason);
        bytes_free(&raw);
    }
}

/* Each beside one that is wanted: that one can be read, and this one is refused by its name. */
static void tensors_of_other_types_are_left_alone(void **state)
{
    (void)state;
    static const struct {
        const char *dtype, *shape, *reason;
    } rows[] = {
        {"F4", "[8]", "dtype \"F4\""},       {"F8_E8M0", "[4]", "dtype \"F8_E8M0\""},
        {"F8_E4M3", "[2,2]", "\"F8_E4M3\""}, {"F8_E5M2", "[4]", "\"F8_E5M2\""},
        {"F6_E2M3", "[5]", "\"F6_E2M3\""},   {"U16", "[2]", "\"U16\""},
        {"U32", "[1]", "\"U32\""},           {"U64", "[1]", "\"U64\""},
        {"C64", "[1]", "\"C64\""},           {"of tomorrow", "[]", "\"of tomorrow\""},
        {"\\n", "[4]", "\"\\x0a\""},         {"F32", "[1,1,1,1,1,1,1,1,1]", "9 dimensions"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char header[300];
        struct skep_safetensors *file;
        struct skep_error err = {0};
        const DLTensor *t;
        size_t bytes;

        snprintf(header, sizeof(header),
                 "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]},"
                 "\"b\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[0,4]}}",
                 rows[i].dtype, rows[i].shape);
        struct bytes raw = make_file(header, 8);
        if (skep_safetensors_parse(raw.data, raw.len, &file, &err) != SKEP_OK)
            fail_msg("%s: %s", header, err.message);
        assert_int_equal(skep_safetensors_count(file), 2);
        assert_int_equal(safetensors_get(file, "a", &t, &err), SKEP_OK);
        assert_ptr_equal(t, skep_safetensors_find(file, "a"));
        assert_int_equal(((const uint8_t *)t->data)[0], 4);
        assert_int_equal(safetensors_get(file, "b", &t, &err), SKEP_INVALID_ARGUMENT);
        assert_null(t);
        assert_non_null(strstr(err.message, "tensor \"b\""));
        if (strstr(err.message, rows[i].reason) == NULL)
            fail_msg("%s: %s; expected %s", header, err.message, rows[i].reason);
        t = skep_safetensors_find(file, "b");
        assert_non_null(t);
        assert_null(skep_tensor_data(t));
        assert_int_equal(skep_tensor_bytes(t, &bytes, &err), SKEP_INVALID_ARGUMENT);
        assert_int_equal(safetensors_get(file, "c", &t, &err), SKEP_NOT_FOUND);
        skep_safetensors_close(file);
        bytes_free(&raw);
    }
}

/* A header length of every size class beyond the file, and one that fits but is over the limit. */
static void header_length_is_bounded_before_anything_is_read(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {5, 1000, UINT32_MAX, INT64_MAX, UINT64_MAX - 8, UINT64_MAX};
    struct skep_safetensors *file;

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint8_t raw[12] = {0};
        store_u64(raw, lengths[i]);
        assert_int_equal(skep_safetensors_parse(raw, sizeof(raw), &file, NULL), SKEP_DATA_LOSS);
    }
    size_t big = (16 << 20) + 1;
    uint8_t *raw = mem_alloc(big + 8);
    assert_non_null(raw);
    memset(raw, ' ', big + 8);
    store_u64(raw, big);
    memcpy(raw + 8, "{}", 2);
    assert_int_equal(skep_safetensors_parse(raw, big + 8, &file, NULL), SKEP_DATA_LOSS);
    store_u64(raw, big - 1);
    assert_int_equal(skep_safetensors_parse(raw, big + 7, &file, NULL), SKEP_OK);
    assert_int_equal(skep_safetensors_count(file), 0);
    skep_safetensors_close(file);
    mem_free(raw);
}

static void truncation_at_every_byte_is_refused(void **state)
{
    (void)state;
    struct bytes raw = make_file(good_header, 12);

    for (size_t n = 0; n < raw.len; n++) {
        struct skep_safetensors *file;
        uint8_t *exact = mem_alloc(n); /* so that a sanitizer sees any byte read beyond */
        memcpy(exact, raw.data, n);
        assert_int_equal(skep_safetensors_parse(exact, n, &file, NULL), SKEP_DATA_LOSS);
        mem_free(exact);
    }
    bytes_free(&raw);
}

static void every_failed_allocation_of_reading_is_reported(void **state)
{
    (void)state;
    struct bytes raw = make_file(good_header, 12);
    long n = 1;

    for (;; n++) {
        struct skep_safetensors *file = NULL;
        mem_fail_at(n);
        skep_status rc = skep_safetensors_parse(raw.data + 0, raw.len, &file, NULL);
        bool pending = mem_fail_pending();
        mem_fail_at(0);
        skep_safetensors_close(file);
        if (pending) {
            assert_int_equal(rc, SKEP_OK);
            break;
        }
        assert_int_equal(rc, SKEP_RESOURCE_EXHAUSTED);
        assert_null(file);
    }
    assert_true(n > 3);
    bytes_free(&raw);
}

/* A tensor over 12 bytes counting up. */
static uint8_t twelve[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
static int64_t twelve_shape[] = {3, 4};
static DLTensor twelve_tensor = {
    .data = twelve,
    .device = {.device_type = kDLCPU},
    .ndim = 2,
    .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
    .shape = twelve_shape,
};

static void every_failed_allocation_of_writing_leaves_no_file(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    const struct skep_named_tensor one = {"t", &twelve_tensor};
    const char *metadata[] = {"k", "v", NULL};
    long n = 1;

    tempdir_make(&dir);
    tempdir_file(&dir, "f", path);
    for (;; n++) {
        mem_fail_at(n);
        skep_status rc = skep_safetensors_save(path, &one, 1, metadata, NULL);
        bool pending = mem_fail_pending();
        mem_fail_at(0);
        if (pending) {
            assert_int_equal(rc, SKEP_OK);
            break;
        }
        assert_int_equal(rc, SKEP_RESOURCE_EXHAUSTED);
        assert_int_equal(tempdir_count(&dir, 0), 0);
    }
    assert_true(n > 3);
    assert_int_equal(tempdir_count(&dir, 0), 1);
    tempdir_remove(&dir);
}

/* Saves with files limited to `limit` bytes, as a full disk would. */
static skep_status save_limited(const char *path, const struct skep_named_tensor *tensor,
                                rlim_t limit, struct skep_error *err)
{
    struct rlimit before, low;
    struct sigaction ignore = {.sa_handler = SIG_IGN}, old;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    low = before;
    low.rlim_cur = limit;
    sigaction(SIGXFSZ, &ignore, &old);
    setrlimit(RLIMIT_FSIZE, &low);
    skep_status rc = skep_safetensors_save(path, tensor, 1, NULL, err);
    setrlimit(RLIMIT_FSIZE, &before);
    sigaction(SIGXFSZ, &old, NULL);
    return rc;
}

/* B84 in small: wherever the space ends, the old file is there, whole, and nothing else. */
static void full_disk_keeps_the_old_file(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    struct skep_error err;
    const struct skep_named_tensor old = {"old", &twelve_tensor}, new = {"new", &twelve_tensor};
    struct skep_safetensors *file;
    rlim_t limit = 0;

    tempdir_make(&dir);
    tempdir_file(&dir, "f", path);
    assert_int_equal(skep_safetensors_save(path, &old, 1, NULL, &err), SKEP_OK);
    for (;; limit++) {
        skep_status rc = save_limited(path, &new, limit, &err);
        assert_int_equal(tempdir_count(&dir, 0), 1);
        assert_int_equal(skep_safetensors_open(path, &file, NULL), SKEP_OK);
        bool is_new = skep_safetensors_find(file, "new") != NULL;
        same_tensor(skep_safetensors_find(file, is_new ? "new" : "old"), &twelve_tensor);
        skep_safetensors_close(file);
        assert_int_equal(is_new, rc == SKEP_OK);
        if (rc == SKEP_OK)
            break;
        assert_int_equal(rc, SKEP_RESOURCE_EXHAUSTED);
        assert_non_null(strstr(err.message, path));
    }
    assert_true(limit > 12);
    tempdir_remove(&dir);
}

static void unusable_requests_to_save_are_refused(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    int64_t strides[] = {1, 3};
    DLTensor strided = twelve_tensor;
    const char *odd[] = {"k", NULL};
    const char *twice[] = {"k", "1", "k", "2", NULL};
    const struct skep_named_tensor good = {"t", &twelve_tensor};
    const struct {
        struct skep_named_tensor tensors[2];
        size_t count;
        const char *const *metadata;
        const char *reason;
    } rows[] = {
        {{{"t", &twelve_tensor}, {"t", &twelve_tensor}}, 2, NULL, "twice"},
        {{{"", &twelve_tensor}}, 1, NULL, "reserves"},
        {{{"__metadata__", &twelve_tensor}}, 1, NULL, "reserves"},
        {{{"\xff", &twelve_tensor}}, 1, NULL, "UTF-8"},
        {{{"t", &strided}}, 1, NULL, "strided"},
        {{good}, 1, odd, "no value"},
        {{good}, 1, twice, "twice"},
    };

    strided.strides = strides;
    tempdir_make(&dir);
    tempdir_file(&dir, "f", path);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct skep_error err = {0};
        assert_int_equal(
            skep_safetensors_save(path, rows[i].tensors, rows[i].count, rows[i].metadata, &err),
            SKEP_INVALID_ARGUMENT);
        if (strstr(err.message, rows[i].reason) == NULL)
            fail_msg("%s; expected %s", err.message, rows[i].reason);
    }
    assert_int_equal(tempdir_count(&dir, 0), 0);
    assert_int_equal(skep_safetensors_save(path, NULL, 0, NULL, NULL), SKEP_OK);
    tempdir_remove(&dir);
}

static void failures_of_the_file_system_name_the_path(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    struct skep_error err;
    struct skep_safetensors *file;
    const struct skep_named_tensor one = {"t", &twelve_tensor};

    tempdir_make(&dir);
    tempdir_file(&dir, "no/such/file", path);
    assert_int_equal(skep_safetensors_save(path, &one, 1, NULL, &err), SKEP_NOT_FOUND);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(skep_safetensors_open(path, &file, &err), SKEP_NOT_FOUND);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(skep_safetensors_save(dir.path, &one, 1, NULL, &err), SKEP_INVALID_ARGUMENT);
    assert_int_equal(skep_safetensors_open(dir.path, &file, &err), SKEP_INVALID_ARGUMENT);
    tempdir_file(&dir, "pipe", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(skep_safetensors_open(path, &file, &err), SKEP_INVALID_ARGUMENT);
    tempdir_file(&dir, "empty", path);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(skep_safetensors_open(path, &file, &err), SKEP_DATA_LOSS);
    assert_non_null(strstr(err.message, path));
    tempdir_remove(&dir);
}

/* Files left by a dead process that had this pid must not be in the way. */
static void left_over_temporary_files_are_stepped_over(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512], temp[512], name[64];
    const struct skep_named_tensor one = {"t", &twelve_tensor};

    tempdir_make(&dir);
    for (unsigned i = 0; i < 300; i += 2) {
        snprintf(name, sizeof(name), "f.tmp.%ld.%u", (long)getpid(), i);
        close(open(tempdir_file(&dir, name, temp), O_CREAT | O_WRONLY, 0600));
    }
    tempdir_file(&dir, "f", path);
    for (int i = 0; i < 3; i++)
        assert_int_equal(skep_safetensors_save(path, &one, 1, NULL, NULL), SKEP_OK);
    assert_int_equal(tempdir_count(&dir, 0), 151);
    tempdir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_file_round_trips),
        cmocka_unit_test(tensors_come_in_the_order_of_their_data),
        cmocka_unit_test(unaligned_data_is_handed_out_aligned),
        cmocka_unit_test(hostile_headers_are_refused),
        cmocka_unit_test(tensors_of_other_types_are_left_alone),
        cmocka_unit_test(header_length_is_bounded_before_anything_is_read),
        cmocka_unit_test(truncation_at_every_byte_is_refused),
        cmocka_unit_test(every_failed_allocation_of_reading_is_reported),
        cmocka_unit_test(every_failed_allocation_of_writing_leaves_no_file),
        cmocka_unit_test(full_disk_keeps_the_old_file),
        cmocka_unit_test(unusable_requests_to_save_are_refused),
        cmocka_unit_test(failures_of_the_file_system_name_the_path),
        cmocka_unit_test(left_over_temporary_files_are_stepped_over),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
