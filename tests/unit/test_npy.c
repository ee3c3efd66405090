#include "unit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <skep/safetensors.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/tensor.h"
#include "tempdir.h"

/* A file of version `major` with this header text and `data_len` bytes counting up. */
static struct bytes make_file(int major, const char *header, size_t data_len)
{
    struct bytes file = {0};
    uint8_t head[12] = {0x93, 'N', 'U', 'M', 'P', 'Y', (uint8_t)major, 0};
    size_t len = strlen(header);

    store_u32(head + 8, (uint32_t)len);
    assert_true(bytes_append(&file, head, major == 1 ? 10 : 12));
    assert_true(bytes_append(&file, header, len));
    for (size_t i = 0; i < data_len; i++) {
        uint8_t byte = (uint8_t)i;
        assert_true(bytes_append(&file, &byte, 1));
    }
    return file;
}

/* The bytes that NumPy 1.24 writes for np.save(f, np.array([[1, 2, 3]], dtype='<i2')). */
static void file_of_numpy_is_read(void **state)
{
    (void)state;
    static const char header[] = "{'descr': '<i2', 'fortran_order': False, 'shape': (1, 3), }     "
                                 "                                                     \n";
    static const uint8_t elements[] = {1, 0, 2, 0, 3, 0};
    struct bytes raw = make_file(1, header, 0);
    DLManagedTensor *t;
    struct skep_error err;

    assert_int_equal(raw.len % 64, 0);
    assert_true(bytes_append(&raw, elements, sizeof(elements)));
    if (skep_npy_parse(raw.data, raw.len, &t, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(t->dl_tensor.ndim, 2);
    assert_int_equal(t->dl_tensor.shape[0], 1);
    assert_int_equal(t->dl_tensor.shape[1], 3);
    assert_int_equal(((int16_t *)t->dl_tensor.data)[2], 3);
    skep_tensor_free(t);
    bytes_free(&raw);
}

/* Element (i, j, k) of a file in Fortran order is its number i + 2 * j + 6 * k. */
static void fortran_order_is_read_as_c_order(void **state)
{
    (void)state;
    struct bytes raw =
        make_file(1, "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3, 4), }", 24);
    DLManagedTensor *t;
    struct skep_error err;

    if (skep_npy_parse(raw.data, raw.len, &t, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    const uint8_t *data = t->dl_tensor.data;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 4; k++)
                assert_int_equal(data[(i * 3 + j) * 4 + k], i + 2 * j + 6 * k);
    skep_tensor_free(t);
    bytes_free(&raw);
    static const char *const same[] = {
        "{'descr': '<i2', 'fortran_order': True, 'shape': (4,), }",
        "{'descr': '<i2', 'fortran_order': True, 'shape': (1, 4), }",
        "{'descr': '<i2', 'fortran_order': True, 'shape': (4, 1), }",
    };
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        raw = make_file(1, same[i], 8);
        assert_int_equal(skep_npy_parse(raw.data, raw.len, &t, &err), SKEP_OK);
        assert_memory_equal(t->dl_tensor.data, raw.data + raw.len - 8, 8);
        skep_tensor_free(t);
        bytes_free(&raw);
    }
    raw = make_file(1, "{'descr': '<f8', 'fortran_order': True, 'shape': (3, 0, 5), }", 0);
    assert_int_equal(skep_npy_parse(raw.data, raw.len, &t, &err), SKEP_OK);
    skep_tensor_free(t);
    bytes_free(&raw);
}

static void forms_of_the_header_are_understood(void **state)
{
    (void)state;
    static const struct {
        int major;
        const char *header;
        size_t bytes;
        int ndim;
    } rows[] = {
        {1, "{'descr': '<f8', 'fortran_order': False, 'shape': (), }", 8, 0},
        {1, "{'descr': '|u1', 'fortran_order': False, 'shape': (8,), }", 8, 1},
        {2, "{\"shape\":(2,4),\"fortran_order\":False,\"descr\":\"|b1\"}", 8, 2},
        {3, "{ 'shape' : ( 2 , 4 , ) , 'descr' : '|i1' , 'fortran_order' : False }\n", 8, 2},
        {1, "{'descr': '=f4', 'fortran_order': False, 'shape': (0, 5), }", 0, 2},
        {1, "{'descr': '>u1', 'fortran_order': False, 'shape': (1,), }", 1, 1},
        {1, "{'descr': '<f2', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1), }", 2, 8},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct bytes raw = make_file(rows[i].major, rows[i].header, rows[i].bytes);
        DLManagedTensor *t;
        struct skep_error err;
        size_t bytes;
        if (skep_npy_parse(raw.data, raw.len, &t, &err) != SKEP_OK)
            fail_msg("%s: %s", rows[i].header, err.message);
        assert_int_equal(t->dl_tensor.ndim, rows[i].ndim);
        assert_int_equal(skep_tensor_bytes(&t->dl_tensor, &bytes, NULL), SKEP_OK);
        assert_int_equal(bytes, rows[i].bytes);
        skep_tensor_free(t);
        bytes_free(&raw);
    }
}

static void wrong_headers_are_refused(void **state)
{
    (void)state;
    static const struct {
        int major;
        const char *header, *reason;
    } rows[] = {
        {0, "{}", "unknown version"},
        {4, "{}", "unknown version"},
        {1, "", "does not start with {"},
        {1, "{}", "lacks"},
        {1, "{'descr': '<f4', 'fortran_order': False}", "lacks"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)", "not a dictionary"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", "goes on"},
        {1, "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}", "not a dictionary"},
        {1, "{'descr': '<f4', 'descr': '<f4', 'shape': (1,)}", "twice"},
        {1, "{'shape': (1,), 'shape': (1,)}", "twice"},
        {1, "{'fortran_order': False, 'fortran_order': False}", "twice"},
        {1, "{'extra': 1}", "a key other than"},
        {1, "{'a name of more than thirty-two characters': 1}", "not a dictionary"},
        {1, "{'de\\x73cr': '<f4'}", "not a dictionary"},
        {1, "{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", "big-endian"},
        {1, "{'descr': '<V2', 'fortran_order': False, 'shape': (1,)}", "unknown to Skep"},
        {1, "{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", "unknown to Skep"},
        {1, "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "unknown to Skep"},
        {1, "{'descr': '|f4', 'fortran_order': False, 'shape': (1,)}", "unknown to Skep"},
        {1, "{'descr': '', 'fortran_order': False, 'shape': (1,)}", "unknown to Skep"},
        {1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "plain type"},
        {1, "{'descr': '<f4', 'fortran_order': 0, 'shape': (1, 1)}", "not True or False"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': 1}", "not a tuple"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1)}", "in brackets"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "non-negative"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}", "comma"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}", "non-negative"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
         "non-negative"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}",
         "8 dimensions"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
         "too many"},
        {1, "{'descr': '<f8', 'fortran_order': False, 'shape': (2305843009213693952,)}",
         "too many"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000,)}", "4 bytes of"},
        {1, "{'descr': '|u1', 'fortran_order': False, 'shape': (3,)}", "4 bytes of"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct bytes raw = make_file(rows[i].major, rows[i].header, 4);
        DLManagedTensor *t = (DLManagedTensor *)&raw;
        struct skep_error err = {0};
        assert_int_equal(skep_npy_parse(raw.data, raw.len, &t, &err), SKEP_DATA_LOSS);
        assert_null(t);
        if (strstr(err.message, rows[i].reason) == NULL)
            fail_msg("%s: %s; expected %s", rows[i].header, err.message, rows[i].reason);
        bytes_free(&raw);
    }
}

static void truncation_at_every_byte_is_refused(void **state)
{
    (void)state;
    for (int major = 1; major <= 3; major++) {
        struct bytes raw =
            make_file(major, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }", 8);
        for (size_t n = 0; n < raw.len; n++) {
            DLManagedTensor *t;
            uint8_t *exact = mem_alloc(n);
            memcpy(exact, raw.data, n);
            assert_int_equal(skep_npy_parse(exact, n, &t, NULL), SKEP_DATA_LOSS);
            mem_free(exact);
        }
        bytes_free(&raw);
    }
}

static void header_length_is_bounded(void **state)
{
    (void)state;
    DLManagedTensor *t;
    size_t big = (1 << 16) + 1;
    struct bytes raw = {0};
    uint8_t head[12] = {0x93, 'N', 'U', 'M', 'P', 'Y', 2, 0, 0xff, 0xff, 0xff, 0xff};

    assert_int_equal(skep_npy_parse(head, sizeof(head), &t, NULL), SKEP_DATA_LOSS);
    store_u32(head + 8, (uint32_t)big);
    assert_true(bytes_append(&raw, head, sizeof(head)) && bytes_reserve(&raw, big));
    memset(raw.data + raw.len, ' ', big);
    assert_int_equal(skep_npy_parse(raw.data, raw.len + big, &t, NULL), SKEP_DATA_LOSS);
    bytes_free(&raw);
}

/* Every type and number of dimensions goes out and comes back; the data begin 64 bytes aligned. */
static void tensors_round_trip_through_files(void **state)
{
    (void)state;
    static const char *const names[] = {"F64", "F32", "F16", "I64", "I32",
                                        "I16", "I8",  "U8",  "BOOL"};
    const int64_t shape[SKEP_TENSOR_MAX_DIMS] = {2, 1, 3, 1, 1, 1, 2, 1};
    struct tempdir dir;
    char path[512];

    tempdir_make(&dir);
    tempdir_file(&dir, "t.npy", path);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (int ndim = 0; ndim <= SKEP_TENSOR_MAX_DIMS; ndim++) {
            DLDataType dtype;
            DLManagedTensor *t, *back = NULL;
            size_t bytes;
            struct skep_error err;
            assert_true(skep_dtype_from_name(names[i], &dtype));
            assert_int_equal(skep_tensor_new(dtype, ndim, shape, &t, NULL), SKEP_OK);
            assert_int_equal(skep_tensor_bytes(&t->dl_tensor, &bytes, NULL), SKEP_OK);
            memset(t->dl_tensor.data, (int)i + 1, bytes);
            if (skep_npy_save(path, &t->dl_tensor, &err) != SKEP_OK ||
                skep_npy_load(path, &back, &err) != SKEP_OK)
                fail_msg("%s", err.message);
            assert_true(dtype_equal(back->dl_tensor.dtype, dtype));
            assert_int_equal(back->dl_tensor.ndim, ndim);
            for (int d = 0; d < ndim; d++)
                assert_int_equal(back->dl_tensor.shape[d], shape[d]);
            assert_memory_equal(back->dl_tensor.data, t->dl_tensor.data, bytes);
            skep_tensor_free(t);
            skep_tensor_free(back);
        }
    }
    assert_int_equal(tempdir_count(&dir, 0), 1);
    tempdir_remove(&dir);
}

