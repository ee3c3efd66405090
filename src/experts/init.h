/*
 * Initial values of parameters, as PyTorch's modules draw them: the same distributions, not the
 * same numbers. The generator works by counter, so a value depends on seed, stream and position
 * only, whatever the number of threads.
 */
#ifndef SKEP_EXPERTS_INIT_H
#define SKEP_EXPERTS_INIT_H

#include <stddef.h>
#include <stdint.h>

/* Uniform in [-bound, bound), from 24 random bits each. stream: the parameter's number. */
void init_uniform(float *x, size_t count, float bound, uint64_t seed, uint64_t stream);
void init_constant(float *x, size_t count, float value);

/* Kaiming uniform with a = sqrt(5), PyTorch's choice for nn.Linear: 1 / sqrt(fan_in), for the
 * weight and the bias alike (torch/nn/modules/linear.py, reset_parameters). */
float init_linear_bound(int64_t fan_in);

#endif
