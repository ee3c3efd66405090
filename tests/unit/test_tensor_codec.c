/* Tensor encodings: what is encoded at all, extremes, hostile bytes, every instruction set. */
#include "unit.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/tensor.h"
#include "wire/codec_kernels.h"
#include "wire/codec_schemes.h"
#include "wire/tensor_codec.h"

/* ---- help ---- */

static uint64_t random_state = 20240607;

static uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static float random_normal(void)
{
    double sum = -6.0;

    for (int i = 0; i < 12; i++)
        sum += (double)random_bits() * 0x1p-32;
    return (float)sum;
}

static DLManagedTensor *tensor_of(DLDataType dtype, int64_t rows, int64_t columns)
{
    int64_t shape[2] = {rows, columns};
    DLManagedTensor *t;
    size_t bytes;

    assert_int_equal(skep_tensor_new(dtype, 2, shape, &t, NULL), SKEP_OK);
    assert_int_equal(skep_tensor_bytes(&t->dl_tensor, &bytes, NULL), SKEP_OK);
    if (bytes > 0)
        memset(t->dl_tensor.data, 0, bytes);
    return t;
}

static float *floats_of(DLManagedTensor *t)
{
    return t->dl_tensor.data;
}

static DLManagedTensor *normal_tensor(int64_t rows, int64_t columns)
{
    DLManagedTensor *t = tensor_of(DTYPE_F32, rows, columns);

    for (int64_t i = 0; i < rows * columns; i++)
        floats_of(t)[i] = random_normal();
    return t;
}

/* Encodes, checks the descriptor, and decodes again. */
static DLManagedTensor *there_and_back(const DLManagedTensor *t, enum tensor_encoding encoding)
{
    struct tensor_descriptor d;
    enum tensor_encoded how;
    DLManagedTensor *encoded, *decoded;
    size_t bytes;

    assert_int_equal(tensor_encode(&t->dl_tensor, encoding, &d, &how, &encoded, NULL), SKEP_OK);
    assert_int_equal(how, TENSOR_ENCODED);
    assert_int_equal(d.encoding, encoding);
    assert_int_equal(d.ndim, t->dl_tensor.ndim);
    assert_int_equal(skep_tensor_bytes(&encoded->dl_tensor, &bytes, NULL), SKEP_OK);
    assert_int_equal(bytes, d.wire_bytes);
    assert_int_equal(tensor_decode(&d, &encoded->dl_tensor, &decoded, NULL), SKEP_OK);
    skep_tensor_free(encoded);
    return decoded;
}

static void expect_as_is(const DLManagedTensor *t, enum tensor_encoding encoding,
                         enum tensor_encoded expected)
{
    struct tensor_descriptor d;
    enum tensor_encoded how;
    DLManagedTensor *encoded;
    size_t bytes;

    assert_int_equal(tensor_encode(&t->dl_tensor, encoding, &d, &how, &encoded, NULL), SKEP_OK);
    assert_int_equal(how, expected);
    assert_null(encoded);
    assert_int_equal(d.encoding, ENCODING_NONE);
    assert_int_equal(skep_tensor_bytes(&t->dl_tensor, &bytes, NULL), SKEP_OK);
    assert_int_equal(d.wire_bytes, bytes);
}

static bool takes_infinity(int encoding)
{
    return encoding == ENCODING_FLOAT16 || encoding == ENCODING_BFLOAT16;
}

/* ---- what is encoded ---- */

static void names_and_numbers_belong_together(void **state)
{
    enum tensor_encoding e = ENCODING_COUNT;

    (void)state;
    for (int i = 0; i < ENCODING_COUNT; i++) {
        assert_true(tensor_encoding_from_name(tensor_encoding_name((enum tensor_encoding)i), &e));
        assert_int_equal(e, i);
    }
    assert_string_equal(tensor_encoding_name(ENCODING_QUANTILE8), "quantile8");
    assert_string_equal(tensor_encoding_name(ENCODING_COUNT), "unknown");
    assert_false(tensor_encoding_from_name("float8", &e));
    assert_false(tensor_encoding_from_name("", &e));
}

static void other_types_than_f32_travel_as_they_are(void **state)
{
    static const char *const names[] = {"F64", "F16", "BF16", "I64", "U8", "BOOL"};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        DLDataType dtype;
        assert_true(skep_dtype_from_name(names[i], &dtype));
        DLManagedTensor *t = tensor_of(dtype, 64, 64);
        for (int e = 0; e < ENCODING_COUNT; e++)
            expect_as_is(t, (enum tensor_encoding)e, TENSOR_AS_IS);
        skep_tensor_free(t);
    }
}

