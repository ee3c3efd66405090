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

/* How a tensor's elements travel. Others than NONE come with later protocol minors. */
enum tensor_encoding {
    ENCODING_NONE = 0,
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
    uint64_t max_message_bytes; /* all tensors of one call or reply together; default 1 GiB */
    unsigned max_tensors;       /* default 64 */
    unsigned max_dims;          /* default 8 */
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
};
enum { PROTOCOL_MAJOR = 1, PROTOCOL_MINOR = 0 };
SKEP_MUST_CHECK skep_status hello_encode(const struct hello *hello, struct bytes *out,
                                         struct skep_error *err);
SKEP_MUST_CHECK skep_status hello_decode(struct hello *out, const uint8_t *data, size_t len,
                                         struct skep_error *err);

#endif
