/* Writing safetensors files: the widest types first, so that every tensor is aligned. */
#include <skep/safetensors.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/tensor.h"
#include "base/text.h"

enum {
    PREFIX_BYTES = 8,
    ALIGNMENT = 8, /* of the data section: that of the widest type */
};

/* A tensor's place in the order of writing. */
struct item {
    const struct skep_named_tensor *source; /* borrowed */
    size_t position;                        /* in the caller's list */
    size_t bytes;
};

static int compare_items(const void *a, const void *b)
{
    const struct item *x = a;
    const struct item *y = b;
    size_t x_width = dtype_bytes(x->source->tensor->dtype);
    size_t y_width = dtype_bytes(y->source->tensor->dtype);

    if (x_width != y_width)
        return x_width > y_width ? -1 : 1;
    return x->position < y->position ? -1 : 1;
}

static skep_status bad_name(const char *what, const char *name, const char *why,
                            struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES];

    return error_set(err, SKEP_INVALID_ARGUMENT, "safetensors: %s %s %s", what,
                     text_quote(name, strlen(name), quoted), why);
}

/* Puts a value under a new key; the value is taken always. */
static skep_status put_new(json_t *object, const char *what, const char *key, json_t *value,
                           struct skep_error *err)
{
    if (!text_is_utf8(key, strlen(key))) {
        json_decref(value);
        return bad_name(what, key, "is not UTF-8", err);
    }
    if (json_object_get(object, key) != NULL) {
        json_decref(value);
        return bad_name(what, key, "is there twice", err);
    }
    if (json_object_set_new(object, key, value) != 0)
        return error_no_memory(err, "safetensors header", strlen(key));
    return SKEP_OK;
}

static skep_status put_metadata(json_t *root, const char *const *metadata, struct skep_error *err)
{
    json_t *object = json_object();
    skep_status rc = SKEP_OK;

    if (metadata == NULL || metadata[0] == NULL) {
        json_decref(object);
        return SKEP_OK;
    }
    for (size_t i = 0; rc == SKEP_OK && metadata[i] != NULL; i += 2) {
        const char *value = metadata[i + 1];
        if (value == NULL || !text_is_utf8(value, strlen(value))) {
            rc = bad_name("metadata", metadata[i], "has no value, expected UTF-8 text", err);
            break;
        }
        rc = put_new(object, "metadata", metadata[i], json_string(value), err);
    }
    if (rc != SKEP_OK) {
        json_decref(object);
        return rc;
    }
    return put_new(root, "metadata", "__metadata__", object, err);
}

static json_t *shape_json(const DLTensor *t)
{
    json_t *shape = json_array();

    for (int i = 0; i < t->ndim; i++)
        if (json_array_append_new(shape, json_integer(t->shape[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    return shape;
}

static skep_status put_tensors(json_t *root, const struct item *items, size_t count,
                               struct skep_error *err)
{
    size_t at = 0;

    for (size_t i = 0; i < count; i++) {
        const struct skep_named_tensor *source = items[i].source;
        size_t end;
        if (source->name[0] == '\0' || strcmp(source->name, "__metadata__") == 0)
            return bad_name("tensor", source->name, "has a name that the format reserves", err);
        if (!size_add(at, items[i].bytes, &end) || end > INT64_MAX)
            return bad_name("tensor", source->name, "makes the file too large", err);
        json_t *shape = shape_json(source->tensor);
        json_t *info =
            json_pack("{s:s, s:o, s:[I, I]}", "dtype", skep_dtype_name(source->tensor->dtype),
                      "shape", shape, "data_offsets", (json_int_t)at, (json_int_t)end);
        if (info == NULL)
            return error_no_memory(err, "safetensors header", 0);
        skep_status rc = put_new(root, "tensor", source->name, info, err);
        if (rc != SKEP_OK)
            return rc;
        at = end;
    }
    return SKEP_OK;
}

/* jansson 2.14 goes on after a failure to write a key, so failures are remembered here. */
struct text_sink {
    struct bytes *out;
    bool failed;
};

static int append_text(const char *text, size_t len, void *arg)
{
    struct text_sink *sink = arg;

    if (!sink->failed)
        sink->failed = !bytes_append(sink->out, text, len);
    return sink->failed ? -1 : 0;
}

/* The length prefix and the padded JSON header. */
static skep_status make_header(const struct item *items, size_t count, const char *const *metadata,
                               struct bytes *out, struct skep_error *err)
{
    static const uint8_t zeros[PREFIX_BYTES];
    json_t *root = json_object();
    skep_status rc = put_metadata(root, metadata, err);

    if (rc == SKEP_OK)
        rc = put_tensors(root, items, count, err);
    if (rc == SKEP_OK) {
        struct text_sink sink = {.out = out};
        bool whole = bytes_append(out, zeros, PREFIX_BYTES) &&
                     json_dump_callback(root, append_text, &sink, JSON_COMPACT) == 0 &&
                     !sink.failed;
        while (whole && out->len % ALIGNMENT != 0)
            whole = bytes_append(out, " ", 1);
        if (whole)
            store_u64(out->data, out->len - PREFIX_BYTES);
        else
            rc = error_no_memory(err, "safetensors header", out->len);
    }
    json_decref(root);
    return rc;
}

/* Checks the tensors and puts them in the order of writing. */
static skep_status order_items(const struct skep_named_tensor *tensors, size_t count,
                               struct item **out, struct skep_error *err)
{
    struct item *items = mem_calloc(count, sizeof(*items));

    if (items == NULL)
        return error_no_memory(err, "safetensors", count * sizeof(*items));
    for (size_t i = 0; i < count; i++) {
        items[i] = (struct item){.source = &tensors[i], .position = i};
        skep_status rc = skep_tensor_bytes(tensors[i].tensor, &items[i].bytes, err);
        if (rc != SKEP_OK) {
            error_prefix(err, "safetensors: \"%s\"", tensors[i].name);
            mem_free(items);
            return rc;
        }
    }
    qsort(items, count, sizeof(*items), compare_items);
    *out = items;
    return SKEP_OK;
}

skep_status skep_safetensors_save(const char *path, const struct skep_named_tensor *tensors,
                                  size_t count, const char *const *metadata, struct skep_error *err)
{
    struct item *items = NULL;
    struct bytes header = {0};
    struct file_writer writer = {.fd = -1};
    skep_status rc = order_items(tensors, count, &items, err);

    if (rc == SKEP_OK)
        rc = make_header(items, count, metadata, &header, err);
    if (rc == SKEP_OK)
        rc = file_writer_open(&writer, path, 0666, err);
    if (rc == SKEP_OK)
        rc = file_writer_write(&writer, header.data, header.len, err);
    for (size_t i = 0; rc == SKEP_OK && i < count; i++)
        rc = file_writer_write(&writer, skep_tensor_data(items[i].source->tensor), items[i].bytes,
                               err);
    if (rc == SKEP_OK)
        rc = file_writer_commit(&writer, err);
    file_writer_abort(&writer);
    bytes_free(&header);
    mem_free(items);
    return rc;
}
