/* HEADERS and hello: round trips, every field wrong in every way, limits, junk, short memory. */
#include "unit.h"

#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/mp.h"
#include "base/tensor.h"
#include "wire/frame.h"
#include "wire/message.h"

/* ---- Building what encode() never would ---- */

struct built {
    msgpack_sbuffer buffer;
    msgpack_packer pk;
};

static void begin(struct built *b, size_t fields)
{
    msgpack_sbuffer_init(&b->buffer);
    msgpack_packer_init(&b->pk, &b->buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&b->pk, fields);
}

static void key(struct built *b, const char *name)
{
    mp_pack_str(&b->pk, name);
}

static skep_status as_call(struct built *b, struct skep_error *err)
{
    struct call_headers *out = malloc(sizeof(*out));
    struct call_headers zero = {0};

    memset(out, 0x55, sizeof(*out));
    skep_status rc = call_headers_decode(out, (const uint8_t *)b->buffer.data, b->buffer.size,
                                         &message_default_limits, err);
    if (rc != SKEP_OK)
        assert_memory_equal(out, &zero, sizeof(zero));
    call_headers_free(out);
    free(out);
    msgpack_sbuffer_destroy(&b->buffer);
    return rc;
}

static void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

/* A call whose only odd field is `name`; the value is packed next. */
static void call_with(struct built *b, const char *name)
{
    begin(b, 2);
    key(b, "method");
    mp_pack_str(&b->pk, "forward");
    key(b, name);
}

static void expect_call(struct built *b, skep_status status, const char *part)
{
    struct skep_error err = {0};

    assert_int_equal(as_call(b, &err), status);
    if (status != SKEP_OK)
        assert_contains(err.message, part);
}

/* ---- Samples ---- */

static struct tensor_descriptor descriptor(DLDataType dtype, int ndim, const int64_t *shape)
{
    struct tensor_descriptor d = {.dtype = dtype, .ndim = ndim};
    size_t count;

    if (ndim > 0)
        memcpy(d.shape, shape, (size_t)ndim * sizeof(*shape));
    assert_true(shape_count(ndim, shape, &count));
    d.wire_bytes = count * dtype_bytes(dtype);
    return d;
}

static struct call_headers *full_call(void)
{
    static uint8_t params[] = {0x81, 0xa1, 'k', 5};
    struct call_headers *h = calloc(1, sizeof(*h));

    snprintf(h->method, sizeof(h->method), "%s", "backward");
    snprintf(h->uid, sizeof(h->uid), "%s", "ffn.31.255");
    h->timeout_ms = 12345;
    h->has_request_id = true;
    memset(h->request_id, 0xab, sizeof(h->request_id));
    h->params = (struct bytes){.data = params, .len = sizeof(params)};
    h->tensor_count = 3;
    h->tensors[0] = descriptor(DTYPE_F32, 2, (int64_t[]){4, 1024});
    h->tensors[1] = descriptor((DLDataType){.code = kDLBfloat, .bits = 16, .lanes = 1}, 8,
                               (int64_t[]){1, 2, 3, 1, 1, 2, 1, 1});
    h->tensors[2] = descriptor(DTYPE_I64, 0, NULL);
    return h;
}

static void assert_same_tensors(const struct tensor_descriptor *x,
                                const struct tensor_descriptor *y, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        assert_true(dtype_equal(x[i].dtype, y[i].dtype));
        assert_int_equal(x[i].ndim, y[i].ndim);
        for (int d = 0; d < x[i].ndim; d++)
            assert_int_equal(x[i].shape[d], y[i].shape[d]);
        assert_int_equal(x[i].encoding, y[i].encoding);
        assert_int_equal(x[i].wire_bytes, y[i].wire_bytes);
    }
}

/* ---- Calls ---- */

