/*
 * The loops of codec_kernels.h, written once, in a form that compilers turn into vector code.
 * Included by codec_<set>.c, which define CODEC_NAME and CODEC_TEXT; everything here is static, so
 * that no function compiled for a newer CPU can be picked by the linker for an older one.
 */
#include "wire/codec_kernels.h"

#include <string.h>

#if defined(__AVX__)
#include <immintrin.h>
#endif

/* As many elements as a register holds doubles: unaligned floats, and as doubles. Of vectors that
 * are wider than a register, gcc 12 keeps the parts in memory. All sets add in the same order. */
#if defined(__AVX512F__)
enum { LANES = 8 };
#elif defined(__AVX__)
enum { LANES = 4 };
#else
enum { LANES = 2 };
#endif
enum { UNROLLED = 32 / LANES };
typedef float vec __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));
typedef double vec_double __attribute__((vector_size(LANES * sizeof(double))));
typedef uint64_t vec_bits __attribute__((vector_size(LANES * sizeof(uint64_t))));
typedef int32_t vec_words __attribute__((vector_size(LANES * sizeof(int32_t))));

/* One instruction, where gcc 12 makes four of __builtin_convertvector(). */
static inline vec_double load_doubles(const float *x)
{
#if defined(__AVX512F__)
    return (vec_double)_mm512_cvtps_pd(_mm256_loadu_ps(x));
#elif defined(__AVX__)
    return (vec_double)_mm256_cvtps_pd(_mm_loadu_ps(x));
#else
    return __builtin_convertvector(*(const vec *)x, vec_double);
#endif
}

static inline uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* ---- 16 bits ---- */

enum {
    MAGNITUDE = 0x7fffffff,
    INFINITE = 0x7f800000,
    F16_LARGEST = 0x477fe000,         /* 65504 */
    F16_LEAST_NORMAL = 0x38800000,    /* 2^-14 */
    F16_REBIAS = 112 << 23,           /* between the exponents of the two formats */
    F16_INFINITE_SHIFTED = 0xf800000, /* 0x7c00 << 13 */
};

static inline uint16_t half_of(float x)
{
    uint32_t sign = bits_of(x) >> 16 & 0x8000u;
    uint32_t a = bits_of(x) & MAGNITUDE;
    uint32_t clamped = a > F16_LARGEST ? F16_LARGEST : a;
    uint32_t normal = (clamped - F16_REBIAS + 0xfff + (clamped >> 13 & 1)) >> 13;
    /* The unit of 0.5 is that of subnormals: the addition rounds to it. */
    uint32_t subnormal = bits_of(float_of(clamped) + 0.5f) - bits_of(0.5f);
    uint32_t value = clamped < F16_LEAST_NORMAL ? subnormal : normal;

    return (uint16_t)(sign | (a > INFINITE ? 0x7e00u : value));
}

static inline float float_of_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t a = (uint32_t)(half & 0x7fff) << 13;
    uint32_t finite = bits_of(float_of(a) * 0x1p112f); /* also brings subnormals to their place */

    return float_of(sign | (a >= F16_INFINITE_SHIFTED ? a | INFINITE : finite));
}

#if defined(__AVX512F__)
enum { HALVES = 16 };
typedef __m512 halves_vec;
#define HALVES_LOAD(p) _mm512_loadu_ps(p)
#define HALVES_STORE(p, v) _mm512_storeu_ps(p, v)
#define HALVES_SET(x) _mm512_set1_ps(x)
#define HALVES_SUB(a, b) _mm512_sub_ps(a, b)
#define HALVES_DIV(a, b) _mm512_div_ps(a, b)
#define HALVES_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define HALVES_MIN(a, b) _mm512_min_ps(a, b)
#define HALVES_MAX(a, b) _mm512_max_ps(a, b)
#define HALVES_PACK(p, v)                                                                          \
    _mm256_storeu_si256((__m256i *)(void *)(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT))
