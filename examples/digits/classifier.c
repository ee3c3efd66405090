/* Softmax regression. */
#include "classifier.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "adam.h"

/* SplitMix64 (Steele, Lea and Flood, 2014): enough to break symmetry. */
static float uniform(uint64_t *state, float bound)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return bound * (2.0f * (float)(z >> 40) / (float)(1u << 24) - 1.0f);
}

void classifier_init(struct classifier *c, uint64_t seed)
{
    float bound = 1.0f / sqrtf(FEATURES);

    memset(c, 0, sizeof(*c));
    for (int k = 0; k < CLASSES; k++)
        for (int j = 0; j < FEATURES; j++)
            c->weight[k][j] = uniform(&seed, bound);
}

static void logits_of(const struct classifier *c, const float *x, float logits[CLASSES])
{
    for (int k = 0; k < CLASSES; k++) {
        logits[k] = c->bias[k];
        for (int j = 0; j < FEATURES; j++)
            logits[k] += c->weight[k][j] * x[j];
    }
}

static int argmax(const float *values)
{
    int best = 0;

    for (int k = 1; k < CLASSES; k++)
        if (values[k] > values[best])
            best = k;
    return best;
}

void classifier_predict(const struct classifier *c, const float *x, int rows, uint8_t *classes)
{
    float logits[CLASSES];

    for (int i = 0; i < rows; i++) {
        logits_of(c, x + (size_t)i * FEATURES, logits);
        classes[i] = (uint8_t)argmax(logits);
    }
}

/* Turns logits into probabilities; returns the cross-entropy with the label. */
static float softmax(float logits[CLASSES], uint8_t label)
{
    float largest = logits[argmax(logits)];
    float chosen = logits[label] - largest;
    float sum = 0.0f;

    for (int k = 0; k < CLASSES; k++) {
        logits[k] = expf(logits[k] - largest);
        sum += logits[k];
    }
    for (int k = 0; k < CLASSES; k++)
        logits[k] /= sum;
    return logf(sum) - chosen;
}

float classifier_train(struct classifier *c, const float *x, const uint8_t *labels, int rows,
                       float *grad_x)
{
    float grad_weight[CLASSES][FEATURES] = {{0}};
    float grad_bias[CLASSES] = {0};
    float loss = 0.0f;

    memset(grad_x, 0, (size_t)rows * FEATURES * sizeof(*grad_x));
    for (int i = 0; i < rows; i++) {
        const float *row = x + (size_t)i * FEATURES;
        float *grad_row = grad_x + (size_t)i * FEATURES;
        float p[CLASSES];
        logits_of(c, row, p);
        loss += softmax(p, labels[i]);
        p[labels[i]] -= 1.0f;
        for (int k = 0; k < CLASSES; k++) {
            float g = p[k] / (float)rows;
            grad_bias[k] += g;
            for (int j = 0; j < FEATURES; j++) {
                grad_weight[k][j] += g * row[j];
                grad_row[j] += g * c->weight[k][j];
            }
        }
    }
    c->steps++;
    adam_step(&c->weight[0][0], &c->weight_m[0][0], &c->weight_v[0][0], &grad_weight[0][0],
              CLASSES * FEATURES, c->steps);
    adam_step(c->bias, c->bias_m, c->bias_v, grad_bias, CLASSES, c->steps);
    return loss / (float)rows;
}
