/* One step of Adam. */
#include "adam.h"

#include <math.h>

static const float learning_rate = 3e-3f, beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;

void adam_step(float *p, float *m, float *v, const float *g, size_t n, int t)
{
    float correction1 = 1.0f - powf(beta1, (float)t);
    float correction2 = 1.0f - powf(beta2, (float)t);

    for (size_t i = 0; i < n; i++) {
        m[i] = beta1 * m[i] + (1.0f - beta1) * g[i];
        v[i] = beta2 * v[i] + (1.0f - beta2) * g[i] * g[i];
        p[i] -= learning_rate / correction1 * m[i] / (sqrtf(v[i] / correction2) + epsilon);
    }
}
