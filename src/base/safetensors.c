/*
 * Reading safetensors files. The header is JSON from strangers: it is bounded and walked over
 * before jansson sees it, then every entry is checked against the data section, so that what is
 * handed out later needs no checks.
 *
 *     [u64 header bytes][JSON header, padded with spaces][data, without gaps]
 */
#include "base/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "base/tensor.h"
#include "base/text.h"

enum {
    PREFIX_BYTES = 8,
    /* About 300,000 tensors. jansson needs some 30 bytes of memory for a byte of hostile header. */
    HEADER_LIMIT_BYTES = 16 << 20,
    HEADER_MAX_DEPTH = 3, /* { name: { "shape": [ */
    /* An honest entry has three brackets in 50 bytes or more; empty ones cost jansson the most. */
    HEADER_BYTES_PER_BRACKET = 12,
};

struct entry {
    const char *name; /* view of the JSON root */
    DLTensor tensor;
    int64_t shape[SKEP_TENSOR_MAX_DIMS];
    size_t begin, end;
    const char *dtype; /* as the file names it; view of the JSON root */
    bool is_opaque;    /* its type or shape is none that Skep has: its bytes are left alone */
    void *copy;        /* owned; where the bytes in the file are not aligned for their type */
};

struct skep_safetensors {
    struct file_map map;   /* empty if parsed from memory */
    json_t *root;          /* owned */
    struct entry *entries; /* owned; sorted by begin, then end */
    size_t *by_name;       /* owned; indices of entries sorted by name */
    size_t count;
};

static skep_status bad_entry(const char *name, const char *why, struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES];

    return error_set(err, SKEP_DATA_LOSS, "safetensors: tensor %s: %s",
                     text_quote(name, strlen(name), quoted), why);
}

/* Refuses headers that would make jansson nest deeply or build far more than they are long. */
static bool header_is_modest(const char *text, size_t len)
{
    struct text_brackets brackets = text_count_brackets(text, len);

    return brackets.depth <= HEADER_MAX_DEPTH &&
           brackets.opened <= 2 + len / HEADER_BYTES_PER_BRACKET;
}

static skep_status parse_header(const uint8_t *data, size_t len, json_t **root, size_t *data_start,
                                struct skep_error *err)
{
    json_error_t error;

    if (len < PREFIX_BYTES)
        return error_set(err, SKEP_DATA_LOSS, "safetensors: %zu bytes, expected at least %d", len,
                         PREFIX_BYTES);
    uint64_t header = load_u64(data);
    if (header > len - PREFIX_BYTES || header > HEADER_LIMIT_BYTES)
        return error_set(err, SKEP_DATA_LOSS,
                         "safetensors: header of %" PRIu64
                         " bytes, expected at most %zu in this file: is it "
                         "truncated?",
                         header,
                         len - PREFIX_BYTES < HEADER_LIMIT_BYTES ? len - PREFIX_BYTES
                                                                 : (size_t)HEADER_LIMIT_BYTES);
    const char *text = (const char *)data + PREFIX_BYTES;
    if (header < 2 || text[0] != '{')
        return error_set(err, SKEP_DATA_LOSS, "safetensors: header does not start with {");
    if (!header_is_modest(text, (size_t)header))
        return error_set(err, SKEP_DATA_LOSS,
                         "safetensors: header is nested deeper than %d or mostly brackets",
                         HEADER_MAX_DEPTH);
    *root = json_loadb(text, (size_t)header, JSON_REJECT_DUPLICATES, &error);
    if (*root == NULL && json_error_code(&error) == json_error_out_of_memory)
        return error_no_memory(err, "safetensors header", (size_t)header);
    if (*root == NULL)
        return error_set(err, SKEP_DATA_LOSS, "safetensors: header at byte %d: %s", error.position,
                         error.text);
    *data_start = PREFIX_BYTES + (size_t)header;
    return SKEP_OK;
}

