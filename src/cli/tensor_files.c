/* Files of tensors on the command line. */
#include "cli/tensor_files.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

enum { NAME_BYTES = 64 };

static bool is_npy(const char *path)
{
    size_t n = strlen(path);

    return n >= 4 && strcmp(path + n - 4, ".npy") == 0;
}

static skep_status pick(struct tensor_file *file, const char *path, const char *role,
                        struct skep_error *err)
{
    size_t total = skep_safetensors_count(file->file);
    char name[NAME_BYTES];

    for (;; file->count++) {
        snprintf(name, sizeof(name), "%s.%zu", role, file->count);
        const DLTensor *t = skep_safetensors_find(file->file, name);
        if (t == NULL)
            break;
        if (file->count == TENSOR_FILE_MAX)
            return error_set(err, SKEP_INVALID_ARGUMENT, "%s: more than %d tensors", path,
                             TENSOR_FILE_MAX);
        file->tensors[file->count] = t;
    }
    if (file->count > 0)
        return SKEP_OK;
    if (total == 0 || total > TENSOR_FILE_MAX)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %zu tensors, expected 1 to %d", path,
                         total, TENSOR_FILE_MAX);
    for (; file->count < total; file->count++)
        file->tensors[file->count] = skep_safetensors_tensor(file->file, file->count);
    return SKEP_OK;
}

skep_status tensor_file_open(struct tensor_file *out, const char *path, const char *role,
                             struct skep_error *err)
{
    skep_status rc;

    *out = (struct tensor_file){0};
    if (is_npy(path)) {
        rc = skep_npy_load(path, &out->npy, err);
        if (rc == SKEP_OK)
            out->tensors[out->count++] = &out->npy->dl_tensor;
        return rc;
    }
    rc = skep_safetensors_open(path, &out->file, err);
    if (rc == SKEP_OK)
        rc = pick(out, path, role, err);
    if (rc != SKEP_OK)
        tensor_file_close(out);
    return rc;
}

void tensor_file_close(struct tensor_file *file)
{
    skep_safetensors_close(file->file);
    skep_tensor_free(file->npy);
    *file = (struct tensor_file){0};
}

skep_status tensor_file_save(const char *path, const char *role, DLManagedTensor *const *tensors,
                             size_t count, struct skep_error *err)
{
    struct skep_named_tensor named[TENSOR_FILE_MAX];
    char names[TENSOR_FILE_MAX][NAME_BYTES];

    if (is_npy(path)) {
        if (count != 1)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "%s: %zu tensors, a .npy file holds one; use .safetensors", path,
                             count);
        return skep_npy_save(path, &tensors[0]->dl_tensor, err);
    }
    if (count > TENSOR_FILE_MAX)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: more than %d tensors", path,
                         TENSOR_FILE_MAX);
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof(names[i]), "%s.%zu", role, i);
        named[i] = (struct skep_named_tensor){names[i], &tensors[i]->dl_tensor};
    }
    return skep_safetensors_save(path, named, count, NULL, err);
}