static void encodings_that_save_nothing_are_not_used(void **state)
{
    DLManagedTensor *small = normal_tensor(1, 16);    /* smaller than a codebook */
    DLManagedTensor *column = normal_tensor(2000, 1); /* mean and deviation for each element */
    DLManagedTensor *empty = tensor_of(DTYPE_F32, 0, 7);

    (void)state;
    expect_as_is(small, ENCODING_UNIFORM8, TENSOR_AS_IS);
    expect_as_is(small, ENCODING_QUANTILE8, TENSOR_AS_IS);
    expect_as_is(column, ENCODING_MEANSTD16, TENSOR_AS_IS);
    for (int e = 0; e < ENCODING_COUNT; e++)
        expect_as_is(empty, (enum tensor_encoding)e, TENSOR_AS_IS);
    skep_tensor_free(small);
    skep_tensor_free(column);
    skep_tensor_free(empty);
}

static void sizes_are_those_of_the_protocol(void **state)
{
    int64_t shape[2] = {3, 5000};
    uint64_t bytes[ENCODING_COUNT];
    const uint64_t expected[ENCODING_COUNT] = {4 * 15000,         2 * 15000,    2 * 15000,
                                               2 * 15000 + 3 * 8, 15000 + 1024, 15000 + 1024,
                                               15000 + 4 * 4};

    (void)state;
    for (int e = 0; e < ENCODING_COUNT; e++) {
        assert_true(tensor_encoded_bytes((enum tensor_encoding)e, DTYPE_F32, 2, shape, &bytes[e]));
        assert_int_equal(bytes[e], expected[e]);
    }
}

static void not_finite_travels_as_float32_where_there_is_no_place_for_it(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (size_t b = 0; b < sizeof(bad) / sizeof(bad[0]); b++)
        for (size_t at = 0; at < 9000; at += 8999) {
            DLManagedTensor *t = normal_tensor(9, 1000);
            floats_of(t)[at] = bad[b];
            for (int e = ENCODING_FLOAT16; e < ENCODING_COUNT; e++) {
                if (!takes_infinity(e)) {
                    expect_as_is(t, (enum tensor_encoding)e, TENSOR_NOT_FINITE);
                    continue;
                }
                DLManagedTensor *back = there_and_back(t, (enum tensor_encoding)e);
                float seen = floats_of(back)[at];
                assert_true(isnan(bad[b]) ? isnan(seen) : signbit(seen) == signbit(bad[b]));
                assert_int_equal(isinf(seen) != 0, isinf(bad[b]) && e == ENCODING_BFLOAT16);
                skep_tensor_free(back);
            }
            skep_tensor_free(t);
        }
}

/* Both infinities cancel in no sum. */
static void opposite_infinities_are_noticed(void **state)
{
    DLManagedTensor *t = normal_tensor(2, 1000);

    (void)state;
    floats_of(t)[3] = INFINITY;
    floats_of(t)[700] = -INFINITY;
    for (int e = ENCODING_MEANSTD16; e < ENCODING_COUNT; e++)
        expect_as_is(t, (enum tensor_encoding)e, TENSOR_NOT_FINITE);
    skep_tensor_free(t);
}

/* ---- extremes ---- */

static void constants_come_back_as_they_were(void **state)
{
    static const float values[] = {0.0f, -0.0f, 3.14159f, -1e-42f, 1e30f, FLT_MAX, -FLT_MAX};

    (void)state;
    for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
        DLManagedTensor *t = tensor_of(DTYPE_F32, 7, 733);
        for (size_t i = 0; i < 7 * 733; i++)
            floats_of(t)[i] = values[v];
        for (int e = ENCODING_MEANSTD16; e < ENCODING_COUNT; e++) {
            DLManagedTensor *back = there_and_back(t, (enum tensor_encoding)e);
            for (size_t i = 0; i < 7 * 733; i++)
                if (!(fabs((double)floats_of(back)[i] - (double)values[v]) <=
                      fabs((double)values[v]) * 0x1p-22))
                    fail_msg("%s: %a became %a", tensor_encoding_name((enum tensor_encoding)e),
                             (double)values[v], (double)floats_of(back)[i]);
            skep_tensor_free(back);
        }
        skep_tensor_free(t);
    }
}

