/*
 * uniform8 and quantile8: each element as one of 256 values, the mean of the elements that share
 * it. They differ in how elements are shared out. Encoded: codebook (F32, 256), codes (U8).
 */
#include "wire/codec_schemes.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/block_cache.h"
#include "base/bytes.h"
#include "wire/codec_kernels.h"

enum {
    CODES = 256,
    MIDDLE = 128,
    TABLES = 4, /* equal neighbours do not wait for each other's sums */
    PIECE =
        2048, /* stays in the first-level cache between two passes, as fixed-point numbers too */
    TALLY_PIECE = TABLES << CODEC_FIXED_COUNT_BITS, /* elements between two clearings of a tally */
};

/* ---- The codebook ---- */

/* Sums of fixed-point numbers that count themselves: an element costs one addition. */
struct tally {
    uint64_t sums[TABLES][CODES];
    uint64_t fixed[PIECE];
};

static void add_piece(struct tally *t, const float *x, const uint8_t *codes, size_t n, double scale)
{
    size_t i = 0;

    codec_kernels()->fixed(x, n, scale, t->fixed);
    /* The codes of eight elements are one load, since loads are what this loop waits for. */
    for (; i + sizeof(uint64_t) <= n; i += sizeof(uint64_t)) {
        uint64_t eight = load_u64(codes + i);
        for (size_t k = 0; k < sizeof(uint64_t); k++)
            t->sums[k % TABLES][eight >> 8 * k & (CODES - 1)] += t->fixed[i + k];
    }
    for (; i < n; i++)
        t->sums[i % TABLES][codes[i]] += t->fixed[i];
}

/* Moves what was added to the totals. */
static void empty_tally(struct tally *t, double *sums, double *counts)
{
    for (int k = 0; k < TABLES; k++)
        for (int c = 0; c < CODES; c++) {
            /* The sum proper is less than half of CODEC_FIXED_ONE, but may be negative. */
            uint64_t count = (t->sums[k][c] + CODEC_FIXED_ONE / 2) / CODEC_FIXED_ONE;
            sums[c] += (double)(int64_t)(t->sums[k][c] - count * CODEC_FIXED_ONE);
            counts[c] += (double)count;
        }
    memset(t->sums, 0, sizeof(t->sums));
}

/* The power of two by which |x| becomes less than 2^CODEC_FIXED_BITS, if its bits are at most
 * these. */
static double fixed_scale(uint32_t largest_bits)
{
    float largest;
    int exponent = 0;

    memcpy(&largest, &largest_bits, sizeof(largest));
    frexp((double)largest, &exponent);
    return ldexp(1.0, CODEC_FIXED_BITS - exponent);
}

/* @param largest_bits  of the largest absolute value among x, which is finite. A mean is off by at
 * most 2^-36 of it before it becomes a float. */
static void make_codebook(const float *x, const uint8_t *codes, size_t n, uint32_t largest_bits,
                          float *codebook)
{
    struct tally tally;
    double sums[CODES] = {0}, counts[CODES] = {0};
    double scale = fixed_scale(largest_bits);

    memset(tally.sums, 0, sizeof(tally.sums));
    for (size_t i = 0; i < n; i += PIECE) {
        add_piece(&tally, x + i, codes + i, n - i < PIECE ? n - i : PIECE, scale);
        if ((i + PIECE) % TALLY_PIECE == 0 || n - i <= PIECE)
            empty_tally(&tally, sums, counts);
    }
    for (int c = 0; c < CODES; c++)
        codebook[c] = counts[c] > 0 ? (float)(sums[c] / counts[c] / scale) : 0.0f;
}

void codebook_decode(const struct codec_array *a, const uint8_t *in, float *out)
{
    codec_kernels()->look_up(in + CODEC_CODEBOOK_BYTES, a->count, (const float *)(const void *)in,
                             out);
}

/* ---- uniform8 ---- */

/* Mean and sum of squared deviations in one pass: piece by piece, joined as in Chan, Golub and
 * LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances". The sums of
 * a piece are taken about the mean of those before it, so that little cancels. */
