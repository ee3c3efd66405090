/* The handwritten digits: 8 x 8 pixels each, in a part to train on and a part held out. */
#ifndef DIGITS_DATASET_H
#define DIGITS_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dataset {
    size_t train_count, test_count;
    float *train, *test;                 /* owned: free(); [count, FEATURES], 0 to 1 */
    uint8_t *train_labels, *test_labels; /* the same */
};

/* Reads a safetensors file. False, after having said why, if it is not what was expected. */
bool dataset_load(struct dataset *d, const char *path);
void dataset_fini(struct dataset *d); /* zeroed is allowed */

#endif