/* From subnormals to the ends of the range, also when all of them meet in one tensor: finite
 * numbers never become NaN. The bound is loose: of the widest scheme, a part of the range. */
static void finite_input_never_becomes_nan(void **state)
{
    static const float scales[] = {1e-45f, 1e-40f, 1e-38f, 1e-20f, 1.0f, 1e30f, 1e37f, FLT_MAX / 8};
    enum { SCALES = sizeof(scales) / sizeof(scales[0]) };

    (void)state;
    for (size_t s = 0; s <= SCALES; s++) {
        DLManagedTensor *t = normal_tensor(40, 128);
        double largest = 0.0;
        for (size_t i = 0; i < 40 * 128; i++) {
            floats_of(t)[i] *= scales[s < SCALES ? s : i % SCALES];
            largest = fmax(largest, fabs((double)floats_of(t)[i]));
        }
        for (int e = ENCODING_MEANSTD16; e < ENCODING_COUNT; e++) {
            DLManagedTensor *back = there_and_back(t, (enum tensor_encoding)e);
            /* meanstd16 has a least deviation, far above the smallest numbers. */
            double bound = largest / 2 + (e == ENCODING_MEANSTD16 ? 1e-12 : 0.0);
            for (size_t i = 0; i < 40 * 128; i++)
                if (!(fabs((double)floats_of(back)[i] - (double)floats_of(t)[i]) <= bound))
                    fail_msg("%s, scale %zu: %a became %a",
                             tensor_encoding_name((enum tensor_encoding)e), s,
                             (double)floats_of(t)[i], (double)floats_of(back)[i]);
            skep_tensor_free(back);
        }
        skep_tensor_free(t);
    }
}

static void precision_is_that_of_the_scheme_at_every_scale(void **state)
{
    /* Mean errors in units of the standard deviation, with some room. */
    static const double bounds[ENCODING_COUNT] = {0, 0, 0, 3e-4, 8e-3, 8e-3, 1.2e-2};
    static const float scales[] = {1e-36f, 1e-30f, 1e-5f, 1.0f, 1e20f, 1e36f};

    (void)state;
    for (size_t s = 0; s < sizeof(scales) / sizeof(scales[0]); s++) {
        DLManagedTensor *t = normal_tensor(64, 256);
        for (size_t i = 0; i < 64 * 256; i++)
            floats_of(t)[i] *= scales[s];
        /* meanstd16 has an absolute least deviation. */
        for (int e = scales[s] < 1e-6f ? ENCODING_UNIFORM8 : ENCODING_MEANSTD16; e < ENCODING_COUNT;
             e++) {
            DLManagedTensor *back = there_and_back(t, (enum tensor_encoding)e);
            double sum = 0.0;
            for (size_t i = 0; i < 64 * 256; i++)
                sum += fabs((double)floats_of(back)[i] - (double)floats_of(t)[i]);
            double mean = sum / (64 * 256) / (double)scales[s];
            if (!(mean <= bounds[e]))
                fail_msg("%s at %g: mean error %g, expected at most %g",
                         tensor_encoding_name((enum tensor_encoding)e), (double)scales[s], mean,
                         bounds[e]);
            skep_tensor_free(back);
        }
        skep_tensor_free(t);
    }
}

/* ---- hostile bytes ---- */

static void wrong_sizes_are_refused(void **state)
{
    struct tensor_descriptor d = {.dtype = DTYPE_F32, .ndim = 2, .shape = {10, 1000}};
    DLDataType u8 = {.code = kDLUInt, .bits = 8, .lanes = 1};
    DLManagedTensor *out;
    struct skep_error err;

    (void)state;
    for (int e = ENCODING_FLOAT16; e < ENCODING_COUNT; e++)
        for (int off = -1; off <= 1; off += 2) {
            d.encoding = (enum tensor_encoding)e;
            assert_true(tensor_encoded_bytes(d.encoding, d.dtype, d.ndim, d.shape, &d.wire_bytes));
            DLManagedTensor *bytes = tensor_of(u8, 1, (int64_t)d.wire_bytes + off);
            assert_int_equal(tensor_decode(&d, &bytes->dl_tensor, &out, &err),
                             SKEP_INVALID_ARGUMENT);
            assert_null(out);
            skep_tensor_free(bytes);
        }
}

