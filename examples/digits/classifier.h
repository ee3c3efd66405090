/*
 * The part of the model that stays with the trainer: a linear layer from the experts' output
 * to ten classes, softmax cross-entropy, and Adam. Plain loops: it is 650 parameters.
 */
#ifndef DIGITS_CLASSIFIER_H
#define DIGITS_CLASSIFIER_H

#include <stdint.h>

enum {
    FEATURES = 64, /* 8 x 8 pixels, and the width of the experts */
    CLASSES = 10,
};

struct classifier {
    float weight[CLASSES][FEATURES];
    float bias[CLASSES];
    /* Adam's first and second moments, and how many steps were taken. */
    float weight_m[CLASSES][FEATURES], weight_v[CLASSES][FEATURES];
    float bias_m[CLASSES], bias_v[CLASSES];
    int steps;
};

void classifier_init(struct classifier *c, uint64_t seed);

/* Class of each row of x [rows, FEATURES]. */
void classifier_predict(const struct classifier *c, const float *x, int rows, uint8_t *classes);

/*
 * Mean cross-entropy of x [rows, FEATURES] against labels, its gradient for x (written to grad_x),
 * and one Adam step of the classifier's own parameters. Returns the loss.
 */
float classifier_train(struct classifier *c, const float *x, const uint8_t *labels, int rows,
                       float *grad_x);

#endif
