/* HEADERS and hello as msgpack maps. Keys and their order: docs/protocol.md, "Messages". */
#include "wire/message.h"

#include <inttypes.h>
#include <stdio.h>
#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/mp.h"
#include "base/tensor.h"
#include "wire/frame.h"
#include "wire/tensor_codec.h"

const struct message_limits message_default_limits = {
    .max_message_bytes = UINT64_C(1) << 30,
    .max_tensors = MESSAGE_MAX_TENSORS,
    .max_dims = SKEP_TENSOR_MAX_DIMS,
};

/* A descriptor takes at most 4 + 1 + 9 * dims + 1 + 9 bytes, and the rest of a call's map less than
 * 500 beside params: so HEADERS always fit one frame, whatever the fields hold. */
_Static_assert(MESSAGE_MAX_PARAMS + MESSAGE_MAX_TENSORS * (15 + 9 * SKEP_TENSOR_MAX_DIMS) +
                       SKEP_ERROR_MESSAGE_BYTES + 500 <
                   FRAME_MAX_PAYLOAD,
               "HEADERS outgrow a frame");

/* ---- Packing ---- */

struct sink {
    struct bytes *out;
    bool failed; /* an append failed: what was packed so far is useless */
};

static int sink_write(void *arg, const char *data, size_t len)
{
    struct sink *sink = arg;

    if (!sink->failed)
        sink->failed = !bytes_append(sink->out, data, len);
    return sink->failed ? -1 : 0;
}

static void pack_key_u64(msgpack_packer *pk, const char *key, uint64_t value)
{
    mp_pack_str(pk, key);
    msgpack_pack_uint64(pk, value);
}

static void pack_key_str(msgpack_packer *pk, const char *key, const char *value)
{
    mp_pack_str(pk, key);
    mp_pack_str(pk, value);
}

static void pack_key_bin(msgpack_packer *pk, const char *key, const void *data, size_t len)
{
    mp_pack_str(pk, key);
    mp_pack_bin(pk, data, len);
}

/* [dtype, [dimensions], encoding, bytes] for each tensor. */
static void pack_tensors(msgpack_packer *pk, const struct tensor_descriptor *tensors, size_t count)
{
    mp_pack_str(pk, "tensors");
    msgpack_pack_array(pk, count);
    for (size_t i = 0; i < count; i++) {
        const struct tensor_descriptor *t = &tensors[i];
        msgpack_pack_array(pk, 4);
        mp_pack_str(pk, skep_dtype_name(t->dtype));
        msgpack_pack_array(pk, (size_t)t->ndim);
        for (int d = 0; d < t->ndim; d++)
            msgpack_pack_int64(pk, t->shape[d]);
        msgpack_pack_unsigned_int(pk, (unsigned)t->encoding);
        msgpack_pack_uint64(pk, t->wire_bytes);
    }
}

/* What a receiver would refuse is not packed in the first place. */
static skep_status check_outgoing(const char *what, const struct tensor_descriptor *tensors,
                                  size_t count, const struct bytes *blob, struct skep_error *err)
{
    if (count > MESSAGE_MAX_TENSORS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %zu tensors, expected at most %d", what,
                         count, MESSAGE_MAX_TENSORS);
    if (blob->len > MESSAGE_MAX_PARAMS)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%s: %zu bytes of parameters, expected at most %d", what, blob->len,
                         MESSAGE_MAX_PARAMS);
    for (size_t i = 0; i < count; i++) {
        if (skep_dtype_name(tensors[i].dtype) == NULL)
            return error_set(err, SKEP_INVALID_ARGUMENT, "%s: tensor %zu: unknown element type",
                             what, i);
        if (tensors[i].ndim < 0 || tensors[i].ndim > SKEP_TENSOR_MAX_DIMS)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "%s: tensor %zu: %d dimensions, expected 0 to %d", what, i,
                             tensors[i].ndim, SKEP_TENSOR_MAX_DIMS);
    }
    return SKEP_OK;
}

/* Ends a packing: cuts `out` back if it failed. */
static skep_status pack_result(const struct sink *sink, size_t old_len, const char *what,
                               struct skep_error *err)
{
    if (!sink->failed)
        return SKEP_OK;
    size_t wanted = sink->out->len - old_len;
    sink->out->len = old_len;
    return error_no_memory(err, what, wanted);
}

