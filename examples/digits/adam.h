/* Adam (Kingma and Ba, 2015, algorithm 1), for the parts of the model that stay with the trainer.
 */
#ifndef DIGITS_ADAM_H
#define DIGITS_ADAM_H

#include <stddef.h>

/* Step number t, from 1: changes the n parameters p by their gradient g and keeps the moments. */
void adam_step(float *p, float *m, float *v, const float *g, size_t n, int t);

#endif