static void sizes_that_do_not_fit_are_refused(void **state)
{
    int64_t shapes[][2] = {{INT64_MAX, 1}, {INT64_MAX, INT64_MAX}, {1, -1}, {(int64_t)1 << 62, 1}};
    uint64_t bytes = 1;

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int e = 0; e < ENCODING_COUNT; e++) {
            uint64_t before = bytes;
            if (!tensor_encoded_bytes((enum tensor_encoding)e, DTYPE_F32, 2, shapes[i], &bytes))
                assert_int_equal(bytes, before);
            else
                assert_true(bytes >= (uint64_t)shapes[i][0]);
        }
    assert_false(tensor_encoded_bytes(ENCODING_NONE, DTYPE_F32, 2, shapes[3], &bytes));
    assert_false(tensor_encoded_bytes(ENCODING_COUNT, DTYPE_F32, 0, NULL, &bytes));
    assert_false(tensor_encoded_bytes(ENCODING_UNIFORM8, DTYPE_I64, 0, NULL, &bytes));
}

static void any_bytes_decode_to_something(void **state)
{
    struct tensor_descriptor d = {.dtype = DTYPE_F32, .ndim = 3, .shape = {3, 5, 999}};
    DLDataType u8 = {.code = kDLUInt, .bits = 8, .lanes = 1};

    (void)state;
    for (int e = ENCODING_FLOAT16; e < ENCODING_COUNT; e++)
        for (int round = 0; round < 8; round++) {
            DLManagedTensor *out;
            d.encoding = (enum tensor_encoding)e;
            assert_true(tensor_encoded_bytes(d.encoding, d.dtype, d.ndim, d.shape, &d.wire_bytes));
            DLManagedTensor *bytes = tensor_of(u8, 1, (int64_t)d.wire_bytes);
            for (size_t i = 0; i < d.wire_bytes; i++)
                ((uint8_t *)bytes->dl_tensor.data)[i] = round == 0 ? 0xff : (uint8_t)random_bits();
            assert_int_equal(tensor_decode(&d, &bytes->dl_tensor, &out, NULL), SKEP_OK);
            assert_int_equal(out->dl_tensor.ndim, 3);
            skep_tensor_free(out);
            skep_tensor_free(bytes);
        }
}

static void empty_and_scalar_tensors_decode(void **state)
{
    struct tensor_descriptor empty = {.dtype = DTYPE_F32, .ndim = 2, .shape = {3, 0}};
    struct tensor_descriptor scalar = {.dtype = DTYPE_F32, .ndim = 0};
    DLDataType u8 = {.code = kDLUInt, .bits = 8, .lanes = 1};

    (void)state;
    for (int e = ENCODING_FLOAT16; e < ENCODING_COUNT; e++) {
        DLManagedTensor *none = tensor_of(u8, 0, 1), *out;
        empty.encoding = scalar.encoding = (enum tensor_encoding)e;
        assert_int_equal(tensor_decode(&empty, &none->dl_tensor, &out, NULL), SKEP_OK);
        assert_int_equal(out->dl_tensor.shape[0], 3);
        assert_int_equal(out->dl_tensor.shape[1], 0);
        skep_tensor_free(out);
        skep_tensor_free(none);
        assert_true(tensor_encoded_bytes(scalar.encoding, DTYPE_F32, 0, NULL, &scalar.wire_bytes));
        DLManagedTensor *one = tensor_of(u8, 1, (int64_t)scalar.wire_bytes);
        assert_int_equal(tensor_decode(&scalar, &one->dl_tensor, &out, NULL), SKEP_OK);
        assert_int_equal(out->dl_tensor.ndim, 0);
        skep_tensor_free(out);
        skep_tensor_free(one);
    }
}