skep_status call_headers_encode(const struct call_headers *headers, struct bytes *out,
                                struct skep_error *err)
{
    struct sink sink = {.out = out};
    size_t old_len = out->len;
    msgpack_packer pk;
    skep_status rc =
        check_outgoing("call", headers->tensors, headers->tensor_count, &headers->params, err);

    if (rc != SKEP_OK)
        return rc;
    if (headers->method[0] == '\0')
        return error_set(err, SKEP_INVALID_ARGUMENT, "call: method: empty");
    msgpack_packer_init(&pk, &sink, sink_write);
    msgpack_pack_map(&pk, 2u + (headers->uid[0] != '\0') + headers->has_request_id +
                              headers->has_reply_encoding + (headers->params.len > 0) +
                              (headers->tensor_count > 0));
    /* First and of fixed width, so that call_headers_set_timeout() finds it. */
    mp_pack_str(&pk, "timeout");
    msgpack_pack_fix_uint64(&pk, headers->timeout_ms);
    pack_key_str(&pk, "method", headers->method);
    if (headers->uid[0] != '\0')
        pack_key_str(&pk, "uid", headers->uid);
    if (headers->has_request_id)
        pack_key_bin(&pk, "id", headers->request_id, sizeof(headers->request_id));
    if (headers->has_reply_encoding)
        pack_key_u64(&pk, "reply_encoding", (uint64_t)headers->reply_encoding);
    if (headers->params.len > 0)
        pack_key_bin(&pk, "params", headers->params.data, headers->params.len);
    if (headers->tensor_count > 0)
        pack_tensors(&pk, headers->tensors, headers->tensor_count);
    return pack_result(&sink, old_len, "call", err);
}

void call_headers_set_timeout(uint8_t *encoded, uint64_t timeout_ms)
{
    enum { VALUE = 1 + 8 + 1 }; /* behind the map's tag, the key and the value's tag */

    for (int i = 0; i < 8; i++)
        encoded[VALUE + i] = (uint8_t)(timeout_ms >> 8 * (7 - i));
}

skep_status reply_headers_encode(const struct reply_headers *headers, struct bytes *out,
                                 struct skep_error *err)
{
    struct sink sink = {.out = out};
    size_t old_len = out->len;
    msgpack_packer pk;
    skep_status rc =
        check_outgoing("reply", headers->tensors, headers->tensor_count, &headers->result, err);

    if (rc != SKEP_OK)
        return rc;
    msgpack_packer_init(&pk, &sink, sink_write);
    msgpack_pack_map(&pk, 1u + (headers->message[0] != '\0') + (headers->retry_after_ms != 0) +
                              (headers->result.len > 0) + (headers->tensor_count > 0));
    pack_key_u64(&pk, "status", (uint64_t)headers->status);
    if (headers->message[0] != '\0')
        pack_key_str(&pk, "message", headers->message);
    if (headers->retry_after_ms != 0)
        pack_key_u64(&pk, "retry", headers->retry_after_ms);
    if (headers->result.len > 0)
        pack_key_bin(&pk, "result", headers->result.data, headers->result.len);
    if (headers->tensor_count > 0)
        pack_tensors(&pk, headers->tensors, headers->tensor_count);
    return pack_result(&sink, old_len, "reply", err);
}

skep_status hello_encode(const struct hello *hello, struct bytes *out, struct skep_error *err)
{
    struct sink sink = {.out = out};
    size_t old_len = out->len;
    msgpack_packer pk;

    msgpack_packer_init(&pk, &sink, sink_write);
    msgpack_pack_map(&pk, hello->time_ms != 0 ? 10 : 9);
    pack_key_u64(&pk, "major", hello->major);
    pack_key_u64(&pk, "minor", hello->minor);
    pack_key_str(&pk, "agent", hello->agent);
    pack_key_bin(&pk, "peer", hello->peer_id, sizeof(hello->peer_id));
    pack_key_str(&pk, "swarm", hello->swarm);
    pack_key_u64(&pk, "features", hello->features);
    pack_key_u64(&pk, "stream_window", hello->stream_window);
    pack_key_u64(&pk, "connection_window", hello->connection_window);
    pack_key_u64(&pk, "max_streams", hello->max_streams);
    if (hello->time_ms != 0)
        pack_key_u64(&pk, "time", hello->time_ms);
    return pack_result(&sink, old_len, "hello", err);
}

