/*
 * meanstd16: each row of the last axis as float16 around its mean, in units of its deviation.
 * Encoded: means (F32, one a row), deviations (F32, one a row), codes (F16).
 */
#include "wire/codec_schemes.h"

#include <float.h>
#include <math.h>

#include "wire/codec_kernels.h"

/* The least deviation: 2^-23. */
#define LEAST_STD 0x1p-23f

/* Beyond, differences and products may leave the range of float: they are made in double. */
#define WIDE 1e30f

static bool is_wide(float mean, float std)
{
    return !(fabsf(mean) <= WIDE && std <= WIDE);
}

static void normalize_wide(const float *x, size_t n, float mean, float std, uint16_t *out)
{
    for (size_t i = 0; i < n; i++) {
        float code = (float)(((double)x[i] - (double)mean) / (double)std);
        codec_kernels()->to_f16(&code, &out[i], 1);
    }
}

static void restore_wide(const uint16_t *in, size_t n, float mean, float std, float *out)
{
    for (size_t i = 0; i < n; i++) {
        float code;
        codec_kernels()->from_f16(&in[i], &code, 1);
        out[i] = (float)((double)code * (double)std + (double)mean);
    }
}

static enum codec_result encode_row(const float *x, size_t n, float *mean, float *std,
                                    uint16_t *codes)
{
    const struct codec_kernels *k = codec_kernels();
    double exact = k->sum(x, n) / (double)n;

    if (!isfinite(exact))
        return CODEC_NOT_FINITE;
    float deviation = (float)sqrt(k->sum_squares(x, n, exact) / (double)n);
    *mean = (float)exact;
    *std = deviation < LEAST_STD ? LEAST_STD : deviation;
    if (is_wide(*mean, *std))
        normalize_wide(x, n, *mean, *std, codes);
    else
        k->normalize(x, n, *mean, *std, codes);
    return CODEC_DONE;
}

enum codec_result meanstd16_encode(const struct codec_array *a, const float *x, uint8_t *out)
{
    float *means = (float *)(void *)out;
    float *stds = means + a->rows;
    uint16_t *codes = (uint16_t *)(void *)(stds + a->rows);

    for (size_t r = 0; r < a->rows; r++) {
        enum codec_result result =
            encode_row(x + r * a->columns, a->columns, &means[r], &stds[r], codes + r * a->columns);
        if (result != CODEC_DONE)
            return result;
    }
    return CODEC_DONE;
}

void meanstd16_decode(const struct codec_array *a, const uint8_t *in, float *out)
{
    const struct codec_kernels *k = codec_kernels();
    const float *means = (const float *)(const void *)in;
    const float *stds = means + a->rows;
    const uint16_t *codes = (const uint16_t *)(const void *)(stds + a->rows);

    for (size_t r = 0; r < a->rows; r++) {
        size_t first = r * a->columns;
        if (is_wide(means[r], stds[r]))
            restore_wide(codes + first, a->columns, means[r], stds[r], out + first);
        else
            k->restore(codes + first, a->columns, means[r], stds[r], out + first);
    }
}
