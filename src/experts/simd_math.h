/*
 * Exponential, GELU, SiLU and softmax for simd_impl.h, as loops the compilers vectorize: no
 * branches but selections, no calls. A NaN stays a NaN everywhere.
 */

/* exp(x) to 2e-7 relative; 0 below -87.3 (where floats turn subnormal), 2.4e38 above 88.3. */
static inline float exp_one(float x)
{
    /* Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. */
    const float magic = 12582912.0f;
    float c = x < -87.3f ? -87.3f : x;
    c = c > 88.3f ? 88.3f : c;
    float z = c * 1.44269504f + magic;
    float k = z - magic;
    /* ln 2 in two parts, the first of which k multiplies exactly. */
    float r = c - k * 0.693359375f - k * -2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    uint32_t bits;
    float two_to_k;

    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    memcpy(&bits, &z, sizeof(bits));
    bits = (bits << 23) + 0x3f800000u;
    memcpy(&two_to_k, &bits, sizeof(two_to_k));
    return x < -87.3f ? 0.0f : p * two_to_k;
}

/*
 * The normal distribution's Phi(x) = (1 + erf(x / sqrt 2)) / 2, and exp(-x^2 / 2) on the way.
 * erfc(t) = exp(-t^2) Q(u), u = 1 / (1 + 0.3 t), the form of Abramowitz and Stegun 7.1.26; the
 * coefficients are a minimax fit of relative error 2e-8 for t in 0 to 9.5.
 */
static inline float normal_one(float x, float *exponential)
{
    float t = (x < 0.0f ? -x : x) * 0.707106781f;
    float u = 1.0f / (1.0f + 0.3f * t);
    float e = exp_one(-t * t);
    float q = -1.294340640e-01f;

    q = q * u + 4.850963354e-01f;
    q = q * u - 5.112262368e-01f;
    q = q * u + 5.463948250e-01f;
    q = q * u - 9.363108128e-02f;
    q = q * u + 2.144362032e-01f;
    q = q * u + 1.484824419e-01f;
    q = q * u + 1.706919372e-01f;
    q = q * u + 1.691896170e-01f;
    float tail = 0.5f * q * u * e;
    *exponential = e;
    return x < 0.0f ? tail : 1.0f - tail;
}

static void SIMD_NAME(gelu)(const float *a, const float *b, float *c, float *d, size_t n)
{
    (void)b;
    (void)d;
    for (size_t i = 0; i < n; i++) {
        float e;
        c[i] = a[i] * normal_one(a[i], &e);
    }
}

static void SIMD_NAME(gelu_backward)(const float *a, const float *b, float *c, float *d, size_t n)
{
    (void)b;
    (void)d;
    for (size_t i = 0; i < n; i++) {
        float e;
        float phi = normal_one(a[i], &e);
        c[i] *= phi + a[i] * 0.398942280f * e;
    }
}

static void SIMD_NAME(silu_mul)(const float *a, const float *b, float *c, float *d, size_t n)
{
    (void)d;
    for (size_t i = 0; i < n; i++)
        c[i] = a[i] / (1.0f + exp_one(-a[i])) * b[i];
}

static void SIMD_NAME(silu_mul_backward)(const float *a, const float *b, float *c, float *d,
                                         size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float s = 1.0f / (1.0f + exp_one(-a[i]));
        float silu = a[i] * s;
        float g = c[i];
        d[i] = g * silu;
        c[i] = g * b[i] * (s + silu * (1.0f - s));
    }
}

/* Not fmaxf: a NaN must stay a NaN. */
static void SIMD_NAME(relu)(const float *a, const float *b, float *c, float *d, size_t n)
{
    (void)b;
    (void)d;
    for (size_t i = 0; i < n; i++)
        c[i] = a[i] < 0.0f ? 0.0f : a[i];
}

static void SIMD_NAME(relu_backward)(const float *a, const float *b, float *c, float *d, size_t n)
{
    (void)b;
    (void)d;
    for (size_t i = 0; i < n; i++)
        c[i] = a[i] > 0.0f ? c[i] : 0.0f;
}

static inline float largest(const float *x, size_t n)
{
    float m[LANES];
    float max = -INFINITY;
    size_t j = 0;

    for (int l = 0; l < LANES; l++)
        m[l] = -INFINITY;
    for (; j + LANES <= n; j += LANES)
        for (int l = 0; l < LANES; l++)
            m[l] = x[j + (size_t)l] > m[l] ? x[j + (size_t)l] : m[l];
    for (int l = 0; l < LANES; l++)
        max = m[l] > max ? m[l] : max;
    for (; j < n; j++)
        max = x[j] > max ? x[j] : max;
    return max;
}

static void SIMD_NAME(softmax)(float *x, size_t rows, size_t n, const uint8_t *ignored)
{
    for (size_t r = 0; r < rows; r++) {
        float *row = x + r * n;

        if (ignored != NULL)
            for (size_t j = 0; j < n; j++)
                row[j] = ignored[j] != 0 ? -INFINITY : row[j];
        float max = largest(row, n);
        /* All ignored: anything finite leaves exp(-inf) = 0 for each. */
        max = max == -INFINITY ? 0.0f : max;
        for (size_t j = 0; j < n; j++)
            row[j] = exp_one(row[j] - max);
        float sum = sum_row(row, n);
        float scale = sum == 0.0f ? 0.0f : 1.0f / sum;
        for (size_t j = 0; j < n; j++)
            row[j] *= scale;
    }
}

static inline float dot(const float *x, const float *y, size_t n)
{
    vec a = {0};
    size_t j = 0;

    for (; j + LANES <= n; j += LANES)
        a += LOAD(x + j) * LOAD(y + j);
    float sum = add_lanes(&a);
    for (; j < n; j++)
        sum += x[j] * y[j];
    return sum;
}

static void SIMD_NAME(softmax_backward)(const float *weights, size_t rows, size_t n, float scale,
                                        float *grad)
{
    for (size_t r = 0; r < rows; r++) {
        const float *w = weights + r * n;
        float *g = grad + r * n;
        float mean = dot(w, g, n);
        for (size_t j = 0; j < n; j++)
            g[j] = scale * w[j] * (g[j] - mean);
    }
}