/* ---- Reading ---- */

static skep_status bad_field(struct skep_error *err, const char *what, const char *key,
                             const msgpack_object *value, const char *expected)
{
    if (value == NULL)
        return error_set(err, SKEP_DATA_LOSS, "%s: %s: missing, expected %s", what, key, expected);
    return error_set(err, SKEP_DATA_LOSS, "%s: %s: wrong type or size, expected %s", what, key,
                     expected);
}

static skep_status read_map(struct mp *mp, const uint8_t *data, size_t len, const char *what,
                            struct skep_error *err)
{
    skep_status rc = mp_parse(mp, data, len, what, err);

    if (rc == SKEP_OK && mp->root->type != MSGPACK_OBJECT_MAP)
        rc = error_set(err, SKEP_DATA_LOSS, "%s: not a map", what);
    return rc;
}

/* An unsigned number that may be absent (0 then). */
static skep_status read_optional_u64(const msgpack_object *map, const char *what, const char *key,
                                     uint64_t max, uint64_t *out, struct skep_error *err)
{
    const msgpack_object *value = mp_get(map, key);
    uint64_t seen = 0;

    if (value != NULL && (!mp_u64(value, &seen) || seen > max))
        return bad_field(err, what, key, value, "an unsigned number in range");
    *out = seen;
    return SKEP_OK;
}

/* A string that may be absent ("" then). */
static skep_status read_optional_str(const msgpack_object *map, const char *what, const char *key,
                                     char *out, size_t cap, struct skep_error *err)
{
    const msgpack_object *value = mp_get(map, key);

    out[0] = '\0';
    if (value != NULL && !mp_str(value, out, cap))
        return error_set(err, SKEP_DATA_LOSS,
                         "%s: %s: wrong type or size, expected a string of at most %zu bytes", what,
                         key, cap - 1);
    return SKEP_OK;
}

/* msgpack of the method's own, that may be absent. *out is owned by the caller also on failure. */
static skep_status read_blob(const msgpack_object *map, const char *what, const char *key,
                             struct bytes *out, struct skep_error *err)
{
    const msgpack_object *value = mp_get(map, key);
    const uint8_t *data;
    size_t len;

    if (value == NULL)
        return SKEP_OK;
    if (!mp_bin(value, &data, &len))
        return bad_field(err, what, key, value, "bytes");
    if (len > MESSAGE_MAX_PARAMS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %s: %zu bytes, expected at most %d", what,
                         key, len, MESSAGE_MAX_PARAMS);
    if (!bytes_append(out, data, len))
        return error_no_memory(err, what, len);
    return SKEP_OK;
}

static skep_status read_shape(struct tensor_descriptor *t, const msgpack_object *value,
                              const char *what, const struct message_limits *limits,
                              struct skep_error *err)
{
    const msgpack_object *dims;
    size_t count;

    if (!mp_array(value, &dims, &count))
        return bad_field(err, what, "shape", value, "an array");
    if (count > limits->max_dims || count > SKEP_TENSOR_MAX_DIMS)
        return error_set(
            err, SKEP_INVALID_ARGUMENT, "%s: %zu dimensions, expected at most %u", what, count,
            limits->max_dims < SKEP_TENSOR_MAX_DIMS ? limits->max_dims : SKEP_TENSOR_MAX_DIMS);
    for (size_t i = 0; i < count; i++)
        if (!mp_i64(&dims[i], &t->shape[i]) || t->shape[i] < 0)
            return error_set(err, SKEP_DATA_LOSS,
                             "%s: dimension %zu: expected a number from 0 to 2^63 - 1", what, i);
    t->ndim = (int)count;
    return SKEP_OK;
}

static skep_status read_dtype(struct tensor_descriptor *t, const msgpack_object *value,
                              const char *what, struct skep_error *err)
{
    char name[16];

    if (!mp_str(value, name, sizeof(name)))
        return bad_field(err, what, "dtype", value, "a type's name such as \"F32\"");
    if (!skep_dtype_from_name(name, &t->dtype)) {
        char shown[sizeof(name)];
        text_from_wire(shown, sizeof(shown), (const uint8_t *)name, strlen(name));
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: unknown element type \"%s\"", what,
                         shown);
    }
    return SKEP_OK;
}

