/*
 * The inner loops of tensor codecs, each for one thread and a range of the data. They are compiled
 * several times for different instruction sets; codec_kernels() gives the best set the CPU has.
 * Arrays have any length and the alignment of their elements, and do not overlap.
 */
#ifndef SKEP_WIRE_CODEC_KERNELS_H
#define SKEP_WIRE_CODEC_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* Equal steps around a mean, which is the sum of two floats: close to 24 bits more than one holds,
 * so that numbers far from zero keep their place on the grid. */
struct codec_grid {
    float mean;
    float mean_rest;
    float per_step; /* 1 / step; finite */
};

enum { CODEC_BORDERS = 256 };

struct codec_moments {
    double sum;
    double squares;
    uint32_t largest_bits;
};

/* Fixed-point numbers that count themselves: a sum of up to 2^CODEC_FIXED_COUNT_BITS of them holds
 * their sum in its low bits and their number above. */
#define CODEC_FIXED_ONE (UINT64_C(1) << 50)
enum { CODEC_FIXED_BITS = 36, CODEC_FIXED_COUNT_BITS = 13 };

struct codec_kernels {
    const char *name;
    /* Clamped to +-65504, rounded to nearest even; a NaN stays a NaN. */
    void (*to_f16)(const float *x, uint16_t *out, size_t n);
    void (*from_f16)(const uint16_t *in, float *out, size_t n);
    /* Rounded to nearest even; a NaN stays a NaN. */
    void (*to_bf16)(const float *x, uint16_t *out, size_t n);
    void (*from_bf16)(const uint16_t *in, float *out, size_t n);
    /* In double: finite exactly if all elements are. */
    double (*sum)(const float *x, size_t n);
    /* Of (x - mean)^2, in double. */
    double (*sum_squares)(const float *x, size_t n, double mean);
    /* The sums of x - shift and of (x - shift)^2, in double, and largest_bits(), in one pass. */
    struct codec_moments (*moments)(const float *x, size_t n, double shift);
    /* x * scale, rounded, plus CODEC_FIXED_ONE. |x * scale| is at most 2^CODEC_FIXED_BITS. */
    void (*fixed)(const float *x, size_t n, double scale, uint64_t *out);
    /* The bits of the largest absolute value; 0x7f800000 and more if one is not finite. */
    uint32_t (*largest_bits)(const float *x, size_t n);
    /* to_f16() of (x - mean) / std. */
    void (*normalize)(const float *x, size_t n, float mean, float std, uint16_t *out);
    /* code * std + mean, rounded once where the CPU can. */
    void (*restore)(const uint16_t *in, size_t n, float mean, float std, float *out);
    /* Nearest step of the grid, -128 to 127, plus 128. */
    void (*grid_codes)(const float *x, size_t n, const struct codec_grid *grid, uint8_t *out);
    /* (x - low) * per_bin, cut to a whole number and to 0 to last. x and low are finite. */
    void (*bins)(const float *x, size_t n, float low, float per_bin, uint16_t last, uint16_t *out);
    /* How many borders lie below x; the last border is infinity. */
    void (*border_codes)(const float *x, size_t n, const float borders[static CODEC_BORDERS],
                         uint8_t *out);
    void (*look_up)(const uint8_t *codes, size_t n, const float codebook[static 256], float *out);
    /* x * factor to the nearest number; |x * factor| is at most 127 up to rounding. */
    void (*quantize)(const float *x, size_t n, float factor, int8_t *out);
    void (*dequantize)(const int8_t *codes, size_t n, float scale, float *out);
};

const struct codec_kernels *codec_kernels(void);

/* Those that this CPU has, worst first. Returns how many. */
enum { CODEC_KERNEL_SETS = 3 };
size_t codec_kernels_all(const struct codec_kernels *out[static CODEC_KERNEL_SETS]);
/* Test hook: what codec_kernels() gives from now on, process-wide; NULL: the best again. */
void codec_kernels_force(const struct codec_kernels *kernels);

extern const struct codec_kernels codec_kernels_base;
#if defined(__x86_64__)
extern const struct codec_kernels codec_kernels_avx2;
extern const struct codec_kernels codec_kernels_avx512;
#endif

#endif
