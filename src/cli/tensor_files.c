/* Files of tensors on the command line. */
#include "cli/tensor_files.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "base/npy.h"
#include "base/safetensors.h"

enum { NAME_BYTES = 64 };

bool file_name_ends_in(const char *path, const char *ending)
{
    size_t n = strlen(path);
    size_t len = strlen(ending);

    return n > len && strcmp(path + n - len, ending) == 0;
}

bool tensor_file_name_is_known(const char *path)
{
    return file_name_ends_in(path, ".npy") || file_name_ends_in(path, ".safetensors");
}

skep_status output_file_check(const char *path, struct skep_error *err)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX];
    struct stat info;
    int n = slash == NULL ? snprintf(folder, sizeof(folder), ".")
                          : snprintf(folder, sizeof(folder), "%.*s/", (int)(slash - path), path);

    if (n < 0 || (size_t)n >= sizeof(folder))
        return error_set(err, SKEP_INVALID_ARGUMENT, "%.80s...: path too long", path);
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: is %s, expected a file to write", path,
                         S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
    if (access(folder, W_OK | X_OK) == 0)
        return SKEP_OK;
    return error_set(err, status_from_errno(errno), "%s: cannot write there: %s", path,
                     strerror(errno));
}

/* Whether a name is <role>.N with N at least `least`. */
static bool is_later(const char *name, const char *role, size_t least)
{
    size_t len = strlen(role);
    char *end;

    if (strncmp(name, role, len) != 0 || name[len] != '.' || name[len + 1] < '0' ||
        name[len + 1] > '9')
        return false;
    return strtoull(name + len + 1, &end, 10) >= least && *end == '\0';
}

/* A number left out is a mistake: the expert would get what was meant for another place. */
static skep_status check_gap(const struct tensor_file *file, const char *path, const char *role,
                             struct skep_error *err)
{
    for (size_t i = 0; i < skep_safetensors_count(file->file); i++) {
        const char *name = skep_safetensors_name(file->file, i);
        if (is_later(name, role, file->count))
            return error_set(err, SKEP_INVALID_ARGUMENT, "%s: holds %.64s but no %s.%zu", path,
                             name, role, file->count);
    }
    return SKEP_OK;
}

static skep_status refuse_tensor(const char *path, skep_status rc, struct skep_error *err)
{
    error_prefix(err, "%s", path);
    return rc;
}

static skep_status pick(struct tensor_file *file, const char *path, const char *role,
                        struct skep_error *err)
{
    size_t total = skep_safetensors_count(file->file);
    char name[NAME_BYTES];
    const DLTensor *t;
    skep_status rc;

    for (;; file->count++) {
        snprintf(name, sizeof(name), "%s.%zu", role, file->count);
        rc = safetensors_get(file->file, name, &t, err);
        if (rc == SKEP_NOT_FOUND)
            break;
        if (rc != SKEP_OK)
            return refuse_tensor(path, rc, err);
        if (file->count == TENSOR_FILE_MAX)
            return error_set(err, SKEP_INVALID_ARGUMENT, "%s: more than %d tensors", path,
                             TENSOR_FILE_MAX);
        file->tensors[file->count] = t;
    }
    rc = check_gap(file, path, role, err);
    if (rc != SKEP_OK || file->count > 0)
        return rc;
    if (total == 0 || total > TENSOR_FILE_MAX)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %zu tensors, expected 1 to %d", path,
                         total, TENSOR_FILE_MAX);
    for (; file->count < total; file->count++) {
        rc = safetensors_get(file->file, skep_safetensors_name(file->file, file->count),
                             &file->tensors[file->count], err);
        if (rc != SKEP_OK)
            return refuse_tensor(path, rc, err);
    }
    return SKEP_OK;
}

enum content { CONTENT_NPY, CONTENT_SAFETENSORS };

/* What a file is by its first bytes; whether it is whole, its reader will tell. */
static skep_status look_at(const char *path, enum content *out, struct skep_error *err)
{
    static const char npy[] = "\x93NUMPY";
    const size_t header_at = 8; /* behind the length of the header, which is JSON */
    struct file_map map;
    skep_status rc = file_map(&map, path, err);

    if (rc != SKEP_OK)
        return rc;
    const char *kind = file_kind(map.data, map.len);
    *out = CONTENT_SAFETENSORS;
    if (map.len >= sizeof(npy) - 1 && memcmp(map.data, npy, sizeof(npy) - 1) == 0)
        *out = CONTENT_NPY;
    else if (kind != NULL)
        rc = error_set(err, SKEP_DATA_LOSS, "%s: is %s, expected a .npy or .safetensors file", path,
                       kind);
    else if (map.len <= header_at || map.data[header_at] != '{')
        rc = error_set(err, SKEP_DATA_LOSS, "%s: is neither a .npy nor a .safetensors file", path);
    file_unmap(&map);
    return rc;
}

skep_status tensor_file_open(struct tensor_file *out, const char *path, const char *role,
                             struct skep_error *err)
{
    enum content content;
    skep_status rc = look_at(path, &content, err);

    *out = (struct tensor_file){0};
    if (rc != SKEP_OK)
        return rc;
    if (content == CONTENT_NPY) {
        rc = npy_load(path, &out->npy, &out->is_reordered, err);
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

    if (file_name_ends_in(path, ".npy")) {
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