static bool spread(const float *x, size_t n, double *mean, double *squares, uint32_t *largest_bits)
{
    *mean = (double)x[0];
    *squares = 0.0;
    *largest_bits = 0;
    for (size_t i = 0; i < n; i += PIECE) {
        size_t m = n - i < PIECE ? n - i : PIECE;
        struct codec_moments piece = codec_kernels()->moments(x + i, m, *mean);
        double apart = piece.sum / (double)m;
        double share = (double)m / (double)(i + m);

        if (piece.largest_bits >= 0x7f800000)
            return false;
        if (piece.largest_bits > *largest_bits)
            *largest_bits = piece.largest_bits;
        /* of the piece about its own mean, and the two means' distance */
        *squares += piece.squares - apart * piece.sum + apart * apart * share * (double)i;
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
    uint32_t largest_bits;

    if (!spread(x, a->count, &mean, &squares, &largest_bits))
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
    make_codebook(x, codes, a->count, largest_bits, (float *)(void *)out);
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

/* The border at `at`, a fractional rank, of which a and b are the values around it. */
static float border_between(float a, float b, double at)
{
    return float_below((double)a + ((double)b - (double)a) * (at - floor(at)));
}

/* The rank of the border below code i. */
static double border_rank(size_t i, size_t n)
{
    return (double)i / CODES * (double)(n - 1);
}

static void borders_of_sorted(const uint32_t *sorted, size_t n, float *borders)
{
    for (size_t i = 1; i < CODES; i++) {
        double at = border_rank(i, n);
        size_t low = (size_t)at;
        size_t high = low + 1 < n ? low + 1 : low;

        borders[i - 1] = border_between(float_of_key(sorted[low]), float_of_key(sorted[high]), at);
    }
    borders[CODES - 1] = INFINITY;
}

static enum codec_result codes_by_sorting(const float *x, size_t n, uint8_t *codes)
{
    size_t places_bytes = PASSES * DIGITS * sizeof(size_t);
    size_t bytes, capacity;
    float borders[CODES];

    if (!size_mul(n, 2 * sizeof(uint32_t), &bytes) || !size_add(bytes, places_bytes, &bytes))
        return CODEC_NO_MEMORY;
    uint8_t *scratch = block_alloc(64, bytes, &capacity);
    if (scratch == NULL)
        return CODEC_NO_MEMORY;
    uint32_t *keys = (uint32_t *)(void *)(scratch + places_bytes);
    borders_of_sorted(sort_keys(x, n, keys, keys + n, (size_t(*)[DIGITS])(void *)scratch), n,
                      borders);
    block_free(scratch, capacity);
    codec_kernels()->border_codes(x, n, borders, codes);
    return CODEC_DONE;
}

/*
 * Large tensors are sorted into bins of equal width, which keep the order of the elements. Most
 * bins hold no border, so that all of their elements share a code; only those of the other bins are
 * sorted. The borders are the same as with everything sorted. It does not pay where many elements
 * share few bins (a tensor of very different scales, or of few values).
 */
enum {
    MIN_BINNED = 1 << 15,
    BINS = 1 << 14,
    SAMPLE = 1024,    /* tells the range of the bins; what lies beyond is in the first and last */
    SAMPLE_CUT = 3,   /* of it on either side, since the range is that of the bulk */
    SORTED_SHARE = 8, /* at most this part of the elements is sorted */
    HAS_BORDER = 256, /* instead of a code */
};

struct binning {
    const float *x;
    size_t n;
    float low;
    float per_bin;
    uint32_t counts[BINS];
    uint16_t codes[BINS];     /* of a bin's elements, or HAS_BORDER */
    size_t places[2 * CODES]; /* of the values around each border among the sorted elements */
    size_t digits[PASSES][DIGITS];
    uint16_t piece[PIECE];
};

static bool find_range(struct binning *b)
{
    float sample[SAMPLE];
    uint32_t keys[SAMPLE], other[SAMPLE];

    for (size_t i = 0; i < SAMPLE; i++)
        sample[i] = b->x[i * (b->n / SAMPLE) + i % (b->n / SAMPLE)];
    const uint32_t *sorted = sort_keys(sample, SAMPLE, keys, other, b->digits);
    b->low = float_of_key(sorted[SAMPLE_CUT]);
    b->per_bin = BINS / (float_of_key(sorted[SAMPLE - 1 - SAMPLE_CUT]) - b->low);
    return isfinite(b->per_bin) && b->per_bin > 0.0f;
}

static void find_bins(struct binning *b, size_t at, size_t n)
{
    codec_kernels()->bins(b->x + at, n, b->low, b->per_bin, BINS - 1, b->piece);
}

static void count_bins(struct binning *b)
{
    memset(b->counts, 0, sizeof(b->counts));
    for (size_t i = 0; i < b->n; i += PIECE) {
        size_t m = b->n - i < PIECE ? b->n - i : PIECE;
        find_bins(b, i, m);
        for (size_t j = 0; j < m; j++)
            b->counts[b->piece[j]]++;
    }
}

/* Rank of the k-th of the values around borders: two for each, in order. */
static size_t wanted_rank(size_t k, size_t n)
{
    return (size_t)border_rank(k / 2 + 1, n) + k % 2;
}

/* Gives each bin its code. @return how many elements are in bins that hold a border. */
static size_t share_out_bins(struct binning *b)
{
    size_t below = 0, to_sort = 0, k = 0;

    for (size_t bin = 0; bin < BINS; bin++) {
        size_t end = below + b->counts[bin];
        /* Both values around each border before k / 2 lie in bins before this one. */
        b->codes[bin] = (uint16_t)(k / 2);
        for (; k < 2 * (CODES - 1) && wanted_rank(k, b->n) < end; k++) {
            b->places[k] = to_sort + wanted_rank(k, b->n) - below;
            b->codes[bin] = HAS_BORDER;
        }
        if (b->codes[bin] == HAS_BORDER)
            to_sort += b->counts[bin];
        below = end;
    }
    return to_sort;
}

/* Writes the codes of a piece, and into `gathered` the places of the elements that are to be
 * sorted; the place after the last is written too. Without a branch: which are sorted looks random.
 * @return how many there are. */
static size_t write_piece(const uint16_t *restrict bins, size_t n, const uint16_t *restrict code_of,
                          uint8_t *restrict codes, size_t at, uint32_t *restrict gathered)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t code = code_of[bins[i]];
        codes[i] = (uint8_t)code;
        gathered[count] = (uint32_t)(at + i);
        count += code / HAS_BORDER;
    }
    return count;
}

