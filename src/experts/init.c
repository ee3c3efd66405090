/* Parameter initialization. */
#include "experts/init.h"

#include <math.h>

#include "experts/parallel.h"

enum { GRAIN = 64 << 10 };

/* The output function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection whose outputs
 * for successive counters pass BigCrush. */
static inline uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static const uint64_t GOLDEN = 0x9e3779b97f4a7c15u; /* SplitMix64's step */

struct uniform {
    float *x;
    float bound;
    uint64_t key;
};

static inline float scale(uint64_t bits24, float bound)
{
    return ((float)bits24 * 0x1p-23f - 1.0f) * bound;
}

/* Two values from each 64 random bits; ranges begin at even positions. */
static void fill_uniform(void *arg, size_t first, size_t last, unsigned part)
{
    const struct uniform *u = arg;
    size_t i = first;

    (void)part;
    for (; i + 2 <= last; i += 2) {
        uint64_t bits = mix(u->key + (uint64_t)(i / 2 + 1) * GOLDEN);
        u->x[i] = scale(bits >> 40, u->bound);
        u->x[i + 1] = scale(bits & 0xffffff, u->bound);
    }
    if (i < last)
        u->x[i] = scale(mix(u->key + (uint64_t)(i / 2 + 1) * GOLDEN) >> 40, u->bound);
}

void init_uniform(float *x, size_t count, float bound, uint64_t seed, uint64_t stream)
{
    /* Mixed twice, so that neither near seeds nor near streams share parts of a sequence. */
    struct uniform u = {x, bound, mix(mix(seed + GOLDEN) ^ (stream + 1) * GOLDEN)};

    parallel_range(count, GRAIN, 64, fill_uniform, &u);
}

void init_constant(float *x, size_t count, float value)
{
    for (size_t i = 0; i < count; i++)
        x[i] = value;
}

float init_linear_bound(int64_t fan_in)
{
    return (float)(1.0 / sqrt((double)fan_in));
}
