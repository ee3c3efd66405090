/*
 * Messages: what HEADERS frames and the hello carry, as structures and as msgpack.
 * Byte layout: docs/protocol.md. No sockets, no clocks.
 */
#ifndef SKEP_WIRE_MESSAGE_H
#define SKEP_WIRE_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include <skep/tensor.h>
#include "base/bytes.h"

enum {
    MESSAGE_METHOD_BYTES = 32, /* with NUL */
    MESSAGE_UID_BYTES = 256,   /* with NUL */
    MESSAGE_REQUEST_ID_BYTES = 16,
    MESSAGE_MAX_TENSORS = 64,   /* hard upper bound of the configurable limit */
    MESSAGE_MAX_PARAMS = 32768, /* bytes of msgpack in `params` */
};

/* How a tensor's elements travel: docs/protocol.md, "Encodings"; wire/tensor_codec.h does it. */
enum tensor_encoding {
    ENCODING_NONE = 0,
    ENCODING_FLOAT16 = 1,
    ENCODING_BFLOAT16 = 2,
    ENCODING_MEANSTD16 = 3,
    ENCODING_UNIFORM8 = 4,
    ENCODING_QUANTILE8 = 5,
    ENCODING_BLOCKWISE8 = 6,
    ENCODING_COUNT,
};

/* One tensor as announced in HEADERS; its bytes follow in DATA frames, in order. */
struct tensor_descriptor {
    DLDataType dtype;
    int ndim;
    int64_t shape[SKEP_TENSOR_MAX_DIMS];
    enum tensor_encoding encoding;
    uint64_t wire_bytes; /* how many bytes of DATA belong to it */
};

struct call_headers {
    char method[MESSAGE_METHOD_BYTES];
    char uid[MESSAGE_UID_BYTES]; /* "" if the method takes none */
    uint64_t timeout_ms;         /* left when it was sent; 0: none given */
    bool has_request_id;
    uint8_t request_id[MESSAGE_REQUEST_ID_BYTES];
    bool has_reply_encoding;
    enum tensor_encoding reply_encoding; /* in which the caller would have the reply's tensors */
    struct bytes params; /* msgpack of the method's own, may be empty. Owned: call_headers_free() */
    size_t tensor_count;
    struct tensor_descriptor tensors[MESSAGE_MAX_TENSORS];
};

struct reply_headers {
    skep_status status;
    char message[SKEP_ERROR_MESSAGE_BYTES]; /* for people; "" with SKEP_OK */
    uint32_t retry_after_ms;
    struct bytes result; /* msgpack of the method's own. Owned: reply_headers_free() */
    size_t tensor_count;
    struct tensor_descriptor tensors[MESSAGE_MAX_TENSORS];
};

/* What bounds a message; checked before anything is allocated. */
struct message_limits {
    /* All tensors of one call or reply together, encoded and decoded; default 1 GiB. */
    uint64_t max_message_bytes;
    unsigned max_tensors;       /* default 64 */
    unsigned max_dims;          /* default 8 */
    uint64_t refused_encodings; /* bit n: tensors in encoding n are not taken; default 0 */
};
extern const struct message_limits message_default_limits;

/*
 * Decoding: unknown map fields are skipped, missing ones that are needed and wrong types are
 * SKEP_DATA_LOSS naming the field; a limit passed is SKEP_INVALID_ARGUMENT (RESOURCE limits of a
 * peer are its caller's mistake), naming value and limit. On failure *out is zeroed.
 */
SKEP_MUST_CHECK skep_status call_headers_decode(struct call_headers *out, const uint8_t *data,
                                                size_t len, const struct message_limits *limits,
                                                struct skep_error *err);
/* Encoding appends to `out`; on failure `out` is as it was. Lengths and counts over the protocol's
 * own bounds are SKEP_INVALID_ARGUMENT. The result always fits one frame. */
SKEP_MUST_CHECK skep_status call_headers_encode(const struct call_headers *headers,
                                                struct bytes *out, struct skep_error *err);
/* Sets the timeout in a call that call_headers_encode() wrote, when it is about to leave. */
void call_headers_set_timeout(uint8_t *encoded, uint64_t timeout_ms);
SKEP_MUST_CHECK skep_status reply_headers_decode(struct reply_headers *out, const uint8_t *data,
                                                 size_t len, const struct message_limits *limits,
                                                 struct skep_error *err);
SKEP_MUST_CHECK skep_status reply_headers_encode(const struct reply_headers *headers,
                                                 struct bytes *out, struct skep_error *err);
/* Copies as many descriptors as there are; the rest of *out is not touched. False if memory is
 * short: *out holds no params then. */
bool call_headers_copy(struct call_headers *out, const struct call_headers *from);
void call_headers_free(struct call_headers *headers);
void reply_headers_free(struct reply_headers *headers);

/* Describes a tensor for sending. SKEP_INVALID_ARGUMENT as skep_tensor_bytes(). */
SKEP_MUST_CHECK skep_status tensor_descriptor_of(struct tensor_descriptor *out, const DLTensor *t,
                                                 struct skep_error *err);
/* The memory that a described tensor takes: as it travels or decoded, whichever is more. */
uint64_t tensor_descriptor_memory(const struct tensor_descriptor *descriptor);

/* The first message of each side, inside the handshake (msgpack map). */
struct hello {
    unsigned major; /* of the protocol; another major is refused by whoever notices */
    unsigned minor;
    char agent[64]; /* "skep/0.1.0" */
    uint8_t peer_id[32];
    char swarm[128];
    uint64_t features; /* bit set, docs/protocol.md */
    uint32_t stream_window;
    uint32_t connection_window;
    uint32_t max_streams;
    uint64_t time_ms; /* the sender's clock, ms since 1970; 0: not said */
};
enum { PROTOCOL_MAJOR = 1, PROTOCOL_MINOR = 1 };

/* Bit n of the features, from 1 on: the sender takes tensors in encoding n. */
static inline bool hello_takes_encoding(uint64_t features, enum tensor_encoding encoding)
{
    return encoding == ENCODING_NONE || (features >> encoding & 1) != 0;
}
#define PROTOCOL_FEATURES ((UINT64_C(1) << ENCODING_COUNT) - 2)

SKEP_MUST_CHECK skep_status hello_encode(const struct hello *hello, struct bytes *out,
                                         struct skep_error *err);
SKEP_MUST_CHECK skep_status hello_decode(struct hello *out, const uint8_t *data, size_t len,
                                         struct skep_error *err);

#endif