static skep_status read_encoding(struct tensor_descriptor *t, const msgpack_object *value,
                                 const char *what, const struct message_limits *limits,
                                 struct skep_error *err)
{
    uint64_t number;

    if (!mp_u64(value, &number))
        return bad_field(err, what, "encoding", value, "a number");
    if (number >= ENCODING_COUNT)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: encoding %" PRIu64 ", expected 0 to %d",
                         what, number, ENCODING_COUNT - 1);
    if ((limits->refused_encodings >> number & 1) != 0)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: encoding %" PRIu64 " is not taken here",
                         what, number);
    t->encoding = (enum tensor_encoding)number;
    if (t->encoding != ENCODING_NONE && !dtype_equal(t->dtype, DTYPE_F32))
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %s in encoding %s, which is for F32 only",
                         what, skep_dtype_name(t->dtype), tensor_encoding_name(t->encoding));
    return SKEP_OK;
}

/* The declared bytes must be those of shape, type and encoding, and the shape one that memory can
 * hold: nothing downstream checks again. */
static skep_status read_wire_bytes(struct tensor_descriptor *t, const msgpack_object *bytes,
                                   const char *what, struct skep_error *err)
{
    uint64_t decoded, expected;

    if (!mp_u64(bytes, &t->wire_bytes))
        return bad_field(err, what, "bytes", bytes, "a number");
    if (!tensor_encoded_bytes(ENCODING_NONE, t->dtype, t->ndim, t->shape, &decoded) ||
        !tensor_encoded_bytes(t->encoding, t->dtype, t->ndim, t->shape, &expected))
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: shape with too many elements", what);
    if (t->wire_bytes != expected) {
        DLTensor view = {.ndim = t->ndim, .dtype = t->dtype, .shape = t->shape};
        char text[256];
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%s: %" PRIu64 " bytes, expected %" PRIu64 " for %s%s%s", what,
                         t->wire_bytes, expected, tensor_describe(&view, text, sizeof(text)),
                         t->encoding != ENCODING_NONE ? " as " : "",
                         t->encoding != ENCODING_NONE ? tensor_encoding_name(t->encoding) : "");
    }
    return SKEP_OK;
}

static skep_status read_tensor(struct tensor_descriptor *t, const msgpack_object *value,
                               const char *what, const struct message_limits *limits,
                               struct skep_error *err)
{
    const msgpack_object *items;
    size_t count;
    skep_status rc;

    if (!mp_array(value, &items, &count) || count < 4)
        return error_set(err, SKEP_DATA_LOSS,
                         "%s: expected an array of type, shape, encoding and bytes", what);
    rc = read_dtype(t, &items[0], what, err);
    if (rc == SKEP_OK)
        rc = read_shape(t, &items[1], what, limits, err);
    if (rc == SKEP_OK)
        rc = read_encoding(t, &items[2], what, limits, err);
    if (rc == SKEP_OK)
        rc = read_wire_bytes(t, &items[3], what, err);
    return rc;
}

static skep_status read_tensors(const msgpack_object *map, const char *what,
                                struct tensor_descriptor *tensors, size_t *out_count,
                                const struct message_limits *limits, struct skep_error *err)
{
    const msgpack_object *value = mp_get(map, "tensors");
    const msgpack_object *items = NULL;
    size_t count = 0;
    uint64_t total = 0;
    size_t max =
        limits->max_tensors < MESSAGE_MAX_TENSORS ? limits->max_tensors : MESSAGE_MAX_TENSORS;

    if (value != NULL && !mp_array(value, &items, &count))
        return bad_field(err, what, "tensors", value, "an array");
    if (count > max)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %zu tensors, expected at most %zu", what,
                         count, max);
    for (size_t i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof(name), "%s: tensor %zu", what, i);
        skep_status rc = read_tensor(&tensors[i], &items[i], name, limits, err);
        if (rc != SKEP_OK)
            return rc;
        uint64_t memory = tensor_descriptor_memory(&tensors[i]);
        if (memory > limits->max_message_bytes - total)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "%s: more than %" PRIu64 " bytes of tensors (max_message_bytes)", what,
                             limits->max_message_bytes);
        total += memory;
    }
    *out_count = count;
    return SKEP_OK;
}