static void call_round_trips(void **state)
{
    struct call_headers *in = full_call(), *out = malloc(sizeof(*out));
    struct bytes bytes = {0};

    (void)state;
    assert_int_equal(call_headers_encode(in, &bytes, NULL), SKEP_OK);
    assert_true(mp_check(bytes.data, bytes.len));
    assert_int_equal(call_headers_decode(out, bytes.data, bytes.len, &message_default_limits, NULL),
                     SKEP_OK);
    assert_string_equal(out->method, in->method);
    assert_string_equal(out->uid, in->uid);
    assert_int_equal(out->timeout_ms, 12345);
    assert_true(out->has_request_id);
    assert_memory_equal(out->request_id, in->request_id, sizeof(in->request_id));
    assert_int_equal(out->params.len, in->params.len);
    assert_memory_equal(out->params.data, in->params.data, in->params.len);
    assert_int_equal(out->tensor_count, 3);
    assert_same_tensors(in->tensors, out->tensors, 3);
    call_headers_free(out);

    call_headers_set_timeout(bytes.data, UINT64_MAX - 1);
    assert_int_equal(call_headers_decode(out, bytes.data, bytes.len, &message_default_limits, NULL),
                     SKEP_OK);
    assert_true(out->timeout_ms == UINT64_MAX - 1);
    assert_string_equal(out->method, in->method);
    call_headers_free(out);
    bytes_free(&bytes);
    free(in);
    free(out);
}

static void smallest_call_needs_a_method_only(void **state)
{
    struct built b;

    (void)state;
    begin(&b, 1);
    key(&b, "method");
    mp_pack_str(&b.pk, "ping");
    expect_call(&b, SKEP_OK, NULL);
    begin(&b, 0);
    expect_call(&b, SKEP_DATA_LOSS, "method: missing");
}

static void unknown_fields_are_skipped(void **state)
{
    struct built b;

    (void)state;
    call_with(&b, "colour");
    msgpack_pack_array(&b.pk, 2);
    msgpack_pack_nil(&b.pk);
    msgpack_pack_map(&b.pk, 0);
    expect_call(&b, SKEP_OK, NULL);
    begin(&b, 2); /* a key that is no string */
    msgpack_pack_int(&b.pk, 7);
    msgpack_pack_int(&b.pk, 7);
    key(&b, "method");
    mp_pack_str(&b.pk, "ping");
    expect_call(&b, SKEP_OK, NULL);
}

static void fields_of_a_wrong_type_are_named(void **state)
{
    static const char *const fields[] = {"uid", "timeout", "id", "params", "tensors"};
    struct built b;

    (void)state;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        call_with(&b, fields[i]);
        msgpack_pack_nil(&b.pk);
        expect_call(&b, SKEP_DATA_LOSS, fields[i]);
        call_with(&b, fields[i]);
        msgpack_pack_double(&b.pk, 0.5);
        expect_call(&b, SKEP_DATA_LOSS, fields[i]);
        call_with(&b, fields[i]);
        msgpack_pack_map(&b.pk, 0);
        expect_call(&b, SKEP_DATA_LOSS, fields[i]);
    }
    begin(&b, 1);
    key(&b, "method");
    msgpack_pack_int(&b.pk, 1);
    expect_call(&b, SKEP_DATA_LOSS, "method");
    call_with(&b, "timeout");
    msgpack_pack_int(&b.pk, -1);
    expect_call(&b, SKEP_DATA_LOSS, "timeout");
}

static void fields_of_a_wrong_size_are_named(void **state)
{
    char text[400];
    uint8_t blob[MESSAGE_MAX_PARAMS + 1] = {0};
    struct built b;

    (void)state;
    memset(text, 'u', sizeof(text));
    for (size_t len = 31; len <= 32; len++) {
        text[len] = '\0';
        begin(&b, 1);
        key(&b, "method");
        mp_pack_str(&b.pk, text);
        expect_call(&b, len < 32 ? SKEP_OK : SKEP_DATA_LOSS, "method");
        text[len] = 'u';
    }
    for (size_t len = 255; len <= 256; len++) {
        text[len] = '\0';
        call_with(&b, "uid");
        mp_pack_str(&b.pk, text);
        expect_call(&b, len < 256 ? SKEP_OK : SKEP_DATA_LOSS, "uid");
        text[len] = 'u';
    }
    begin(&b, 1);
    key(&b, "method");
    mp_pack_str(&b.pk, "");
    expect_call(&b, SKEP_DATA_LOSS, "method");
    call_with(&b, "uid"); /* a NUL inside would make it another uid */
    msgpack_pack_str(&b.pk, 3);
    msgpack_pack_str_body(&b.pk, "a\0b", 3);
    expect_call(&b, SKEP_DATA_LOSS, "uid");
    for (size_t len = 15; len <= 17; len++) {
        call_with(&b, "id");
        mp_pack_bin(&b.pk, blob, len);
        expect_call(&b, len == 16 ? SKEP_OK : SKEP_DATA_LOSS, "id");
    }
    for (size_t len = MESSAGE_MAX_PARAMS; len <= MESSAGE_MAX_PARAMS + 1; len++) {
        call_with(&b, "params");
        mp_pack_bin(&b.pk, blob, len);
        expect_call(&b, len == MESSAGE_MAX_PARAMS ? SKEP_OK : SKEP_INVALID_ARGUMENT, "32768");
    }
}

