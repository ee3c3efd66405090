/*
 * uniform8 and quantile8: each element as one of 256 values, the mean of the elements that share
 * it. They differ in how elements are shared out. Encoded: codebook (F32, 256), codes (U8).
 */
#include "wire/codec_schemes.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/block_cache.h"
#include "wire/codec_kernels.h"

enum {
    CODES = 256,
    MIDDLE = 128,
    TABLES = 4,              /* equal neighbours do not wait for each other's sums */
    PIECE = 4096,            /* stays in the first-level cache between two passes */
    COUNTED_PIECE = 1 << 30, /* fewer than what a 32-bit counter holds */
};

/* ---- The codebook ---- */

struct tally {
    double sums[TABLES][CODES];
    uint32_t counts[TABLES][CODES];
};

static inline void add_one(struct tally *t, int table, const float *x, const uint8_t *codes,
                           size_t i)
{
    t->sums[table][codes[i]] += (double)x[i];
    t->counts[table][codes[i]]++;
}

static void add_piece(struct tally *t, const float *x, const uint8_t *codes, size_t n)
{
    size_t i = 0;

    for (; i + TABLES <= n; i += TABLES)
        for (int k = 0; k < TABLES; k++)
            add_one(t, k, x, codes, i + (size_t)k);
    for (; i < n; i++)
        add_one(t, 0, x, codes, i);
}

/* Moves what was counted on to the totals. */
static void empty_tally(struct tally *t, double *sums, double *counts)
{
    for (int k = 0; k < TABLES; k++)
        for (int c = 0; c < CODES; c++) {
            sums[c] += t->sums[k][c];
            counts[c] += (double)t->counts[k][c];
        }
    memset(t, 0, sizeof(*t));
}

static void make_codebook(const float *x, const uint8_t *codes, size_t n, float *codebook)
{
    struct tally tally;
    double sums[CODES] = {0}, counts[CODES] = {0};

    memset(&tally, 0, sizeof(tally));
    for (size_t i = 0; i < n; i += COUNTED_PIECE) {
        add_piece(&tally, x + i, codes + i, n - i < COUNTED_PIECE ? n - i : COUNTED_PIECE);
        empty_tally(&tally, sums, counts);
    }
    for (int c = 0; c < CODES; c++)
        codebook[c] = counts[c] > 0 ? (float)(sums[c] / counts[c]) : 0.0f;
}

void codebook_decode(const struct codec_array *a, const uint8_t *in, float *out)
{
    codec_kernels()->look_up(in + CODEC_CODEBOOK_BYTES, a->count, (const float *)(const void *)in,
                             out);
}

/* ---- uniform8 ---- */

/* Mean and sum of squared deviations in one pass over memory: piece by piece, joined as in Chan,
 * Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances".
 */
static bool spread(const float *x, size_t n, double *mean, double *squares)
{
    const struct codec_kernels *k = codec_kernels();

    *mean = *squares = 0.0;
    for (size_t i = 0; i < n; i += PIECE) {
        size_t m = n - i < PIECE ? n - i : PIECE;
        double piece_mean = k->sum(x + i, m) / (double)m;
        double apart = piece_mean - *mean;
        double share = (double)m / (double)(i + m);

        if (!isfinite(piece_mean))
            return false;
        *squares += k->sum_squares(x + i, m, piece_mean) + apart * apart * share * (double)i;
        *mean += apart * share;
    }
    return true;
}

/* Steps that have no float for their inverse. */
static void grid_codes_wide(const float *x, size_t n, double mean, double step, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) {
        double steps = rint(((double)x[i] - mean) / step);
        steps = steps > 127.0 ? 127.0 : steps;
        steps = steps < -128.0 ? -128.0 : steps;
        out[i] = (uint8_t)((int)steps + MIDDLE);
    }
}

enum codec_result uniform8_encode(const struct codec_array *a, const float *x, uint8_t *out)
{
    uint8_t *codes = out + CODEC_CODEBOOK_BYTES;
    double mean, squares;