/* A wish: an encoding that we do not know cannot be fulfilled, which is no reason to refuse. */
static skep_status read_reply_encoding(struct call_headers *out, const msgpack_object *map,
                                       struct skep_error *err)
{
    const msgpack_object *value = mp_get(map, "reply_encoding");
    uint64_t number = 0;

    out->has_reply_encoding = value != NULL;
    if (value != NULL && !mp_u64(value, &number))
        return bad_field(err, "call", "reply_encoding", value, "a number");
    out->reply_encoding = number < ENCODING_COUNT ? (enum tensor_encoding)number : ENCODING_NONE;
    return SKEP_OK;
}

static skep_status read_call(struct call_headers *out, const msgpack_object *map,
                             const struct message_limits *limits, struct skep_error *err)
{
    const msgpack_object *method = mp_get(map, "method");
    const msgpack_object *id = mp_get(map, "id");
    skep_status rc;

    if (!mp_str(method, out->method, sizeof(out->method)) || out->method[0] == '\0')
        return bad_field(err, "call", "method", method, "a string of 1 to 31 bytes");
    out->has_request_id = id != NULL;
    if (id != NULL && !mp_bin_exact(id, out->request_id, sizeof(out->request_id)))
        return bad_field(err, "call", "id", id, "16 bytes");
    rc = read_optional_str(map, "call", "uid", out->uid, sizeof(out->uid), err);
    if (rc == SKEP_OK)
        rc = read_optional_u64(map, "call", "timeout", UINT64_MAX, &out->timeout_ms, err);
    if (rc == SKEP_OK)
        rc = read_reply_encoding(out, map, err);
    if (rc == SKEP_OK)
        rc = read_blob(map, "call", "params", &out->params, err);
    if (rc == SKEP_OK)
        rc = read_tensors(map, "call", out->tensors, &out->tensor_count, limits, err);
    return rc;
}

skep_status call_headers_decode(struct call_headers *out, const uint8_t *data, size_t len,
                                const struct message_limits *limits, struct skep_error *err)
{
    struct mp mp = {0};
    /* Only what is read on failure is cleared up front: the array of descriptors is 5 KB. */
    out->params = (struct bytes){0};
    out->tensor_count = 0;
    skep_status rc = read_map(&mp, data, len, "call", err);

    if (rc == SKEP_OK)
        rc = read_call(out, mp.root, limits, err);
    if (rc != SKEP_OK) {
        bytes_free(&out->params);
        memset(out, 0, sizeof(*out));
    }
    mp_free(&mp);
    return rc;
}

static skep_status read_reply(struct reply_headers *out, const msgpack_object *map,
                              const struct message_limits *limits, struct skep_error *err)
{
    const msgpack_object *status = mp_get(map, "status");
    const msgpack_object *message = mp_get(map, "message");
    uint64_t number;
    skep_status rc;

    if (!mp_u64(status, &number))
        return bad_field(err, "reply", "status", status, "a number");
    out->status = status_from_wire(number);
    out->message[0] = '\0';
    if (message != NULL) {
        if (message->type != MSGPACK_OBJECT_STR)
            return bad_field(err, "reply", "message", message, "a string");
        text_from_wire(out->message, sizeof(out->message), (const uint8_t *)message->via.str.ptr,
                       message->via.str.size);
    }
    rc = read_optional_u64(map, "reply", "retry", UINT32_MAX, &number, err);
    out->retry_after_ms = (uint32_t)number;
    if (rc == SKEP_OK)
        rc = read_blob(map, "reply", "result", &out->result, err);
    if (rc == SKEP_OK)
        rc = read_tensors(map, "reply", out->tensors, &out->tensor_count, limits, err);
    return rc;
}

skep_status reply_headers_decode(struct reply_headers *out, const uint8_t *data, size_t len,
                                 const struct message_limits *limits, struct skep_error *err)
{
    struct mp mp = {0};
    out->result = (struct bytes){0};
    out->tensor_count = 0;
    skep_status rc = read_map(&mp, data, len, "reply", err);

    if (rc == SKEP_OK)
        rc = read_reply(out, mp.root, limits, err);
    if (rc != SKEP_OK) {
        bytes_free(&out->result);
        memset(out, 0, sizeof(*out));
    }
    mp_free(&mp);
    return rc;
}

