/*
 * NumPy's .npy files, one tensor each.
 *
 *     "\x93NUMPY" [u8 major][u8 minor][u16 or u32 header bytes][header][data]
 *
 * The header is a Python dictionary, padded with spaces and a line end:
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
 */
#include <skep/safetensors.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/npy.h"
#include "base/tensor.h"
#include "base/text.h"

enum {
    MAGIC_BYTES = 6,
    HEADER_LIMIT_BYTES = 1 << 16, /* NumPy's own default is 10,000 */
    ALIGNMENT = 64,               /* of the data, as NumPy writes it */
    KEY_BYTES = 32,
};

static const char magic[MAGIC_BYTES] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

static const struct {
    const char *descr; /* without the mark of byte order */
    uint8_t code, bits;
} types[] = {
    {"f8", kDLFloat, 64}, {"f4", kDLFloat, 32}, {"f2", kDLFloat, 16},
    {"i8", kDLInt, 64},   {"i4", kDLInt, 32},   {"i2", kDLInt, 16},
    {"i1", kDLInt, 8},    {"u1", kDLUInt, 8},   {"b1", SKEP_DL_BOOL, 8},
};

/* The header as it is read. */
struct header {
    bool has_descr, has_order, has_shape;
    bool is_fortran;
    DLDataType dtype;
    int ndim;
    int64_t shape[SKEP_TENSOR_MAX_DIMS];
};

struct cursor {
    const char *p, *end;
};

static void skip_spaces(struct cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r'))
        c->p++;
}

/* Skips spaces and takes one character if it is next. */
static bool take(struct cursor *c, char expected)
{
    skip_spaces(c);
    if (c->p == c->end || *c->p != expected)
        return false;
    c->p++;
    return true;
}

static bool take_word(struct cursor *c, const char *word)
{
    size_t len = strlen(word);

    skip_spaces(c);
    if ((size_t)(c->end - c->p) < len || memcmp(c->p, word, len) != 0)
        return false;
    c->p += len;
    return true;
}

/* A Python string in either quotes; one with an escape in it is not understood. */
static bool take_string(struct cursor *c, char out[static KEY_BYTES])
{
    char quote;
    size_t n = 0;

    if (take(c, '\''))
        quote = '\'';
    else if (take(c, '"'))
        quote = '"';
    else
        return false;
    while (c->p < c->end && *c->p != quote) {
        if (*c->p == '\\' || *c->p == '\0' || n + 1 == KEY_BYTES)
            return false;
        out[n++] = *c->p++;
    }
    out[n] = '\0';
    return take(c, quote);
}

static bool take_number(struct cursor *c, int64_t *out)
{
    int64_t value = 0;

    skip_spaces(c);
    const char *first = c->p;
    while (c->p < c->end && *c->p >= '0' && *c->p <= '9') {
        if (__builtin_mul_overflow(value, (int64_t)10, &value) ||
            __builtin_add_overflow(value, (int64_t)(*c->p - '0'), &value))
            return false;
        c->p++;
    }
    *out = value;
    return c->p > first;
}

/* NULL, or what is wrong. */
static const char *read_descr(struct cursor *c, struct header *h)
{
    char descr[KEY_BYTES];

    if (!take_string(c, descr))
        return "descr is not a plain type string such as '<f4'";
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (descr[0] == '\0' || strcmp(descr + 1, types[i].descr) != 0)
            continue;
        if (descr[0] == '>' && types[i].bits > 8)
            return "elements are big-endian, expected little-endian";
        if (strchr("<>|=", descr[0]) == NULL || (descr[0] == '|' && types[i].bits > 8))
            break;
        h->dtype = (DLDataType){.code = types[i].code, .bits = types[i].bits, .lanes = 1};
        h->has_descr = true;
        return NULL;
    }
    return "descr is a type unknown to Skep, expected f8 f4 f2 i8 i4 i2 i1 u1 or b1";
}

static const char *read_order(struct cursor *c, struct header *h)
{
    h->has_order = true;
    h->is_fortran = take_word(c, "True");
    return h->is_fortran || take_word(c, "False") ? NULL : "fortran_order is not True or False";
}