    if (!spread(x, a->count, &mean, &squares))
        return CODEC_NOT_FINITE;
    double step = a->count < 2 ? 0.0 : 6.0 * sqrt(squares / (double)(a->count - 1)) / CODES;
    struct codec_grid grid = {.mean = (float)mean, .per_step = (float)(1.0 / step)};
    grid.mean_rest = (float)(mean - (double)grid.mean);
    if (!(step > 0.0))
        memset(codes, MIDDLE, a->count);
    else if (step > 1e-35 && step < 1e35)
        codec_kernels()->grid_codes(x, a->count, &grid, codes);
    else
        grid_codes_wide(x, a->count, mean, step, codes);
    make_codebook(x, codes, a->count, (float *)(void *)out);
    return CODEC_DONE;
}

/* ---- quantile8 ---- */

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, PASSES = 3 };

/* Numbers that are in the order of the floats. */
static inline uint32_t key_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits ^ ((uint32_t) - (int32_t)(bits >> 31) | UINT32_C(0x80000000));
}

static inline float float_of_key(uint32_t key)
{
    uint32_t bits = key ^ (((key >> 31) - 1) | UINT32_C(0x80000000));
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline size_t digit_of(uint32_t key, int pass)
{
    return key >> pass * DIGIT_BITS & (DIGITS - 1);
}

/* Counts of each digit become the places where its keys begin. False if all keys share one. */
static bool place(size_t *counts, size_t n)
{
    size_t before = 0;

    for (size_t d = 0; d < DIGITS; d++) {
        size_t count = counts[d];
        if (count == n)
            return false;
        counts[d] = before;
        before += count;
    }
    return true;
}

/* Radix sort of the keys of x. Returns the one of the two arrays of n in which they are sorted. */
static uint32_t *sort_keys(const float *x, size_t n, uint32_t *keys, uint32_t *other,
                           size_t (*places)[DIGITS])
{
    memset(places, 0, PASSES * sizeof(*places));
    for (size_t i = 0; i < n; i++) {
        keys[i] = key_of(x[i]);
        for (int pass = 0; pass < PASSES; pass++)
            places[pass][digit_of(keys[i], pass)]++;
    }
    for (int pass = 0; pass < PASSES; pass++) {
        if (!place(places[pass], n))
            continue;
        for (size_t i = 0; i < n; i++)
            other[places[pass][digit_of(keys[i], pass)]++] = keys[i];
        uint32_t *sorted = other;
        other = keys;
        keys = sorted;
    }
    return keys;
}

/* The largest float that is not above: x > border exactly if x > it, for any float x. */
static float float_below(double border)
{
    float f = (float)border;

    return (double)f > border ? nextafterf(f, -INFINITY) : f;
}

static void find_borders(const uint32_t *sorted, size_t n, float *borders)
{
    for (size_t i = 1; i < CODES; i++) {
        double at = (double)i / CODES * (double)(n - 1);
        size_t low = (size_t)at;
        double a = (double)float_of_key(sorted[low]);
        double b = (double)float_of_key(sorted[low + 1 < n ? low + 1 : low]);

        borders[i - 1] = float_below(a + (b - a) * (at - (double)low));
    }
    borders[CODES - 1] = INFINITY;
}

/* All of the elements are sorted: borders are exact, and the memory, twice that of the tensor, is
 * known beforehand. */
enum codec_result quantile8_encode(const struct codec_array *a, const float *x, uint8_t *out)
{
    uint8_t *codes = out + CODEC_CODEBOOK_BYTES;
    size_t places_bytes = PASSES * DIGITS * sizeof(size_t);
    size_t bytes, capacity;
    float borders[CODES];

    if (codec_kernels()->largest_bits(x, a->count) >= 0x7f800000)
        return CODEC_NOT_FINITE;
    if (!size_mul(a->count, 2 * sizeof(uint32_t), &bytes) || !size_add(bytes, places_bytes, &bytes))
        return CODEC_NO_MEMORY;
    uint8_t *scratch = block_alloc(64, bytes, &capacity);
    if (scratch == NULL)
        return CODEC_NO_MEMORY;
    uint32_t *keys = (uint32_t *)(void *)(scratch + places_bytes);
    find_borders(sort_keys(x, a->count, keys, keys + a->count, (size_t(*)[DIGITS])(void *)scratch),
                 a->count, borders);
    block_free(scratch, capacity);
    codec_kernels()->border_codes(x, a->count, borders, codes);
    make_codebook(x, codes, a->count, (float *)(void *)out);
    return CODEC_DONE;
}