static void every_allocation_may_fail(void **state)
{
    DLManagedTensor *t = normal_tensor(8, 1000);

    (void)state;
    for (int e = ENCODING_FLOAT16; e < ENCODING_COUNT; e++) {
        struct tensor_descriptor d;
        DLManagedTensor *encoded = NULL, *tensors[2];
        enum tensor_encoded how;
        skep_status rc = SKEP_INTERNAL;
        for (long n = 1; rc != SKEP_OK; n++) {
            mem_fail_at(n);
            rc = tensor_encode(&t->dl_tensor, (enum tensor_encoding)e, &d, &how, &encoded, NULL);
            assert_true(rc == SKEP_OK || (rc == SKEP_RESOURCE_EXHAUSTED && encoded == NULL));
        }
        rc = SKEP_INTERNAL;
        for (long n = 1; rc != SKEP_OK; n++) {
            struct tensor_descriptor both[2] = {{.encoding = ENCODING_NONE}, d};
            size_t count = 2;
            mem_fail_at(0);
            tensors[0] = tensor_of(DTYPE_F32, 1, 1);
            tensors[1] = tensor_of(encoded->dl_tensor.dtype, 1, (int64_t)d.wire_bytes);
            mem_fail_at(n);
            rc = tensors_decode(both, tensors, &count, NULL);
            assert_int_equal(count, rc == SKEP_OK ? 2 : 0);
        }
        mem_fail_at(0);
        skep_tensor_free(tensors[0]);
        skep_tensor_free(tensors[1]);
        skep_tensor_free(encoded);
    }
    skep_tensor_free(t);
}

/* ---- instruction sets ---- */

enum { NUMBERS = 4099 };

static void fill_with_any_bits(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = random_bits();
        memcpy(&x[i], &bits, sizeof(bits));
    }
}

static bool is_nan16(uint16_t code, uint16_t infinity)
{
    return (code & 0x7fff) > infinity;
}

/* Bit for bit but for the payloads of NaN. */
static void sixteen_bits_are_the_same_everywhere(void **state)
{
    const struct codec_kernels *all[CODEC_KERNEL_SETS];
    static float x[NUMBERS];
    static uint16_t want[NUMBERS], got[NUMBERS];

    (void)state;
    for (size_t k = 1; k < codec_kernels_all(all); k++)
        for (int round = 0; round < 20; round++) {
            fill_with_any_bits(x, NUMBERS);
            for (size_t i = 0; i < NUMBERS; i += 2) /* half of them in the range of float16 */
                x[i] = random_normal() * ldexpf(1.0f, (int)(random_bits() % 44) - 28);
            all[0]->to_f16(x, want, NUMBERS);
            all[k]->to_f16(x, got, NUMBERS);
            for (size_t i = 0; i < NUMBERS; i++)
                assert_true(want[i] == got[i] ||
                            (is_nan16(want[i], 0x7c00) && is_nan16(got[i], 0x7c00)));
            all[0]->to_bf16(x, want, NUMBERS);
            all[k]->to_bf16(x, got, NUMBERS);
            assert_memory_equal(want, got, sizeof(got));
        }
}

static void every_half_is_the_same_everywhere(void **state)
{
    const struct codec_kernels *all[CODEC_KERNEL_SETS];
    static uint16_t codes[1 << 16], back[1 << 16];
    static float want[1 << 16], got[1 << 16];
    size_t sets = codec_kernels_all(all);

    (void)state;
    for (size_t i = 0; i < 1 << 16; i++)
        codes[i] = (uint16_t)i;
    all[0]->from_f16(codes, want, 1 << 16);
    for (size_t k = 0; k < sets; k++) {
        all[k]->from_f16(codes, got, 1 << 16);
        for (size_t i = 0; i < 1 << 16; i++)
            assert_true((isnan(want[i]) && isnan(got[i])) || want[i] == got[i]);
        all[k]->to_f16(got, back, 1 << 16);
        for (size_t i = 0; i < 1 << 16; i++) /* infinity is clamped */
            if ((i & 0x7fff) < 0x7c00)
                assert_int_equal(back[i], i);
    }
    assert_true(want[1] == 0x1p-24f && want[0x3c00] == 1.0f && want[0x7bff] == 65504.0f);
}

