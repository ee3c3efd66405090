#include "unit.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/tensor.h"

static void slices_keep_memory_alive_in_any_order(void **state)
{
    (void)state;
    DLManagedTensor *base;
    DLManagedTensor *slice;
    int64_t shape[2] = {4, 3};

    assert_int_equal(skep_tensor_new(DTYPE_F32, 2, shape, &base, NULL), SKEP_OK);
    float *x = skep_tensor_data(&base->dl_tensor);
    for (int i = 0; i < 12; i++)
        x[i] = (float)i;
    assert_int_equal(tensor_slice(base, 1, 2, &slice, NULL), SKEP_OK);
    skep_tensor_free(base);
    float *y = skep_tensor_data(&slice->dl_tensor);
    assert_int_equal(slice->dl_tensor.shape[0], 2);
    assert_true(y[0] == 3.0f && y[5] == 8.0f);
    skep_tensor_free(slice);
}

static void slices_outside_the_rows_are_refused(void **state)
{
    (void)state;
    DLManagedTensor *base;
    DLManagedTensor *slice;
    int64_t shape[1] = {4};

    assert_int_equal(skep_tensor_new(DTYPE_F32, 1, shape, &base, NULL), SKEP_OK);
    assert_int_equal(tensor_slice(base, 3, 2, &slice, NULL), SKEP_INVALID_ARGUMENT);
    assert_null(slice);
    assert_int_equal(tensor_slice(base, INT64_MAX, 1, &slice, NULL), SKEP_INVALID_ARGUMENT);
    assert_int_equal(tensor_slice(base, 4, 0, &slice, NULL), SKEP_OK);
    skep_tensor_free(slice);
    skep_tensor_free(base);
}

static void tensors_of_others_are_not_sliced(void **state)
{
    (void)state;
    float data[4] = {0};
    int64_t shape[1] = {4};
    DLManagedTensor foreign = {.dl_tensor = {.data = data,
                                             .device = {.device_type = kDLCPU},
                                             .ndim = 1,
                                             .dtype = DTYPE_F32,
                                             .shape = shape}};
    DLManagedTensor *slice = &foreign;
    struct skep_error err;

    assert_false(tensor_is_sliceable(&foreign));
    assert_int_equal(tensor_slice(&foreign, 0, 2, &slice, &err), SKEP_INVALID_ARGUMENT);
    assert_null(slice);
    assert_non_null(strstr(err.message, "skep_tensor_new"));
}

static void hostile_shapes_are_refused(void **state)
{
    (void)state;
    DLManagedTensor *t;
    int64_t negative[2] = {3, -1};
    int64_t huge[3] = {INT64_MAX, INT64_MAX, 4};
    int64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    DLDataType odd = {.code = 7, .bits = 3, .lanes = 1};

    assert_int_equal(skep_tensor_new(DTYPE_F32, 2, negative, &t, NULL), SKEP_INVALID_ARGUMENT);
    assert_int_equal(skep_tensor_new(DTYPE_F32, 3, huge, &t, NULL), SKEP_INVALID_ARGUMENT);
    assert_int_equal(skep_tensor_new(DTYPE_F32, 9, nine, &t, NULL), SKEP_INVALID_ARGUMENT);
    assert_int_equal(skep_tensor_new(odd, 1, nine, &t, NULL), SKEP_INVALID_ARGUMENT);
    assert_null(t);
}

static void every_failed_allocation_is_reported(void **state)
{
    (void)state;
    int64_t shape[1] = {8};

    for (long nth = 1;; nth++) {
        DLManagedTensor *t;
        mem_fail_at(nth);
        skep_status rc = skep_tensor_new(DTYPE_F32, 1, shape, &t, NULL);
        if (mem_fail_pending()) {
            mem_fail_at(0);
            assert_int_equal(rc, SKEP_OK);
            skep_tensor_free(t);
            break;
        }
        assert_int_equal(rc, SKEP_RESOURCE_EXHAUSTED);
        assert_null(t);
    }
}

static void strided_tensors_are_refused(void **state)
{
    (void)state;
    float data[6] = {0};
    int64_t shape[2] = {2, 3};
    int64_t compact[2] = {3, 1};
    int64_t transposed[2] = {1, 2};
    DLTensor t = {.data = data,
                  .device = {.device_type = kDLCPU},
                  .ndim = 2,
                  .dtype = DTYPE_F32,
                  .shape = shape,
                  .strides = compact};
    size_t bytes = 0;

    assert_int_equal(skep_tensor_bytes(&t, &bytes, NULL), SKEP_OK);
    assert_int_equal(bytes, 24);
    t.strides = transposed;
    assert_int_equal(skep_tensor_bytes(&t, &bytes, NULL), SKEP_INVALID_ARGUMENT);
    int64_t empty[3] = {0, INT64_C(1) << 40, INT64_C(1) << 40};
    int64_t of_empty[3] = {0, INT64_C(1) << 40, 1};
    DLTensor none = t;
    none.ndim = 3;
    none.shape = empty;
    none.strides = of_empty;
    assert_int_equal(skep_tensor_bytes(&none, &bytes, NULL), SKEP_OK);
    assert_int_equal(bytes, 0);
    t.strides = NULL;
    t.device.device_type = kDLCUDA;
    assert_int_equal(skep_tensor_bytes(&t, &bytes, NULL), SKEP_INVALID_ARGUMENT);
}

static void finite_check_sees_nan_and_infinity(void **state)
{
    (void)state;
    float data[3] = {1.0f, -2.0f, 3.4e38f};
    int64_t shape[1] = {3};
    DLTensor t = {.data = data,
                  .device = {.device_type = kDLCPU},
                  .ndim = 1,
                  .dtype = DTYPE_F32,
                  .shape = shape};
    char text[32];

    assert_true(tensor_is_finite(&t));
    data[1] = NAN;
    assert_false(tensor_is_finite(&t));
    data[1] = -INFINITY;
    assert_false(tensor_is_finite(&t));
    assert_string_equal(tensor_describe(&t, text, sizeof(text)), "[3] F32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_keep_memory_alive_in_any_order),
        cmocka_unit_test(slices_outside_the_rows_are_refused),
        cmocka_unit_test(tensors_of_others_are_not_sliced),
        cmocka_unit_test(hostile_shapes_are_refused),
        cmocka_unit_test(every_failed_allocation_is_reported),
        cmocka_unit_test(strided_tensors_are_refused),
        cmocka_unit_test(finite_check_sees_nan_and_infinity),
    };
    return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