/* ---- Tensors ---- */

/* [dtype, shape, encoding, bytes] as the only tensor of a call. */
static void call_with_tensor(struct built *b, const char *dtype, size_t ndim, const int64_t *shape,
                             uint64_t encoding, uint64_t bytes)
{
    call_with(b, "tensors");
    msgpack_pack_array(&b->pk, 1);
    msgpack_pack_array(&b->pk, 4);
    mp_pack_str(&b->pk, dtype);
    msgpack_pack_array(&b->pk, ndim);
    for (size_t i = 0; i < ndim; i++)
        msgpack_pack_int64(&b->pk, shape[i]);
    msgpack_pack_uint64(&b->pk, encoding);
    msgpack_pack_uint64(&b->pk, bytes);
}

static void declared_bytes_must_be_those_of_the_shape(void **state)
{
    struct built b;

    (void)state;
    call_with_tensor(&b, "F32", 2, (int64_t[]){1, 10}, 0, 40);
    expect_call(&b, SKEP_OK, NULL);
    call_with_tensor(&b, "F32", 2, (int64_t[]){1, 10}, 0, 20);
    expect_call(&b, SKEP_INVALID_ARGUMENT, "20 bytes, expected 40 for [1, 10] F32");
    call_with_tensor(&b, "F32", 2, (int64_t[]){1, 10}, 0, 60);
    expect_call(&b, SKEP_INVALID_ARGUMENT, "60 bytes");
    call_with_tensor(&b, "U8", 2, (int64_t[]){0, 10}, 0, 0);
    expect_call(&b, SKEP_OK, NULL);
    call_with_tensor(&b, "U8", 0, NULL, 0, 1);
    expect_call(&b, SKEP_OK, NULL);
}

