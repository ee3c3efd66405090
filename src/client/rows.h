/* Arithmetic on rows of float32 or float64. Everything else was refused before. */
#ifndef SKEP_CLIENT_ROWS_H
#define SKEP_CLIENT_ROWS_H

#include <skep/tensor.h>
#include <string.h>

/* A tensor as rows. */
struct rows {
    void *data;          /* view */
    size_t count, width; /* elements of a row */
    bool wide;           /* float64 */
};

static inline size_t rows_bytes(const struct rows *r)
{
    return r->width * (r->wide ? sizeof(double) : sizeof(float));
}

static inline void *rows_at(const struct rows *r, size_t i)
{
    return (char *)r->data + i * rows_bytes(r);
}

/* y[j] += a * x[i] */
static inline void rows_add(const struct rows *y, size_t j, double a, const struct rows *x,
                            size_t i)
{
    if (y->wide) {
        const double *from = rows_at(x, i);
        double *to = rows_at(y, j);
        for (size_t n = 0; n < y->width; n++)
            to[n] += a * from[n];
    } else {
        const float *from = rows_at(x, i);
        float *to = rows_at(y, j), f = (float)a;
        for (size_t n = 0; n < y->width; n++)
            to[n] += f * from[n];
    }
}

/* y[j] = a * x[i] */
static inline void rows_set(const struct rows *y, size_t j, double a, const struct rows *x,
                            size_t i)
{
    if (y->wide) {
        const double *from = rows_at(x, i);
        double *to = rows_at(y, j);
        for (size_t n = 0; n < y->width; n++)
            to[n] = a * from[n];
    } else {
        const float *from = rows_at(x, i);
        float *to = rows_at(y, j), f = (float)a;
        for (size_t n = 0; n < y->width; n++)
            to[n] = f * from[n];
    }
}

static inline double rows_dot(const struct rows *y, size_t j, const struct rows *x, size_t i)
{
    double sum = 0;

    if (y->wide) {
        const double *a = rows_at(x, i), *b = rows_at(y, j);
        for (size_t n = 0; n < y->width; n++)
            sum += a[n] * b[n];
    } else {
        const float *a = rows_at(x, i), *b = rows_at(y, j);
        for (size_t n = 0; n < y->width; n++)
            sum += (double)a[n] * (double)b[n];
    }
    return sum;
}

static inline double rows_get(const struct rows *r, size_t i, size_t n)
{
    return r->wide ? ((const double *)rows_at(r, i))[n] : (double)((const float *)rows_at(r, i))[n];
}

static inline void rows_accumulate(const struct rows *r, size_t i, size_t n, double value)
{
    if (r->wide)
        ((double *)rows_at(r, i))[n] += value;
    else
        ((float *)rows_at(r, i))[n] += (float)value;
}

#endif