/* "()", "(3,)", "(3, 4)" or "(3, 4,)". */
static const char *read_shape(struct cursor *c, struct header *h)
{
    bool comma = true;

    h->has_shape = true;
    if (!take(c, '('))
        return "shape is not a tuple";
    while (!take(c, ')')) {
        if (!comma)
            return "shape lacks a comma between numbers";
        if (h->ndim == SKEP_TENSOR_MAX_DIMS)
            return "shape has more than 8 dimensions";
        if (!take_number(c, &h->shape[h->ndim++]))
            return "shape is not a tuple of non-negative integers";
        comma = take(c, ',');
    }
    return h->ndim == 1 && !comma ? "shape is a number in brackets, expected a tuple" : NULL;
}

static const char *read_value(struct cursor *c, const char *key, struct header *h)
{
    if (strcmp(key, "descr") == 0)
        return h->has_descr ? "descr is there twice" : read_descr(c, h);
    if (strcmp(key, "fortran_order") == 0)
        return h->has_order ? "fortran_order is there twice" : read_order(c, h);
    if (strcmp(key, "shape") == 0)
        return h->has_shape ? "shape is there twice" : read_shape(c, h);
    return "header has a key other than descr, fortran_order, shape";
}

static const char *read_header(struct cursor *c, struct header *h)
{
    char key[KEY_BYTES];
    bool comma = true;

    if (!take(c, '{'))
        return "header does not start with {";
    while (!take(c, '}')) {
        if (!comma || !take_string(c, key) || !take(c, ':'))
            return "header is not a dictionary with string keys";
        const char *why = read_value(c, key, h);
        if (why != NULL)
            return why;
        comma = take(c, ',');
    }
    skip_spaces(c);
    if (c->p != c->end)
        return "header goes on after its end";
    if (!h->has_descr || !h->has_order || !h->has_shape)
        return "header lacks descr, fortran_order or shape";
    return NULL;
}

/* Finds the header and the data in the file; NULL, or what is wrong. */
static const char *split(const uint8_t *data, size_t len, struct cursor *header,
                         const uint8_t **elements)
{
    const size_t version_end = MAGIC_BYTES + 2;

    if (len < version_end || memcmp(data, magic, MAGIC_BYTES) != 0)
        return "does not start as a .npy file does";
    uint8_t major = data[MAGIC_BYTES];
    if (major < 1 || major > 3 || data[MAGIC_BYTES + 1] != 0)
        return "is of an unknown version, expected 1.0, 2.0 or 3.0";
    size_t width = major == 1 ? 2 : 4;
    if (len < version_end + width)
        return "ends within the header";
    size_t header_len = major == 1 ? load_u16(data + version_end) : load_u32(data + version_end);
    if (header_len > len - version_end - width)
        return "ends within the header";
    if (header_len > HEADER_LIMIT_BYTES)
        return "has a header of more than 65536 bytes";
    header->p = (const char *)data + version_end + width;
    header->end = header->p + header_len;
    *elements = (const uint8_t *)header->end;
    return NULL;
}

/* Copies elements, of which the first index moves fastest, to where the last one does. */
static void reorder(const struct header *h, const uint8_t *from, uint8_t *to, size_t count)
{
    size_t width = dtype_bytes(h->dtype);
    size_t at[SKEP_TENSOR_MAX_DIMS] = {0};     /* indices */
    size_t stride[SKEP_TENSOR_MAX_DIMS] = {0}; /* of each in the file, in elements */
    size_t source = 0;

    for (int d = 0; d < h->ndim; d++)
        stride[d] = d == 0 ? 1 : stride[d - 1] * (size_t)h->shape[d - 1];
    for (size_t i = 0; i < count; i++) {
        memcpy(to + i * width, from + source * width, width);
        for (int d = h->ndim - 1; d >= 0; d--) { /* the next index, the last one fastest */
            source += stride[d];
            if (++at[d] < (size_t)h->shape[d])
                break;
            source -= at[d] * stride[d];
            at[d] = 0;
        }
    }
}

static skep_status parse(const void *data, size_t len, DLManagedTensor **out, bool *was_fortran,
                         struct skep_error *err)
{
    struct cursor cursor;
    struct header h = {0};
    const uint8_t *elements = NULL;
    size_t count, bytes;
    const char *why = split(data, len, &cursor, &elements);