static skep_status read_needed_u32(const msgpack_object *map, const char *key, uint32_t *out,
                                   struct skep_error *err)
{
    const msgpack_object *value = mp_get(map, key);
    uint64_t number;

    if (!mp_u64(value, &number) || number > UINT32_MAX)
        return bad_field(err, "hello", key, value, "a number from 0 to 2^32 - 1");
    *out = (uint32_t)number;
    return SKEP_OK;
}

static skep_status read_hello(struct hello *out, const msgpack_object *map, struct skep_error *err)
{
    const msgpack_object *peer = mp_get(map, "peer");
    const msgpack_object *agent = mp_get(map, "agent");
    const struct {
        const char *key;
        uint32_t *value;
    } numbers[] = {
        {"major", &out->major},
        {"minor", &out->minor},
        {"stream_window", &out->stream_window},
        {"connection_window", &out->connection_window},
        {"max_streams", &out->max_streams},
    };

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        skep_status rc = read_needed_u32(map, numbers[i].key, numbers[i].value, err);
        if (rc != SKEP_OK)
            return rc;
    }
    if (!mp_bin_exact(peer, out->peer_id, sizeof(out->peer_id)))
        return bad_field(err, "hello", "peer", peer, "32 bytes");
    if (agent != NULL) {
        if (agent->type != MSGPACK_OBJECT_STR)
            return bad_field(err, "hello", "agent", agent, "a string");
        text_from_wire(out->agent, sizeof(out->agent), (const uint8_t *)agent->via.str.ptr,
                       agent->via.str.size);
    }
    skep_status rc = read_optional_str(map, "hello", "swarm", out->swarm, sizeof(out->swarm), err);
    if (rc == SKEP_OK)
        rc = read_optional_u64(map, "hello", "features", UINT64_MAX, &out->features, err);
    if (rc == SKEP_OK)
        rc = read_optional_u64(map, "hello", "time", UINT64_MAX, &out->time_ms, err);
    return rc;
}

skep_status hello_decode(struct hello *out, const uint8_t *data, size_t len, struct skep_error *err)
{
    struct mp mp = {0};
    struct hello hello = {0};
    skep_status rc = read_map(&mp, data, len, "hello", err);

    if (rc == SKEP_OK)
        rc = read_hello(&hello, mp.root, err);
    mp_free(&mp);
    *out = rc == SKEP_OK ? hello : (struct hello){0};
    return rc;
}

/* ---- The structures ---- */

bool call_headers_copy(struct call_headers *out, const struct call_headers *from)
{
    memcpy(out, from,
           offsetof(struct call_headers, tensors) + from->tensor_count * sizeof(from->tensors[0]));
    out->params = (struct bytes){0};
    return from->params.len == 0 || bytes_append(&out->params, from->params.data, from->params.len);
}

void call_headers_free(struct call_headers *headers)
{
    if (headers != NULL)
        bytes_free(&headers->params);
}

void reply_headers_free(struct reply_headers *headers)
{
    if (headers != NULL)
        bytes_free(&headers->result);
}

skep_status tensor_descriptor_of(struct tensor_descriptor *out, const DLTensor *t,
                                 struct skep_error *err)
{
    size_t bytes;
    skep_status rc = skep_tensor_bytes(t, &bytes, err);

    if (rc != SKEP_OK)
        return rc;
    out->dtype = t->dtype;
    out->ndim = t->ndim;
    for (int i = 0; i < t->ndim; i++)
        out->shape[i] = t->shape[i];
    out->encoding = ENCODING_NONE;
    out->wire_bytes = bytes;
    return SKEP_OK;
}

uint64_t tensor_descriptor_memory(const struct tensor_descriptor *descriptor)
{
    uint64_t decoded = descriptor->wire_bytes;

    /* It fits: the descriptor was checked, or describes a tensor that exists. */
    if (descriptor->encoding != ENCODING_NONE)
        (void)tensor_encoded_bytes(ENCODING_NONE, descriptor->dtype, descriptor->ndim,
                                   descriptor->shape, &decoded);
    return decoded > descriptor->wire_bytes ? decoded : descriptor->wire_bytes;
}