static skep_status check_metadata(const json_t *metadata, struct skep_error *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata))
        return error_set(err, SKEP_DATA_LOSS, "safetensors: __metadata__ is not an object");
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value)) {
            char quoted[TEXT_QUOTE_BYTES];
            return error_set(err, SKEP_DATA_LOSS, "safetensors: metadata %s is not a string",
                             text_quote(key, strlen(key), quoted));
        }
    }
    return SKEP_OK;
}

static bool read_size(const json_t *value, size_t *out)
{
    json_int_t number = json_integer_value(value);

    if (!json_is_integer(value) || number < 0 || (uint64_t)number > SIZE_MAX)
        return false;
    *out = (size_t)number;
    return true;
}

/* What a tensor is given out as whose elements Skep cannot read: skep_tensor_bytes() refuses it. */
#define DTYPE_OPAQUE ((DLDataType){.code = kDLOpaqueHandle, .bits = 0, .lanes = 1})

/* Files hold all sorts of tensors beside those that are asked for, and newer tools know more types.
 * So one that Skep does not know is none of its business, until it is asked for. */
static void read_dtype(struct entry *e)
{
    if (skep_dtype_from_name(e->dtype, &e->tensor.dtype))
        return;
    e->tensor.dtype = DTYPE_OPAQUE;
    e->is_opaque = true;
}

/* Reads dtype and shape into the entry's tensor; NULL, or what is wrong. */
static const char *read_type(const json_t *info, struct entry *e)
{
    e->dtype = json_string_value(json_object_get(info, "dtype"));
    const json_t *shape = json_object_get(info, "shape");

    if (e->dtype == NULL)
        return "has no dtype";
    read_dtype(e);
    if (!json_is_array(shape))
        return "has no shape";
    size_t dims = json_array_size(shape);
    for (size_t i = 0; i < dims; i++) {
        size_t dim;
        if (!read_size(json_array_get(shape, i), &dim))
            return "has a shape that is not of non-negative integers";
        if (i < SKEP_TENSOR_MAX_DIMS)
            e->shape[i] = (int64_t)dim;
    }
    if (dims > SKEP_TENSOR_MAX_DIMS) {
        e->tensor.dtype = DTYPE_OPAQUE;
        e->is_opaque = true;
        dims = 0; /* the first eight would be another shape */
    }
    e->tensor.ndim = (int)dims;
    e->tensor.shape = e->shape;
    e->tensor.device.device_type = kDLCPU;
    return NULL;
}

static skep_status read_entry(const char *name, const json_t *info, size_t data_len,
                              struct entry *e, struct skep_error *err)
{
    size_t count, bytes;
    const char *why = json_is_object(info) ? read_type(info, e) : "is not described by an object";

    if (why != NULL)
        return bad_entry(name, why, err);
    const json_t *offsets = json_object_get(info, "data_offsets");
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !read_size(json_array_get(offsets, 0), &e->begin) ||
        !read_size(json_array_get(offsets, 1), &e->end))
        return bad_entry(name, "has no data_offsets of two non-negative integers", err);
    if (e->begin > e->end)
        return bad_entry(name, "has data_offsets in the wrong order", err);
    if (e->end > data_len)
        return bad_entry(name, "ends beyond the end of the file: is the file truncated?", err);
    e->name = name;
    if (e->is_opaque)
        return SKEP_OK; /* how many bytes its elements take is not known */
    if (!shape_count(e->tensor.ndim, e->shape, &count) ||
        !size_mul(count, dtype_bytes(e->tensor.dtype), &bytes) || bytes != e->end - e->begin)
        return bad_entry(name, "has data_offsets that do not fit its shape and dtype", err);
    return SKEP_OK;
}

static int compare_place(const void *a, const void *b)
{
    const struct entry *x = a;
    const struct entry *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name); /* empty tensors at one place */
}

static skep_status check_places(const struct skep_safetensors *file, size_t data_len,
                                struct skep_error *err)
{
    size_t at = 0;

