/* Reading the digits. */
#include "dataset.h"

#include <stdio.h>
#include <stdlib.h>

#include "digits.h"

static bool load_part(const struct skep_safetensors *file, const char *part, float **x,
                      uint8_t **labels, size_t *count)
{
    char name[32];

    snprintf(name, sizeof(name), "%s.images", part);
    const DLTensor *images = skep_safetensors_find(file, name);
    snprintf(name, sizeof(name), "%s.labels", part);
    const DLTensor *classes = skep_safetensors_find(file, name);
    if (images == NULL || classes == NULL || images->ndim != 2 || images->shape[1] != FEATURES ||
        images->dtype.bits != 8 || classes->ndim != 1 || classes->dtype.bits != 8 ||
        classes->shape[0] != images->shape[0])
        return false;
    *count = (size_t)images->shape[0];
    *x = malloc(*count * FEATURES * sizeof(**x));
    *labels = malloc(*count);
    if (*x == NULL || *labels == NULL)
        return false;
    const uint8_t *pixels = skep_tensor_data(images);
    for (size_t i = 0; i < *count * FEATURES; i++)
        (*x)[i] = (float)pixels[i] / 16.0f;
    const uint8_t *values = skep_tensor_data(classes);
    for (size_t i = 0; i < *count; i++) {
        if (values[i] >= CLASSES)
            return false;
        (*labels)[i] = values[i];
    }
    return true;
}

void dataset_fini(struct dataset *d)
{
    free(d->train);
    free(d->test);
    free(d->train_labels);
    free(d->test_labels);
}

bool dataset_load(struct dataset *d, const char *path)
{
    struct skep_error err;
    struct skep_safetensors *file;

    if (skep_safetensors_open(path, &file, &err) != SKEP_OK) {
        complain(&err);
        return false;
    }
    bool ok = load_part(file, "train", &d->train, &d->train_labels, &d->train_count) &&
              load_part(file, "test", &d->test, &d->test_labels, &d->test_count) &&
              d->train_count >= BATCH && d->test_count > 0;
    if (!ok)
        fprintf(stderr,
                "digits: %s: expected U8 tensors train.images [n, 64], train.labels [n] (0 to 9) "
                "and the same for test, at least %d training samples\n",
                path, BATCH);
    skep_safetensors_close(file);
    return ok;
}
