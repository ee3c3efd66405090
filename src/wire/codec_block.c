/*
 * blockwise8: 127 steps to either side in blocks of 4096 elements, by the largest of each.
 * Encoded: the largest absolute values (F32, one a block), codes (I8).
 */
#include "wire/codec_schemes.h"

#include <math.h>
#include <string.h>

#include "wire/codec_kernels.h"

enum { STEPS = 127, INFINITE_BITS = 0x7f800000 };

/* Inside, 127 / largest and largest / 127 are floats of full precision. */
#define LEAST 1e-35f
#define LARGEST 1e38f

static size_t block_count(size_t n)
{
    return n / CODEC_BLOCK + (n % CODEC_BLOCK != 0);
}

static size_t block_size(size_t n, size_t block)
{
    size_t left = n - block * CODEC_BLOCK;

    return left < CODEC_BLOCK ? left : CODEC_BLOCK;
}

static bool is_plain(float largest)
{
    return largest >= LEAST && largest <= LARGEST;
}

static void quantize_wide(const float *x, size_t n, float largest, int8_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (int8_t)rint((double)x[i] / (double)largest * STEPS);
}

static void dequantize_wide(const int8_t *codes, size_t n, float largest, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (float)((double)codes[i] * (double)largest / STEPS);
}

enum codec_result blockwise8_encode(const struct codec_array *a, const float *x, uint8_t *out)
{
    const struct codec_kernels *k = codec_kernels();
    float *largest = (float *)(void *)out;
    int8_t *codes = (int8_t *)(largest + block_count(a->count));

    for (size_t b = 0; b < block_count(a->count); b++) {
        const float *block = x + b * CODEC_BLOCK;
        size_t n = block_size(a->count, b);
        uint32_t bits = k->largest_bits(block, n);

        if (bits >= INFINITE_BITS)
            return CODEC_NOT_FINITE;
        memcpy(&largest[b], &bits, sizeof(bits));
        if (bits == 0)
            memset(codes + b * CODEC_BLOCK, 0, n);
        else if (is_plain(largest[b]))
            k->quantize(block, n, STEPS / largest[b], codes + b * CODEC_BLOCK);
        else
            quantize_wide(block, n, largest[b], codes + b * CODEC_BLOCK);
    }
    return CODEC_DONE;
}

void blockwise8_decode(const struct codec_array *a, const uint8_t *in, float *out)
{
    const float *largest = (const float *)(const void *)in;
    const int8_t *codes = (const int8_t *)(largest + block_count(a->count));

    for (size_t b = 0; b < block_count(a->count); b++) {
        size_t n = block_size(a->count, b);
        float *block = out + b * CODEC_BLOCK;

        if (is_plain(largest[b]))
            codec_kernels()->dequantize(codes + b * CODEC_BLOCK, n, largest[b] / STEPS, block);
        else
            dequantize_wide(codes + b * CODEC_BLOCK, n, largest[b], block);
    }
}