static void statistics_and_codes_agree_everywhere(void **state)
{
    const struct codec_kernels *all[CODEC_KERNEL_SETS];
    static float x[NUMBERS], borders[CODEC_BORDERS];
    static uint8_t want[NUMBERS], got[NUMBERS];
    const struct codec_grid grid = {0.01f, 1e-9f, 256 / 6.0f};

    (void)state;
    for (size_t i = 0; i < NUMBERS; i++)
        x[i] = random_normal();
    for (size_t i = 0; i < CODEC_BORDERS - 1; i++)
        borders[i] = ((float)i - 127.0f) / 50.0f;
    borders[CODEC_BORDERS - 1] = INFINITY;
    for (size_t k = 1; k < codec_kernels_all(all); k++)
        for (size_t n = 0; n < NUMBERS; n = n * 2 + 1) {
            double sum = all[0]->sum(x, n);
            double squares = all[0]->sum_squares(x, n, 0.5);
            assert_true(fabs(all[k]->sum(x, n) - sum) <= 1e-12 * (double)n);
            assert_true(fabs(all[k]->sum_squares(x, n, 0.5) - squares) <= 1e-12 * (double)n);
            assert_int_equal(all[k]->largest_bits(x, n), all[0]->largest_bits(x, n));
            all[0]->border_codes(x, n, borders, want);
            all[k]->border_codes(x, n, borders, got);
            assert_memory_equal(want, got, n);
            all[0]->grid_codes(x, n, &grid, want);
            all[k]->grid_codes(x, n, &grid, got);
            for (size_t i = 0; i < n; i++) /* an FMA may tip what lies on a border */
                assert_true(abs((int)want[i] - (int)got[i]) <= 1);
            all[0]->quantize(x, n, 20.0f, (int8_t *)want);
            all[k]->quantize(x, n, 20.0f, (int8_t *)got);
            assert_memory_equal(want, got, n);
        }
}

/* ---- quantile8 and uniform8 against their definitions ---- */

enum { LARGE = 100003 }; /* large enough for bins, and no multiple of anything */

static float spread_normal(size_t i)
{
    (void)i;
    return random_normal();
}

static float far_from_zero(size_t i)
{
    (void)i;
    return 10000.0f + random_normal();
}

static float two_scales(size_t i)
{
    return i % 2 == 0 ? random_normal() : random_normal() * 1e-4f;
}

static float few_values(size_t i)
{
    (void)i;
    return (float)(random_bits() % 7) * 0.1f;
}

static float clipped(size_t i)
{
    float x = random_normal();

    (void)i;
    return x > 0.0f ? x : 0.0f;
}

static float with_outliers(size_t i)
{
    return i % 1000 == 7 ? random_normal() * 1e30f : random_normal();
}

static float heavy_tails(size_t i)
{
    (void)i;
    return random_normal() / (0.01f + fabsf(random_normal()));
}

static float rising(size_t i)
{
    return (float)i;
}

static float nearly_constant(size_t i)
{
    return i == 5 ? 1.0f : 0.25f;
}

static float (*const kinds[])(size_t i) = {spread_normal, far_from_zero, two_scales,
                                           few_values,    clipped,       with_outliers,
                                           heavy_tails,   rising,        nearly_constant};

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static void quantile_codes(const float *x, size_t n, uint8_t *codes)
{
    float *sorted = malloc(n * sizeof(*sorted));
    double borders[255];

    assert_non_null(sorted);
    memcpy(sorted, x, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), compare_floats);
    for (size_t i = 0; i < 255; i++) {
        double at = (double)(i + 1) / 256 * (double)(n - 1);
        size_t low = (size_t)at;
        borders[i] = (double)sorted[low] +
                     ((double)sorted[low + 1] - (double)sorted[low]) * (at - (double)low);
    }
    for (size_t i = 0; i < n; i++) {
        codes[i] = 0;
        while (codes[i] < 255 && borders[codes[i]] < (double)x[i])
            codes[i]++;
    }
    free(sorted);
}

/* The means of the elements of each code, by the obvious way. */
static void expect_codebook(const float *x, size_t n, const uint8_t *codes, const float *codebook)
{
    double sums[256] = {0}, counts[256] = {0}, largest = 0;

    for (size_t i = 0; i < n; i++) {
        sums[codes[i]] += (double)x[i];
        counts[codes[i]]++;
        largest = fabs((double)x[i]) > largest ? fabs((double)x[i]) : largest;
    }
    for (int c = 0; c < 256; c++) {
        double mean = counts[c] > 0 ? sums[c] / counts[c] : 0.0;
        if (!(fabs((double)codebook[c] - mean) <= 0x1p-23 * fabs(mean) + 0x1p-35 * largest))
            fail_msg("codebook[%d] is %g, expected %g", c, (double)codebook[c], mean);
    }
}

static void check_quantiles(const float *x, size_t n, uint8_t *encoded, uint8_t *codes)
{
    struct codec_array a = {.rows = 1, .columns = n, .count = n};

    quantile_codes(x, n, codes);
    assert_int_equal(quantile8_encode(&a, x, encoded), CODEC_DONE);
    assert_memory_equal(encoded + CODEC_CODEBOOK_BYTES, codes, n);
    expect_codebook(x, n, codes, (const float *)(const void *)encoded);
}