#define HALVES_UNPACK(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#elif defined(__F16C__)
enum { HALVES = 8 };
typedef __m256 halves_vec;
#define HALVES_LOAD(p) _mm256_loadu_ps(p)
#define HALVES_STORE(p, v) _mm256_storeu_ps(p, v)
#define HALVES_SET(x) _mm256_set1_ps(x)
#define HALVES_SUB(a, b) _mm256_sub_ps(a, b)
#define HALVES_DIV(a, b) _mm256_div_ps(a, b)
#define HALVES_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define HALVES_MIN(a, b) _mm256_min_ps(a, b)
#define HALVES_MAX(a, b) _mm256_max_ps(a, b)
#define HALVES_PACK(p, v)                                                                          \
    _mm_storeu_si128((__m128i *)(void *)(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT))
#define HALVES_UNPACK(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#endif

#if defined(__F16C__)
/* Of a NaN and a number, these instructions give their second operand: a NaN stays one. */
static inline halves_vec clamp_halves(halves_vec x)
{
    return HALVES_MAX(HALVES_SET(-65504.0f), HALVES_MIN(HALVES_SET(65504.0f), x));
}
#endif

static void CODEC_NAME(to_f16)(const float *restrict x, uint16_t *restrict out, size_t n)
{
    size_t i = 0;

#if defined(__F16C__)
    for (; i + HALVES <= n; i += HALVES)
        HALVES_PACK(out + i, clamp_halves(HALVES_LOAD(x + i)));
#endif
    for (; i < n; i++)
        out[i] = half_of(x[i]);
}

static void CODEC_NAME(from_f16)(const uint16_t *restrict in, float *restrict out, size_t n)
{
    size_t i = 0;

#if defined(__F16C__)
    for (; i + HALVES <= n; i += HALVES)
        HALVES_STORE(out + i, HALVES_UNPACK(in + i));
#endif
    for (; i < n; i++)
        out[i] = float_of_half(in[i]);
}

static void CODEC_NAME(to_bf16)(const float *restrict x, uint16_t *restrict out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(x[i]);
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        uint32_t quiet = bits >> 16 | 0x40;
        out[i] = (uint16_t)((bits & MAGNITUDE) > INFINITE ? quiet : rounded);
    }
}

static void CODEC_NAME(from_bf16)(const uint16_t *restrict in, float *restrict out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = float_of((uint32_t)in[i] << 16);
}

/* ---- statistics ---- */

static inline double add_lanes(const vec_double *sums)
{
    double t[LANES * UNROLLED];

    memcpy(t, sums, sizeof(t));
    for (int half = LANES * UNROLLED / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            t[i] += t[i + half];
    return t[0];
}

static double CODEC_NAME(sum)(const float *x, size_t n)
{
    vec_double sums[UNROLLED] = {{0}};
    size_t i = 0;

    for (; i + LANES * UNROLLED <= n; i += LANES * UNROLLED)
        for (size_t k = 0; k < UNROLLED; k++)
            sums[k] += load_doubles(x + i + k * LANES);
    double total = add_lanes(sums);
    for (; i < n; i++)
        total += (double)x[i];
    return total;
}

static double CODEC_NAME(sum_squares)(const float *x, size_t n, double mean)
{
    vec_double sums[UNROLLED] = {{0}};
    size_t i = 0;

    for (; i + LANES * UNROLLED <= n; i += LANES * UNROLLED)
        for (size_t k = 0; k < UNROLLED; k++) {
            vec_double d = load_doubles(x + i + k * LANES) - mean;
            sums[k] += d * d;
        }
    double total = add_lanes(sums);
    for (; i < n; i++)
        total += ((double)x[i] - mean) * ((double)x[i] - mean);
    return total;
}

enum { MOMENT_VECTORS = 2 };

static struct codec_moments CODEC_NAME(moments)(const float *x, size_t n, double shift)
{
    vec_double sums[MOMENT_VECTORS] = {{0}}, squares[MOMENT_VECTORS] = {{0}};
    vec_words largest[MOMENT_VECTORS] = {{0}};
    struct codec_moments m = {0};
    size_t i = 0;

    for (; i + LANES * MOMENT_VECTORS <= n; i += LANES * MOMENT_VECTORS)
        for (size_t k = 0; k < MOMENT_VECTORS; k++) {
            vec v = *(const vec *)(x + i + k * LANES);
            vec_words bits = (vec_words)v & MAGNITUDE;
            vec_double d = load_doubles(x + i + k * LANES) - shift;
            sums[k] += d;
            squares[k] += d * d;
            vec_words larger = bits > largest[k];
            largest[k] = (bits & larger) | (largest[k] & ~larger);
        }
    for (size_t k = 0; k < MOMENT_VECTORS; k++)
        for (size_t lane = 0; lane < LANES; lane++) {
            m.sum += sums[k][lane];
            m.squares += squares[k][lane];
            uint32_t bits = (uint32_t)largest[k][lane];
            m.largest_bits = bits > m.largest_bits ? bits : m.largest_bits;
        }
    for (; i < n; i++) {
        double d = (double)x[i] - shift;
        uint32_t bits = bits_of(x[i]) & MAGNITUDE;
        m.sum += d;
        m.squares += d * d;
        m.largest_bits = bits > m.largest_bits ? bits : m.largest_bits;
    }
    return m;
}

/* Added to a number of less than 2^51 it leaves the nearest whole number in the lowest bits. */
#define DOUBLE_ROUNDER 0x1.8p52
#define DOUBLE_ROUNDER_BITS UINT64_C(0x4338000000000000)

static void CODEC_NAME(fixed)(const float *restrict x, size_t n, double scale,
                              uint64_t *restrict out)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        vec_double d = load_doubles(x + i) * scale + DOUBLE_ROUNDER;
        vec_bits bits = (vec_bits)d - (DOUBLE_ROUNDER_BITS - CODEC_FIXED_ONE);
        memcpy(out + i, &bits, sizeof(bits));
    }
    for (; i < n; i++) {
        double d = (double)x[i] * scale + DOUBLE_ROUNDER;
        uint64_t bits;
        memcpy(&bits, &d, sizeof(bits));
        out[i] = bits - (DOUBLE_ROUNDER_BITS - CODEC_FIXED_ONE);
    }
}