static void write_codes(struct binning *b, uint8_t *codes, uint32_t *gathered)
{
    for (size_t i = 0; i < b->n; i += PIECE) {
        size_t m = b->n - i < PIECE ? b->n - i : PIECE;
        find_bins(b, i, m);
        gathered += write_piece(b->piece, m, b->codes, codes + i, i, gathered);
    }
}

static void write_sorted_codes(struct binning *b, const uint32_t *gathered, size_t count,
                               float *values, uint32_t *keys, uint8_t *codes)
{
    float borders[CODES];
    uint8_t *found = (uint8_t *)keys; /* once they have given the borders */

    for (size_t i = 0; i < count; i++)
        values[i] = b->x[gathered[i]];
    const uint32_t *sorted = sort_keys(values, count, keys, keys + count, b->digits);
    for (size_t i = 1; i < CODES; i++)
        borders[i - 1] =
            border_between(float_of_key(sorted[b->places[2 * i - 2]]),
                           float_of_key(sorted[b->places[2 * i - 1]]), border_rank(i, b->n));
    borders[CODES - 1] = INFINITY;
    codec_kernels()->border_codes(values, count, borders, found);
    for (size_t i = 0; i < count; i++)
        codes[gathered[i]] = found[i];
}

/* @return false if binning does not pay or memory is short: nothing has been written then. */
static bool codes_by_bins(const float *x, size_t n, uint8_t *codes)
{
    /* gathered (one more than there are), values, two arrays of keys */
    size_t most = n / SORTED_SHARE;
    size_t bytes = sizeof(struct binning) + (4 * most + 1) * sizeof(uint32_t);
    size_t capacity;

    if (n < MIN_BINNED || n > UINT32_MAX)
        return false;
    struct binning *b = block_alloc(64, bytes, &capacity);
    if (b == NULL)
        return false;
    uint32_t *gathered = (uint32_t *)(b + 1);
    b->x = x;
    b->n = n;
    bool pays = find_range(b);
    size_t count = 0;
    if (pays) {
        count_bins(b);
        count = share_out_bins(b);
        pays = count <= most;
    }
    if (pays) {
        write_codes(b, codes, gathered);
        write_sorted_codes(b, gathered, count, (float *)(void *)(gathered + most + 1),
                           gathered + 2 * most + 1, codes);
    }
    block_free(b, capacity);
    return pays;
}

enum codec_result quantile8_encode(const struct codec_array *a, const float *x, uint8_t *out)
{
    uint8_t *codes = out + CODEC_CODEBOOK_BYTES;
    uint32_t largest_bits = codec_kernels()->largest_bits(x, a->count);

    if (largest_bits >= 0x7f800000)
        return CODEC_NOT_FINITE;
    if (!codes_by_bins(x, a->count, codes)) {
        enum codec_result result = codes_by_sorting(x, a->count, codes);
        if (result != CODEC_DONE)
            return result;
    }
    make_codebook(x, codes, a->count, largest_bits, (float *)(void *)out);
    return CODEC_DONE;
}