static void quantiles_are_exact_for_every_kind_of_data(void **state)
{
    (void)state;
    static const size_t sizes[] = {2, 257, 5000, 32767, 32768, LARGE};
    const struct codec_kernels *sets[CODEC_KERNEL_SETS];
    size_t set_count = codec_kernels_all(sets);
    float *x = malloc(LARGE * sizeof(*x));
    uint8_t *codes = malloc(LARGE);
    uint8_t *encoded = aligned_alloc(64, (CODEC_CODEBOOK_BYTES + LARGE + 63) / 64 * 64);

    assert_true(x != NULL && codes != NULL && encoded != NULL);
    for (size_t kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
        for (size_t i = 0; i < LARGE; i++)
            x[i] = kinds[kind](i);
        for (size_t set = 0; set < set_count; set++) {
            codec_kernels_force(sets[set]);
            for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
                check_quantiles(x, sizes[s], encoded, codes);
        }
        codec_kernels_force(NULL);
    }
    free(encoded);
    free(codes);
    free(x);
}

static void uniform_means_are_exact_for_every_kind_of_data(void **state)
{
    (void)state;
    struct codec_array a = {.rows = 1, .columns = LARGE, .count = LARGE};
    const struct codec_kernels *sets[CODEC_KERNEL_SETS];
    size_t set_count = codec_kernels_all(sets);
    float *x = malloc(LARGE * sizeof(*x));
    uint8_t *encoded = aligned_alloc(64, (CODEC_CODEBOOK_BYTES + LARGE + 63) / 64 * 64);

    assert_true(x != NULL && encoded != NULL);
    for (size_t kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
        double mean = 0, squares = 0;
        for (size_t i = 0; i < LARGE; i++)
            mean += (double)(x[i] = kinds[kind](i)) / LARGE;
        for (size_t i = 0; i < LARGE; i++)
            squares += ((double)x[i] - mean) * ((double)x[i] - mean);
        double step = 6.0 * sqrt(squares / (LARGE - 1)) / 256;
        for (size_t set = 0; set < set_count; set++) {
            codec_kernels_force(sets[set]);
            assert_int_equal(uniform8_encode(&a, x, encoded), CODEC_DONE);
            const uint8_t *codes = encoded + CODEC_CODEBOOK_BYTES;
            for (size_t i = 0; i < LARGE; i++) { /* on a border either neighbour will do */
                double steps = ((double)x[i] - mean) / step;
                steps = steps > 127.0 ? 127.0 : steps < -128.0 ? -128.0 : steps;
                if (!(fabs(steps - (codes[i] - 128)) <= 0.5001))
                    fail_msg("kind %zu: element %zu has code %d at %g steps", kind, i, codes[i],
                             steps);
            }
            expect_codebook(x, LARGE, codes, (const float *)(const void *)encoded);
        }
        codec_kernels_force(NULL);
    }
    free(encoded);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_numbers_belong_together),
        cmocka_unit_test(other_types_than_f32_travel_as_they_are),
        cmocka_unit_test(encodings_that_save_nothing_are_not_used),
        cmocka_unit_test(sizes_are_those_of_the_protocol),
        cmocka_unit_test(not_finite_travels_as_float32_where_there_is_no_place_for_it),
        cmocka_unit_test(opposite_infinities_are_noticed),
        cmocka_unit_test(constants_come_back_as_they_were),
        cmocka_unit_test(finite_input_never_becomes_nan),
        cmocka_unit_test(precision_is_that_of_the_scheme_at_every_scale),
        cmocka_unit_test(wrong_sizes_are_refused),
        cmocka_unit_test(sizes_that_do_not_fit_are_refused),
        cmocka_unit_test(any_bytes_decode_to_something),
        cmocka_unit_test(empty_and_scalar_tensors_decode),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(sixteen_bits_are_the_same_everywhere),
        cmocka_unit_test(every_half_is_the_same_everywhere),
        cmocka_unit_test(statistics_and_codes_agree_everywhere),
        cmocka_unit_test(quantiles_are_exact_for_every_kind_of_data),
        cmocka_unit_test(uniform_means_are_exact_for_every_kind_of_data),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