static void impossible_shapes_and_types_are_refused(void **state)
{
    const int64_t nines[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    struct built b;

    (void)state;
    call_with_tensor(&b, "F32", 2, (int64_t[]){-1, 10}, 0, 40);
    expect_call(&b, SKEP_DATA_LOSS, "dimension 0");
    call_with_tensor(&b, "F32", 2, (int64_t[]){INT64_MAX, INT64_MAX}, 0, 4);
    expect_call(&b, SKEP_INVALID_ARGUMENT, "too many elements");
    call_with_tensor(&b, "F64", 1, (int64_t[]){INT64_C(1) << 61}, 0, 0);
    expect_call(&b, SKEP_INVALID_ARGUMENT, "too many elements");
    call_with_tensor(&b, "F32", 9, nines, 0, 4);
    expect_call(&b, SKEP_INVALID_ARGUMENT, "9 dimensions, expected at most 8");
    call_with_tensor(&b, "F33", 1, nines, 0, 4);
    expect_call(&b, SKEP_INVALID_ARGUMENT, "unknown element type \"F33\"");
    call_with_tensor(&b, "F32", 1, nines, 9, 4);
    expect_call(&b, SKEP_INVALID_ARGUMENT, "encoding 9");
    call_with_tensor(&b, "a type with a long name", 1, nines, 0, 4);
    expect_call(&b, SKEP_DATA_LOSS, "dtype");
}

static void encodings_have_sizes_of_their_own(void **state)
{
    const int64_t shape[2] = {2, 5000};
    const uint64_t sizes[ENCODING_COUNT] = {40000, 20000, 20000, 20016, 11024, 11024, 10012};
    struct built b;

    (void)state;
    for (uint64_t e = 0; e < ENCODING_COUNT; e++)
        for (int off = -1; off <= 1; off++) {
            call_with_tensor(&b, "F32", 2, shape, e, sizes[e] + (uint64_t)(int64_t)off);
            expect_call(&b, off == 0 ? SKEP_OK : SKEP_INVALID_ARGUMENT, "bytes, expected ");
        }
    call_with_tensor(&b, "F32", 2, (int64_t[]){0, 5000}, ENCODING_QUANTILE8, 0);
    expect_call(&b, SKEP_OK, NULL);
    call_with_tensor(&b, "F32", 2, shape, ENCODING_COUNT, 40000);
    expect_call(&b, SKEP_INVALID_ARGUMENT, "encoding 7, expected 0 to 6");
    call_with_tensor(&b, "F32", 2, shape, UINT64_MAX, 40000);
    expect_call(&b, SKEP_INVALID_ARGUMENT, "encoding 18446744073709551615");
    call_with_tensor(&b, "I64", 2, shape, ENCODING_FLOAT16, 20000);
    expect_call(&b, SKEP_INVALID_ARGUMENT, "I64 in encoding float16, which is for F32 only");
    call_with_tensor(&b, "F32", 2, (int64_t[]){INT64_C(1) << 31, INT64_C(1) << 31},
                     ENCODING_UNIFORM8, (UINT64_C(1) << 62) + 1024);
    expect_call(&b, SKEP_INVALID_ARGUMENT, "too many elements");
}

/* An encoded message of few bytes must not become one of many. */
static void limits_count_decoded_bytes(void **state)
{
    struct message_limits limits = message_default_limits;
    struct call_headers *h = calloc(1, sizeof(*h)), *out = malloc(sizeof(*out));
    struct bytes bytes = {0};
    struct skep_error err;

    (void)state;
    snprintf(h->method, sizeof(h->method), "%s", "m");
    h->tensor_count = 1;
    h->tensors[0] = descriptor(DTYPE_F32, 1, (int64_t[]){10000});
    h->tensors[0].encoding = ENCODING_UNIFORM8;
    h->tensors[0].wire_bytes = 11024;
    assert_int_equal(tensor_descriptor_memory(&h->tensors[0]), 40000);
    assert_int_equal(call_headers_encode(h, &bytes, NULL), SKEP_OK);
    limits.max_message_bytes = 40000;
    assert_int_equal(call_headers_decode(out, bytes.data, bytes.len, &limits, &err), SKEP_OK);
    call_headers_free(out);
    limits.max_message_bytes = 39999;
    assert_int_equal(call_headers_decode(out, bytes.data, bytes.len, &limits, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_contains(err.message, "more than 39999 bytes");
    limits.max_message_bytes = 40000;
    limits.refused_encodings = 1 << ENCODING_UNIFORM8;
    assert_int_equal(call_headers_decode(out, bytes.data, bytes.len, &limits, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_contains(err.message, "encoding 4 is not taken here");
    bytes_free(&bytes);
    free(h);
    free(out);
}

static void wished_encodings_round_trip_and_unknown_ones_are_none(void **state)
{
    struct call_headers *in = full_call(), *out = malloc(sizeof(*out));
    struct bytes bytes = {0};
    struct built b;

    (void)state;
    in->has_reply_encoding = true;
    in->reply_encoding = ENCODING_MEANSTD16;
    assert_int_equal(call_headers_encode(in, &bytes, NULL), SKEP_OK);
    assert_int_equal(call_headers_decode(out, bytes.data, bytes.len, &message_default_limits, NULL),
                     SKEP_OK);
    assert_true(out->has_reply_encoding);
    assert_int_equal(out->reply_encoding, ENCODING_MEANSTD16);
    call_headers_free(out);
    bytes_free(&bytes);
    call_with(&b, "reply_encoding");
    msgpack_pack_uint64(&b.pk, 200);
    assert_int_equal(call_headers_decode(out, (const uint8_t *)b.buffer.data, b.buffer.size,
                                         &message_default_limits, NULL),
                     SKEP_OK);
    assert_true(out->has_reply_encoding);
    assert_int_equal(out->reply_encoding, ENCODING_NONE);
    call_headers_free(out);
    msgpack_sbuffer_destroy(&b.buffer);
    call_with(&b, "reply_encoding");
    mp_pack_str(&b.pk, "float16");
    expect_call(&b, SKEP_DATA_LOSS, "reply_encoding");
    free(in);
    free(out);
}

static void tensors_of_a_wrong_form_are_refused(void **state)
{
    struct built b;

    (void)state;
    for (size_t items = 0; items < 4; items++) {
        call_with(&b, "tensors");
        msgpack_pack_array(&b.pk, 1);
        msgpack_pack_array(&b.pk, items);
        for (size_t i = 0; i < items; i++)
            msgpack_pack_int(&b.pk, 0);
        expect_call(&b, SKEP_DATA_LOSS, "tensor 0");
    }
    for (size_t wrong = 0; wrong < 4; wrong++) {
        call_with(&b, "tensors");
        msgpack_pack_array(&b.pk, 1);
        msgpack_pack_array(&b.pk, 5); /* the fifth is a later minor's */
        for (size_t i = 0; i < 5; i++)
            if (i == wrong)
                msgpack_pack_nil(&b.pk);
            else if (i == 0)
                mp_pack_str(&b.pk, "U8");
            else if (i == 1)
                msgpack_pack_array(&b.pk, 0);
            else
                msgpack_pack_int(&b.pk, i == 3);
        expect_call(&b, SKEP_DATA_LOSS, "tensor 0");
    }
}

static void limits_hold_at_their_edge(void **state)
{
    struct message_limits limits = {.max_message_bytes = 100, .max_tensors = 3, .max_dims = 2};
    struct call_headers *h = calloc(1, sizeof(*h)), *out = malloc(sizeof(*out));
    struct bytes bytes = {0};
    struct skep_error err;

    (void)state;
    snprintf(h->method, sizeof(h->method), "%s", "m");
    for (int64_t total = 99; total <= 101; total++)
        for (size_t count = 1; count <= 4; count++) {
            h->tensor_count = count;
            for (size_t i = 0; i < count; i++)
                h->tensors[i] = descriptor((DLDataType){.code = kDLUInt, .bits = 8, .lanes = 1}, 1,
                                           (int64_t[]){i == 0 ? total - (int64_t)count + 1 : 1});
            bytes.len = 0;
            assert_int_equal(call_headers_encode(h, &bytes, NULL), SKEP_OK);
            skep_status rc = call_headers_decode(out, bytes.data, bytes.len, &limits, &err);
            assert_int_equal(rc, total <= 100 && count <= 3 ? SKEP_OK : SKEP_INVALID_ARGUMENT);
            if (count > 3)
                assert_contains(err.message, "4 tensors, expected at most 3");
            else if (total > 100)
                assert_contains(err.message, "more than 100 bytes");
        }
    h->tensor_count = 1;
    h->tensors[0] = descriptor(DTYPE_F32, 3, (int64_t[]){1, 1, 1});
    bytes.len = 0;
    assert_int_equal(call_headers_encode(h, &bytes, NULL), SKEP_OK);
    assert_int_equal(call_headers_decode(out, bytes.data, bytes.len, &limits, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_contains(err.message, "3 dimensions, expected at most 2");
    bytes_free(&bytes);
    free(h);
    free(out);
}

/* The largest HEADERS there can be still fit a frame. */
static void largest_call_fits_a_frame(void **state)
{
    static uint8_t params[MESSAGE_MAX_PARAMS];
    struct call_headers *h = calloc(1, sizeof(*h));
    const int64_t shape[8] = {0, INT64_MAX, INT64_MAX, INT64_MAX,
                              0, INT64_MAX, INT64_MAX, INT64_MAX};
    struct bytes bytes = {0};

    (void)state;
    memset(h->method, 'm', MESSAGE_METHOD_BYTES - 1);
    memset(h->uid, 'u', MESSAGE_UID_BYTES - 1);
    h->timeout_ms = UINT64_MAX;
    h->has_request_id = true;
    h->params = (struct bytes){.data = params, .len = sizeof(params)};
    h->tensor_count = MESSAGE_MAX_TENSORS;
    for (size_t i = 0; i < MESSAGE_MAX_TENSORS; i++) {
        h->tensors[i].dtype = DTYPE_F32;
        h->tensors[i].ndim = 8;
        memcpy(h->tensors[i].shape, shape, sizeof(shape));
        h->tensors[i].wire_bytes = UINT64_MAX;
    }
    assert_int_equal(call_headers_encode(h, &bytes, NULL), SKEP_OK);
    assert_true(bytes.len <= FRAME_MAX_PAYLOAD);
    h->params.len++;
    assert_int_equal(call_headers_encode(h, &bytes, NULL), SKEP_INVALID_ARGUMENT);
    h->params.len--;
    h->tensor_count++;
    assert_int_equal(call_headers_encode(h, &bytes, NULL), SKEP_INVALID_ARGUMENT);
    bytes_free(&bytes);
    free(h);
}

/* A field that is no msgpack, or claims more than there is, at every length. */
static void truncation_at_every_byte_is_refused(void **state)
{
    struct call_headers *in = full_call(), *out = malloc(sizeof(*out));
    struct bytes bytes = {0};
    struct skep_error err;

    (void)state;
    assert_int_equal(call_headers_encode(in, &bytes, NULL), SKEP_OK);
    for (size_t len = 0; len < bytes.len; len++) {
        uint8_t *copy = malloc(len + 1); /* its end is the end: a sanitizer sees a read beyond */
        memcpy(copy, bytes.data, len);
        assert_int_equal(call_headers_decode(out, copy, len, &message_default_limits, &err),
                         SKEP_DATA_LOSS);
        free(copy);
    }
    assert_true(bytes_append(&bytes, "", 1)); /* and one byte too many */
    assert_int_equal(call_headers_decode(out, bytes.data, bytes.len, &message_default_limits, &err),
                     SKEP_DATA_LOSS);
    bytes_free(&bytes);
    free(in);
    free(out);
}

static void counts_beyond_the_bytes_are_refused(void **state)
{
    const uint8_t array[] = {0x82, 0xa6, 'm', 'e', 't', 'h', 'o',  'd', 0xa1, 'x', 0xa7, 't',
                             'e',  'n',  's', 'o', 'r', 's', 0xdd, 0,   0x10, 0,   0};
    struct call_headers *out = malloc(sizeof(*out));

    (void)state;
    assert_int_equal(call_headers_decode(out, array, sizeof(array), &message_default_limits, NULL),
                     SKEP_DATA_LOSS);
    free(out);
}

/* ---- Replies ---- */

static void reply_round_trips(void **state)
{
    struct reply_headers *in = calloc(1, sizeof(*in)), *out = malloc(sizeof(*out));
    uint8_t result[] = {0x93, 1, 2, 3};
    struct bytes bytes = {0};

    (void)state;
    in->status = SKEP_RESOURCE_EXHAUSTED;
    snprintf(in->message, sizeof(in->message), "%s", "pool ffn.1 is full: 64 tasks, at most 64");
    in->retry_after_ms = 1500;
    in->result = (struct bytes){.data = result, .len = sizeof(result)};
    in->tensor_count = 1;
    in->tensors[0] = descriptor(DTYPE_F32, 2, (int64_t[]){3, 3});
    assert_int_equal(reply_headers_encode(in, &bytes, NULL), SKEP_OK);
    for (size_t len = 0; len < bytes.len; len++)
        assert_int_equal(reply_headers_decode(out, bytes.data, len, &message_default_limits, NULL),
                         SKEP_DATA_LOSS);
    assert_int_equal(
        reply_headers_decode(out, bytes.data, bytes.len, &message_default_limits, NULL), SKEP_OK);
    assert_int_equal(out->status, SKEP_RESOURCE_EXHAUSTED);
    assert_string_equal(out->message, in->message);
    assert_int_equal(out->retry_after_ms, 1500);
    assert_int_equal(out->result.len, sizeof(result));
    assert_memory_equal(out->result.data, result, sizeof(result));
    assert_int_equal(out->tensor_count, 1);
    assert_same_tensors(in->tensors, out->tensors, 1);
    reply_headers_free(out);
    bytes_free(&bytes);
    free(in);
    free(out);
}

static skep_status as_reply(struct built *b, struct skep_error *err, struct reply_headers *out)
{
    skep_status rc = reply_headers_decode(out, (const uint8_t *)b->buffer.data, b->buffer.size,
                                          &message_default_limits, err);
    msgpack_sbuffer_destroy(&b->buffer);
    reply_headers_free(out);
    return rc;
}

static void wrong_fields_of_a_reply_are_named(void **state)
{
    static const char *const fields[] = {"message", "retry", "result", "tensors"};
    struct reply_headers *out = malloc(sizeof(*out));
    struct skep_error err;
    struct built b;

    (void)state;
    begin(&b, 0);
    assert_int_equal(as_reply(&b, &err, out), SKEP_DATA_LOSS);
    assert_contains(err.message, "status: missing");
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        begin(&b, 2);
        key(&b, "status");
        msgpack_pack_int(&b.pk, 0);
        key(&b, fields[i]);
        msgpack_pack_true(&b.pk);
        assert_int_equal(as_reply(&b, &err, out), SKEP_DATA_LOSS);
        assert_contains(err.message, fields[i]);
    }
    begin(&b, 2);
    key(&b, "status");
    msgpack_pack_int(&b.pk, 0);
    key(&b, "retry");
    msgpack_pack_uint64(&b.pk, UINT64_C(1) << 32);
    assert_int_equal(as_reply(&b, &err, out), SKEP_DATA_LOSS);
    assert_contains(err.message, "retry");
    begin(&b, 2); /* another implementation's status, and text with a line end */
    key(&b, "status");
    msgpack_pack_int(&b.pk, 99);
    key(&b, "message");
    mp_pack_str(&b.pk, "one\ntwo");
    assert_int_equal(as_reply(&b, &err, out), SKEP_OK);
    assert_int_equal(out->status, SKEP_INTERNAL);
    assert_string_equal(out->message, "one?two");
    free(out);
}

/* ---- Hello ---- */

static const struct hello sample = {
    .major = 1,
    .minor = 4,
    .agent = "skep/0.1.0",
    .peer_id = {1, 2, 3},
    .swarm = "digits",
    .features = UINT64_C(1) << 63 | 5,
    .stream_window = 1 << 22,
    .connection_window = UINT32_MAX,
    .max_streams = 77,
    .time_ms = 1800000000123,
};

static void hello_round_trips_and_needs_every_byte(void **state)
{
    struct bytes bytes = {0};
    struct hello out, zero = {0};

    (void)state;
    assert_int_equal(hello_encode(&sample, &bytes, NULL), SKEP_OK);
    for (size_t len = 0; len < bytes.len; len++) {
        memset(&out, 1, sizeof(out));
        assert_int_equal(hello_decode(&out, bytes.data, len, NULL), SKEP_DATA_LOSS);
        assert_memory_equal(&out, &zero, sizeof(out));
    }
    assert_int_equal(hello_decode(&out, bytes.data, bytes.len, NULL), SKEP_OK);
    assert_int_equal(out.minor, 4);
    assert_string_equal(out.agent, "skep/0.1.0");
    assert_string_equal(out.swarm, "digits");
    assert_memory_equal(out.peer_id, sample.peer_id, 32);
    assert_true(out.features == sample.features);
    assert_int_equal(out.stream_window, 1 << 22);
    assert_int_equal(out.connection_window, UINT32_MAX);
    assert_int_equal(out.max_streams, 77);
    assert_int_equal(out.time_ms, 1800000000123);
    bytes_free(&bytes);

    /* Who does not say the time is as good. */
    struct hello timeless = sample;
    timeless.time_ms = 0;
    assert_int_equal(hello_encode(&timeless, &bytes, NULL), SKEP_OK);
    assert_int_equal(hello_decode(&out, bytes.data, bytes.len, NULL), SKEP_OK);
    assert_int_equal(out.time_ms, 0);
    assert_int_equal(out.max_streams, 77);
    bytes_free(&bytes);
}

/* Repacks the sample without a field, or with nil for it. */
static skep_status hello_without(const char *field, bool nil, struct skep_error *err)
{
    struct bytes bytes = {0};
    struct mp mp;
    struct built b;
    struct hello out;

    assert_int_equal(hello_encode(&sample, &bytes, NULL), SKEP_OK);
    assert_int_equal(mp_parse(&mp, bytes.data, bytes.len, "test", NULL), SKEP_OK);
    begin(&b, mp.root->via.map.size - !nil);
    for (uint32_t i = 0; i < mp.root->via.map.size; i++) {
        const msgpack_object_kv *kv = &mp.root->via.map.ptr[i];
        bool it = kv->key.via.str.size == strlen(field) &&
                  memcmp(kv->key.via.str.ptr, field, strlen(field)) == 0;
        if (it && !nil)
            continue;
        msgpack_pack_object(&b.pk, kv->key);
        if (it)
            msgpack_pack_nil(&b.pk);
        else
            msgpack_pack_object(&b.pk, kv->val);
    }
    mp_free(&mp);
    bytes_free(&bytes);
    skep_status rc = hello_decode(&out, (const uint8_t *)b.buffer.data, b.buffer.size, err);
    msgpack_sbuffer_destroy(&b.buffer);
    return rc;
}

static void wrong_fields_of_a_hello_are_named(void **state)
{
    static const struct {
        const char *field;
        bool needed;
    } fields[] = {{"major", true},         {"minor", true},
                  {"agent", false},        {"peer", true},
                  {"swarm", false},        {"features", false},
                  {"stream_window", true}, {"connection_window", true},
                  {"max_streams", true}};
    struct skep_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        assert_int_equal(hello_without(fields[i].field, true, &err), SKEP_DATA_LOSS);
        assert_contains(err.message, fields[i].field);
        assert_int_equal(hello_without(fields[i].field, false, &err),
                         fields[i].needed ? SKEP_DATA_LOSS : SKEP_OK);
        assert_contains(err.message, fields[i].field);
    }
}

/* ---- Memory ---- */

static void every_allocation_may_fail(void **state)
{
    struct call_headers *h = full_call(), *out = malloc(sizeof(*out));
    struct hello hello;

    (void)state;
    for (long nth = 1;; nth++) {
        struct bytes bytes = {0};
        mem_fail_at(nth);
        skep_status rc = call_headers_encode(h, &bytes, NULL);
        if (rc == SKEP_OK)
            rc = call_headers_decode(out, bytes.data, bytes.len, &message_default_limits, NULL);
        if (rc == SKEP_OK)
            call_headers_free(out);
        else
            assert_int_equal(bytes.len == 0 || out->params.data == NULL, 1);
        bytes.len = 0;
        if (rc == SKEP_OK)
            rc = hello_encode(&sample, &bytes, NULL);
        if (rc == SKEP_OK)
            rc = hello_decode(&hello, bytes.data, bytes.len, NULL);
        bool pending = mem_fail_pending();
        mem_fail_at(0);
        bytes_free(&bytes);
        assert_int_equal(rc, pending ? SKEP_OK : SKEP_RESOURCE_EXHAUSTED);
        if (pending)
            break;
    }
    free(h);
    free(out);
}

static void failed_encoding_leaves_the_buffer_as_it_was(void **state)
{
    struct call_headers *h = full_call();
    struct bytes bytes = {0};

    (void)state;
    assert_true(bytes_append(&bytes, "before", 6));
    bytes.cap = 6; /* the next append must grow it */
    mem_fail_at(1);
    assert_int_equal(call_headers_encode(h, &bytes, NULL), SKEP_RESOURCE_EXHAUSTED);
    mem_fail_at(0);
    assert_int_equal(bytes.len, 6);
    bytes_free(&bytes);
    free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(call_round_trips),
        cmocka_unit_test(smallest_call_needs_a_method_only),
        cmocka_unit_test(unknown_fields_are_skipped),
        cmocka_unit_test(fields_of_a_wrong_type_are_named),
        cmocka_unit_test(fields_of_a_wrong_size_are_named),
        cmocka_unit_test(declared_bytes_must_be_those_of_the_shape),
        cmocka_unit_test(encodings_have_sizes_of_their_own),
        cmocka_unit_test(limits_count_decoded_bytes),
        cmocka_unit_test(wished_encodings_round_trip_and_unknown_ones_are_none),
        cmocka_unit_test(impossible_shapes_and_types_are_refused),
        cmocka_unit_test(tensors_of_a_wrong_form_are_refused),
        cmocka_unit_test(limits_hold_at_their_edge),
        cmocka_unit_test(largest_call_fits_a_frame),
        cmocka_unit_test(truncation_at_every_byte_is_refused),
        cmocka_unit_test(counts_beyond_the_bytes_are_refused),
        cmocka_unit_test(reply_round_trips),
        cmocka_unit_test(wrong_fields_of_a_reply_are_named),
        cmocka_unit_test(hello_round_trips_and_needs_every_byte),
        cmocka_unit_test(wrong_fields_of_a_hello_are_named),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(failed_encoding_leaves_the_buffer_as_it_was),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