    for (size_t i = 0; i < file->count; i++) {
        const struct entry *e = &file->entries[i];
        if (e->begin < at)
            return bad_entry(e->name, "overlaps the one before it", err);
        if (e->begin > at)
            return bad_entry(e->name, "begins after a gap", err);
        at = e->end;
    }
    if (at != data_len)
        return error_set(err, SKEP_DATA_LOSS,
                         "safetensors: %zu bytes of data, expected %zu by the header", data_len,
                         at);
    return SKEP_OK;
}

static skep_status read_entries(struct skep_safetensors *file, size_t data_len,
                                struct skep_error *err)
{
    const char *name;
    json_t *info;
    skep_status rc;

    file->entries = mem_calloc(json_object_size(file->root), sizeof(*file->entries));
    if (file->entries == NULL)
        return error_no_memory(err, "safetensors",
                               json_object_size(file->root) * sizeof(*file->entries));
    json_object_foreach(file->root, name, info)
    {
        if (strcmp(name, "__metadata__") == 0)
            rc = check_metadata(info, err);
        else
            rc = read_entry(name, info, data_len, &file->entries[file->count++], err);
        if (rc != SKEP_OK)
            return rc;
    }
    qsort(file->entries, file->count, sizeof(*file->entries), compare_place);
    for (size_t i = 0; i < file->count; i++) /* sorting has moved what shape points at */
        file->entries[i].tensor.shape = file->entries[i].shape;
    return check_places(file, data_len, err);
}

/* Points tensors at their bytes; older files may hold them unaligned, and those are copied. */
static skep_status place_data(struct skep_safetensors *file, const uint8_t *data,
                              struct skep_error *err)
{
    for (size_t i = 0; i < file->count; i++) {
        struct entry *e = &file->entries[i];
        const size_t width = dtype_bytes(e->tensor.dtype);
        const size_t bytes = e->end - e->begin;
        if (bytes == 0 || e->is_opaque)
            continue;
        e->tensor.data = (void *)(uintptr_t)(data + e->begin);
        if ((uintptr_t)e->tensor.data % width == 0)
            continue;
        e->copy = mem_alloc(bytes);
        if (e->copy == NULL)
            return error_no_memory(err, "safetensors", bytes);
        memcpy(e->copy, data + e->begin, bytes);
        e->tensor.data = e->copy;
    }
    return SKEP_OK;
}

static int compare_names(const void *a, const void *b, void *arg)
{
    const struct entry *entries = arg;

    return strcmp(entries[*(const size_t *)a].name, entries[*(const size_t *)b].name);
}

static skep_status index_names(struct skep_safetensors *file, struct skep_error *err)
{
    file->by_name = mem_calloc(file->count, sizeof(*file->by_name));
    if (file->by_name == NULL)
        return error_no_memory(err, "safetensors", file->count * sizeof(*file->by_name));
    for (size_t i = 0; i < file->count; i++)
        file->by_name[i] = i;
    qsort_r(file->by_name, file->count, sizeof(*file->by_name), compare_names, file->entries);
    return SKEP_OK;
}

/* Fills a zeroed file from bytes that stay valid; what it took is freed by close. */
static skep_status parse(struct skep_safetensors *file, const uint8_t *data, size_t len,
                         struct skep_error *err)
{
    size_t start = 0;
    skep_status rc = parse_header(data, len, &file->root, &start, err);

    if (rc == SKEP_OK)
        rc = read_entries(file, len - start, err);
    if (rc == SKEP_OK)
        rc = place_data(file, data + start, err);
    if (rc == SKEP_OK)
        rc = index_names(file, err);
    return rc;
}

skep_status skep_safetensors_parse(const void *data, size_t len, struct skep_safetensors **out,
                                   struct skep_error *err)
{
    struct skep_safetensors *file = mem_calloc(1, sizeof(*file));

