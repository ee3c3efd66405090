/* Sources: Hugging Face's modeling_rope_utils; "YaRN" (arXiv 2309.00071), section 3. */
#include "model/decoder/rotary.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* Long waves are stretched, short ones kept, those between interpolated. */
static double scale_llama3(const struct lm_config *c, double frequency)
{
    double wavelength = 2 * pi / frequency;
    double smooth = (c->rope_original / wavelength - c->rope_low) / (c->rope_high - c->rope_low);

    if (smooth >= 1)
        return frequency;
    if (smooth <= 0)
        return frequency / c->rope_factor;
    return (1 - smooth) * frequency / c->rope_factor + smooth * frequency;
}

/* The pair that turns `rotations` times within the original positions. */
static double yarn_pair(const struct lm_config *c, double rotations)
{
    return (double)c->head_dim * log(c->rope_original / (rotations * 2 * pi)) /
           (2 * log(c->rope_theta));
}

static double scale_yarn(const struct lm_config *c, size_t pair, double frequency)
{
    double last = (double)c->head_dim - 1;
    double low = fmax(floor(yarn_pair(c, c->rope_beta_fast)), 0);
    double high = fmin(ceil(yarn_pair(c, c->rope_beta_slow)), last);
    double ramp;

    if (high == low)
        high += 0.001; /* as the reference does, against a division by zero */
    ramp = fmin(fmax(((double)pair - low) / (high - low), 0), 1);
    return frequency / c->rope_factor * ramp + frequency * (1 - ramp);
}

double rotary_frequencies(const struct lm_config *config, double *out)
{
    for (size_t i = 0; i < config->head_dim / 2; i++) {
        double f = pow(config->rope_theta, -(double)(2 * i) / (double)config->head_dim);
        switch (config->rope) {
        case LM_ROPE_PLAIN:
            break;
        case LM_ROPE_LINEAR:
            f /= config->rope_factor;
            break;
        case LM_ROPE_LLAMA3:
            f = scale_llama3(config, f);
            break;
        case LM_ROPE_YARN:
            f = scale_yarn(config, i, f);
            break;
        }
        out[i] = f;
    }
    return config->rope == LM_ROPE_YARN ? config->rope_attention : 1;
}

void rotary_apply(const double *frequencies, double scale, size_t position, float *x, size_t heads,
                  size_t head_dim)
{
    size_t half = head_dim / 2;

    for (size_t i = 0; i < half; i++) {
        double angle = (double)position * frequencies[i];
        float cosine = (float)(cos(angle) * scale), sine = (float)(sin(angle) * scale);
        for (size_t h = 0; h < heads; h++) {
            float *a = x + h * head_dim + i, *b = a + half;
            float first = *a * cosine - *b * sine;
            *b = *b * cosine + *a * sine;
            *a = first;
        }
    }
}