static void failed_allocation_is_reported(void **state)
{
    (void)state;
    struct bytes raw =
        make_file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }", 8);
    long n = 1;

    for (;; n++) {
        DLManagedTensor *t = NULL;
        mem_fail_at(n);
        skep_status rc = skep_npy_parse(raw.data, raw.len, &t, NULL);
        bool pending = mem_fail_pending();
        mem_fail_at(0);
        skep_tensor_free(t);
        if (pending) {
            assert_int_equal(rc, SKEP_OK);
            break;
        }
        assert_int_equal(rc, SKEP_RESOURCE_EXHAUSTED);
    }
    assert_true(n > 1);
    bytes_free(&raw);
}

static void what_npy_cannot_hold_is_refused(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    DLDataType bf16;
    DLManagedTensor *t;
    struct skep_error err;
    const int64_t shape[] = {2};

    tempdir_make(&dir);
    tempdir_file(&dir, "t.npy", path);
    assert_true(skep_dtype_from_name("BF16", &bf16));
    assert_int_equal(skep_tensor_new(bf16, 1, shape, &t, NULL), SKEP_OK);
    assert_int_equal(skep_npy_save(path, &t->dl_tensor, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "BF16"));
    skep_tensor_free(t);
    assert_int_equal(skep_npy_load(path, &t, &err), SKEP_NOT_FOUND);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(tempdir_count(&dir, 0), 0);
    tempdir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_of_numpy_is_read),
        cmocka_unit_test(fortran_order_is_read_as_c_order),
        cmocka_unit_test(forms_of_the_header_are_understood),
        cmocka_unit_test(wrong_headers_are_refused),
        cmocka_unit_test(truncation_at_every_byte_is_refused),
        cmocka_unit_test(header_length_is_bounded),
        cmocka_unit_test(tensors_round_trip_through_files),
        cmocka_unit_test(failed_allocation_is_reported),
        cmocka_unit_test(what_npy_cannot_hold_is_refused),
    };
    return cmocka_run_group_tests_name("npy", tests, NULL, NULL);
}