    *out = NULL;
    if (file == NULL)
        return error_no_memory(err, "safetensors", sizeof(*file));
    skep_status rc = parse(file, data, len, err);
    if (rc != SKEP_OK) {
        skep_safetensors_close(file);
        return rc;
    }
    *out = file;
    return SKEP_OK;
}

skep_status skep_safetensors_open(const char *path, struct skep_safetensors **out,
                                  struct skep_error *err)
{
    struct file_map map = {0};
    skep_status rc = file_map(&map, path, err);

    *out = NULL;
    if (rc != SKEP_OK)
        return rc;
    rc = skep_safetensors_parse(map.data, map.len, out, err);
    const char *kind = rc == SKEP_DATA_LOSS ? file_kind(map.data, map.len) : NULL;
    if (kind != NULL)
        rc = error_set(err, SKEP_DATA_LOSS,
                       "is %s, expected a safetensors file (safetensors.torch.save_file() writes "
                       "one)",
                       kind);
    if (rc != SKEP_OK) {
        error_prefix(err, "%s", path);
        file_unmap(&map);
        return rc;
    }
    (*out)->map = map;
    return SKEP_OK;
}

void skep_safetensors_close(struct skep_safetensors *file)
{
    if (file == NULL)
        return;
    for (size_t i = 0; i < file->count; i++)
        mem_free(file->entries[i].copy);
    mem_free(file->entries);
    mem_free(file->by_name);
    json_decref(file->root);
    file_unmap(&file->map);
    mem_free(file);
}

size_t skep_safetensors_count(const struct skep_safetensors *file)
{
    return file->count;
}

const char *skep_safetensors_name(const struct skep_safetensors *file, size_t i)
{
    return i < file->count ? file->entries[i].name : NULL;
}

const DLTensor *skep_safetensors_tensor(const struct skep_safetensors *file, size_t i)
{
    return i < file->count ? &file->entries[i].tensor : NULL;
}

static const struct entry *find_entry(const struct skep_safetensors *file, const char *name)
{
    size_t low = 0;
    size_t high = file->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct entry *e = &file->entries[file->by_name[middle]];
        int order = strcmp(name, e->name);
        if (order == 0)
            return e;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const DLTensor *skep_safetensors_find(const struct skep_safetensors *file, const char *name)
{
    const struct entry *e = find_entry(file, name);

    return e != NULL ? &e->tensor : NULL;
}

skep_status safetensors_get(const struct skep_safetensors *file, const char *name,
                            const DLTensor **out, struct skep_error *err)
{
    const struct entry *e = find_entry(file, name);
    char quoted[TEXT_QUOTE_BYTES], type[TEXT_QUOTE_BYTES];

    *out = NULL;
    text_quote(name, strlen(name), quoted);
    if (e == NULL)
        return error_set(err, SKEP_NOT_FOUND, "has no tensor %s", quoted);
    if (e->is_opaque)
        return error_set(
            err, SKEP_INVALID_ARGUMENT,
            "tensor %s: dtype %s of %zu dimensions, expected a dtype that Skep reads (F64, F32, "
            "F16, BF16, I64, I32, I16, I8, U8 or BOOL) and at most %d dimensions",
            quoted, text_quote(e->dtype, strlen(e->dtype), type),
            json_array_size(json_object_get(json_object_get(file->root, e->name), "shape")),
            SKEP_TENSOR_MAX_DIMS);
    *out = &e->tensor;
    return SKEP_OK;
}

void safetensors_release(const struct skep_safetensors *file, const char *name)
{
    const struct entry *e = find_entry(file, name);
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

    /* Advice about memory that is no mapped file would empty it. */
    if (e == NULL || file->map.data == NULL || e->copy != NULL || e->begin == e->end)
        return;
    uintptr_t first = (uintptr_t)e->tensor.data / page * page;
    uintptr_t last = (uintptr_t)e->tensor.data + (e->end - e->begin);
    (void)madvise((void *)first, last - first, MADV_DONTNEED);
}

const char *skep_safetensors_metadata(const struct skep_safetensors *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->root, "__metadata__"), key));
}