static uint32_t CODEC_NAME(largest_bits)(const float *x, size_t n)
{
    uint32_t largest = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(x[i]) & MAGNITUDE;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* ---- mean and deviation ---- */

static void CODEC_NAME(normalize)(const float *restrict x, size_t n, float mean, float std,
                                  uint16_t *restrict out)
{
    size_t i = 0;

#if defined(__F16C__)
    halves_vec means = HALVES_SET(mean), stds = HALVES_SET(std);
    for (; i + HALVES <= n; i += HALVES)
        HALVES_PACK(out + i, clamp_halves(HALVES_DIV(HALVES_SUB(HALVES_LOAD(x + i), means), stds)));
#endif
    for (; i < n; i++)
        out[i] = half_of((x[i] - mean) / std);
}

static void CODEC_NAME(restore)(const uint16_t *restrict in, size_t n, float mean, float std,
                                float *restrict out)
{
    size_t i = 0;

#if defined(__F16C__)
    halves_vec means = HALVES_SET(mean), stds = HALVES_SET(std);
    for (; i + HALVES <= n; i += HALVES)
        HALVES_STORE(out + i, HALVES_FMA(HALVES_UNPACK(in + i), stds, means));
#endif
    for (; i < n; i++) /* the product is exact in double */
        out[i] = (float)((double)float_of_half(in[i]) * (double)std + (double)mean);
}

/* ---- 8 bits ---- */

/* Added to a number of less than 2^22 it leaves the nearest whole number, halves to even, in the
 * lowest bits: without an instruction for rounding, so on every CPU. */
#define ROUNDER 0x1.8p23f

static inline uint8_t rounded_byte(float x)
{
    return (uint8_t)bits_of(x + ROUNDER);
}

#if defined(__AVX2__)
static inline __m256i grid_steps(const float *x, const struct codec_grid *g)
{
    __m256 away = _mm256_sub_ps(_mm256_loadu_ps(x), _mm256_set1_ps(g->mean));
    __m256 steps = _mm256_mul_ps(_mm256_sub_ps(away, _mm256_set1_ps(g->mean_rest)),
                                 _mm256_set1_ps(g->per_step));

    steps = _mm256_max_ps(_mm256_min_ps(steps, _mm256_set1_ps(127.0f)), _mm256_set1_ps(-128.0f));
    return _mm256_cvtps_epi32(steps); /* halves to even, as rounded_byte() */
}
#endif

static void CODEC_NAME(grid_codes)(const float *restrict x, size_t n, const struct codec_grid *grid,
                                   uint8_t *restrict out)
{
    struct codec_grid g = *grid;
    size_t i = 0;

#if defined(__AVX2__)
    for (; i + 32 <= n; i += 32) {
        __m256i a = grid_steps(x + i, &g), b = grid_steps(x + i + 8, &g);
        __m256i c = grid_steps(x + i + 16, &g), d = grid_steps(x + i + 24, &g);
        __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        /* Packing works in the two halves apart: back into order. */
        packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        packed = _mm256_xor_si256(packed, _mm256_set1_epi8((char)0x80));
        _mm256_storeu_si256((__m256i *)(void *)(out + i), packed);
    }
#endif
    for (; i < n; i++) {
        float steps = (x[i] - g.mean - g.mean_rest) * g.per_step;
        steps = steps > 127.0f ? 127.0f : steps;
        steps = steps < -128.0f ? -128.0f : steps;
        out[i] = (uint8_t)(rounded_byte(steps) ^ 0x80);
    }
}

/* Each step keeps the order of the elements: a larger x never gets a smaller bin. */
static void CODEC_NAME(bins)(const float *restrict x, size_t n, float low, float per_bin,
                             uint16_t last, uint16_t *restrict out)
{
    float most = (float)last;

    for (size_t i = 0; i < n; i++) {
        float bin = (x[i] - low) * per_bin;
        bin = bin < most ? bin : most;
        bin = bin > 0.0f ? bin : 0.0f;
        out[i] = (uint16_t)(int32_t)bin;
    }
}

enum { SEARCHES = 16 };

/* Binary searches side by side: one waits for the memory of another no more. */
static void CODEC_NAME(border_codes)(const float *restrict x, size_t n,
                                     const float borders[static CODEC_BORDERS],
                                     uint8_t *restrict out)
{
    size_t i = 0;

    for (; i + SEARCHES <= n; i += SEARCHES) {
        uint32_t at[SEARCHES] = {0};
        for (uint32_t step = CODEC_BORDERS / 2; step > 0; step /= 2)
            for (int k = 0; k < SEARCHES; k++)
                at[k] += borders[at[k] + step - 1] < x[i + (size_t)k] ? step : 0;
        for (int k = 0; k < SEARCHES; k++)
            out[i + (size_t)k] = (uint8_t)at[k];
    }
    for (; i < n; i++) {
        uint32_t at = 0;
        for (uint32_t step = CODEC_BORDERS / 2; step > 0; step /= 2)
            at += borders[at + step - 1] < x[i] ? step : 0;
        out[i] = (uint8_t)at;
    }
}

static void CODEC_NAME(look_up)(const uint8_t *restrict codes, size_t n,
                                const float codebook[static 256], float *restrict out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = codebook[codes[i]];
}

static void CODEC_NAME(quantize)(const float *restrict x, size_t n, float factor,
                                 int8_t *restrict out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (int8_t)rounded_byte(x[i] * factor);
}

static void CODEC_NAME(dequantize)(const int8_t *restrict codes, size_t n, float scale,
                                   float *restrict out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (float)codes[i] * scale;
}

const struct codec_kernels CODEC_NAME(codec_kernels) = {
    .name = CODEC_TEXT,
    .to_f16 = CODEC_NAME(to_f16),
    .from_f16 = CODEC_NAME(from_f16),
    .to_bf16 = CODEC_NAME(to_bf16),
    .from_bf16 = CODEC_NAME(from_bf16),
    .sum = CODEC_NAME(sum),
    .sum_squares = CODEC_NAME(sum_squares),
    .moments = CODEC_NAME(moments),
    .fixed = CODEC_NAME(fixed),
    .largest_bits = CODEC_NAME(largest_bits),
    .normalize = CODEC_NAME(normalize),
    .restore = CODEC_NAME(restore),
    .grid_codes = CODEC_NAME(grid_codes),
    .bins = CODEC_NAME(bins),
    .border_codes = CODEC_NAME(border_codes),
    .look_up = CODEC_NAME(look_up),
    .quantize = CODEC_NAME(quantize),
    .dequantize = CODEC_NAME(dequantize),
};