    *out = NULL;
    *was_fortran = false;
    if (why == NULL)
        why = read_header(&cursor, &h);
    if (why != NULL)
        return error_set(err, SKEP_DATA_LOSS, "npy: %s", why);
    const size_t present = len - (size_t)(elements - (const uint8_t *)data);
    if (!shape_count(h.ndim, h.shape, &count) || !size_mul(count, dtype_bytes(h.dtype), &bytes))
        return error_set(err, SKEP_DATA_LOSS, "npy: shape has too many elements");
    if (bytes != present)
        return error_set(err, SKEP_DATA_LOSS,
                         "npy: %zu bytes of elements, expected %zu by the header", present, bytes);
    skep_status rc = skep_tensor_new(h.dtype, h.ndim, h.shape, out, err);
    *was_fortran = rc == SKEP_OK && h.is_fortran && h.ndim > 1;
    if (*was_fortran)
        reorder(&h, elements, skep_tensor_data(&(*out)->dl_tensor), count);
    else if (rc == SKEP_OK && bytes > 0)
        memcpy(skep_tensor_data(&(*out)->dl_tensor), elements, bytes);
    return rc;
}

skep_status skep_npy_parse(const void *data, size_t len, DLManagedTensor **out,
                           struct skep_error *err)
{
    bool was_fortran;

    return parse(data, len, out, &was_fortran, err);
}

skep_status skep_npy_load(const char *path, DLManagedTensor **out, struct skep_error *err)
{
    bool was_fortran;

    return npy_load(path, out, &was_fortran, err);
}

skep_status npy_load(const char *path, DLManagedTensor **out, bool *was_fortran,
                     struct skep_error *err)
{
    struct file_map map = {0};
    skep_status rc = file_map(&map, path, err);

    *out = NULL;
    *was_fortran = false;
    if (rc != SKEP_OK)
        return rc;
    rc = parse(map.data, map.len, out, was_fortran, err);
    if (rc != SKEP_OK)
        error_prefix(err, "%s", path);
    file_unmap(&map);
    return rc;
}

static const char *descr_of(DLDataType dtype)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (dtype_equal(dtype, (DLDataType){types[i].code, types[i].bits, 1}))
            return types[i].descr;
    return NULL;
}

/* Writes magic, version 1.0 and the padded header; returns their length. 8 dimensions of 20 digits
 * stay far below `cap`. */
static size_t make_header(const DLTensor *t, const char *descr, char *out, size_t cap)
{
    const size_t start = MAGIC_BYTES + 4;
    size_t used = start;

    used += (size_t)snprintf(out + used, cap - used,
                             "{'descr': '%c%s', 'fortran_order': False, "
                             "'shape': (",
                             t->dtype.bits > 8 ? '<' : '|', descr);
    for (int i = 0; i < t->ndim; i++)
        used += (size_t)snprintf(out + used, cap - used, "%s%" PRId64 "%s", i > 0 ? " " : "",
                                 t->shape[i], i + 1 < t->ndim || t->ndim == 1 ? "," : "");
    used += (size_t)snprintf(out + used, cap - used, "), }");
    while ((used + 1) % ALIGNMENT != 0)
        out[used++] = ' ';
    out[used++] = '\n';
    memcpy(out, magic, MAGIC_BYTES);
    out[MAGIC_BYTES] = 1;
    out[MAGIC_BYTES + 1] = 0;
    store_u16((uint8_t *)out + MAGIC_BYTES + 2, (uint16_t)(used - start));
    return used;
}

skep_status skep_npy_save(const char *path, const DLTensor *tensor, struct skep_error *err)
{
    char header[512];
    size_t bytes;
    struct file_writer writer = {.fd = -1};
    skep_status rc = skep_tensor_bytes(tensor, &bytes, err);

    if (rc != SKEP_OK)
        return rc;
    const char *descr = descr_of(tensor->dtype);
    if (descr == NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: .npy has no type for %s elements", path,
                         skep_dtype_name(tensor->dtype));
    size_t header_len = make_header(tensor, descr, header, sizeof(header));
    rc = file_writer_open(&writer, path, 0666, err);
    if (rc == SKEP_OK)
        rc = file_writer_write(&writer, header, header_len, err);
    if (rc == SKEP_OK)
        rc = file_writer_write(&writer, skep_tensor_data(tensor), bytes, err);
    if (rc == SKEP_OK)
        rc = file_writer_commit(&writer, err);
    file_writer_abort(&writer);
    return rc;
}
