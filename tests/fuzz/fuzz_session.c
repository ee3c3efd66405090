/*
 * A plaintext session fed with anything. The first byte chooses: bit 0 the role, bit 1 whether the
 * session gets past its handshake first (so that the rest is frames), the other bits the size of
 * the pieces. Each call must have exactly one end.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "net/session.h"
#include "wire/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INITIATOR = 1, GREETED = 2 };

static struct identity identity;
static struct session *session;
static int open_calls;
static unsigned complete_calls;

static skep_status on_started(void *arg, struct session_stream *stream,
                              const struct call_headers *headers, void **user,
                              struct skep_error *err)
{
    (void)arg, (void)stream, (void)user, (void)err;
    if (strcmp(headers->method, "no") == 0)
        return SKEP_NOT_FOUND;
    open_calls++;
    return SKEP_OK;
}

static void on_complete(void *arg, struct session_stream *stream,
                        const struct call_headers *headers, DLManagedTensor **tensors, void *user)
{
    static struct reply_headers reply;

    (void)arg, (void)user;
    if (complete_calls++ % 3 == 2) { /* never answered */
        for (size_t i = 0; i < headers->tensor_count; i++)
            skep_tensor_free(tensors[i]);
        return;
    }
    reply.tensor_count = headers->tensor_count;
    memcpy(reply.tensors, headers->tensors, headers->tensor_count * sizeof(reply.tensors[0]));
    session_reply(session, stream, &reply, tensors);
}

static void on_end(void *arg, struct session_stream *stream, void *user)
{
    (void)arg, (void)stream, (void)user;
    open_calls--;
}

static void on_done(void *arg, struct session_stream *stream, void *user,
                    const struct reply_headers *reply, DLManagedTensor **tensors, bool sent,
                    const struct skep_error *err)
{
    (void)arg, (void)stream, (void)user, (void)sent, (void)err;
    open_calls--;
    for (size_t i = 0; reply != NULL && i < reply->tensor_count; i++)
        skep_tensor_free(tensors[i]);
}

static const struct session_events events = {.call_started = on_started,
                                             .call_complete = on_complete,
                                             .call_gone = on_end,
                                             .call_answered = on_end,
                                             .call_done = on_done};

static bool feed(const uint8_t *data, size_t size, size_t piece)
{
    static uint8_t out[70000];
    struct skep_error err;

    while (size > 0) {
        uint8_t *to;
        size_t cap;
        session_receive_buffer(session, &to, &cap);
        size_t n = size < piece ? size : piece;
        n = n < cap ? n : cap;
        memcpy(to, data, n);
        data += n;
        size -= n;
        if (session_received(session, n, 1000, &err) != SKEP_OK)
            return false;
        while (session_send(session, out, sizeof(out), 1000) > 0)
            ;
    }
    return true;
}

/* What the other side would say until it is READY. */
static bool greet(bool initiator)
{
    struct hello hello = {.major = PROTOCOL_MAJOR,
                          .peer_id = {1},
                          .swarm = "fuzz",
                          .stream_window = 100000,
                          .connection_window = 200000,
                          .max_streams = 10};
    struct preamble preamble = {.major = PROTOCOL_MAJOR, .mode = PREAMBLE_PLAINTEXT};
    struct bytes bytes = {0}, payload = {0};
    uint8_t head[PREAMBLE_BYTES + 2] = {0}, length[2], ready[FRAME_HEADER_BYTES];

    preamble_encode(head, &preamble);
    frame_header_encode(ready, 0, FRAME_READY, 0);
    if (hello_encode(&hello, &payload, NULL) != SKEP_OK)
        abort();
    store_u16(length, (uint16_t)payload.len);
    if (!initiator)
        bytes_append(&bytes, head, sizeof(head)); /* with an empty message 1 */
    bytes_append(&bytes, length, sizeof(length));
    bytes_append(&bytes, payload.data, payload.len);
    if (initiator)
        bytes_append(&bytes, ready, sizeof(ready));
    bool ok = feed(bytes.data, bytes.len, SIZE_MAX);
    bytes_free(&bytes);
    bytes_free(&payload);
    return ok && session_peer(session) != NULL;
}

static void start_call(const DLTensor *tensor)
{
    static struct call_headers headers = {.method = "forward", .uid = "f.1", .tensor_count = 1};
    struct session_stream *stream;

    if (tensor_descriptor_of(&headers.tensors[0], tensor, NULL) == SKEP_OK &&
        session_call(session, &headers, &tensor, NULL, &stream, NULL) == SKEP_OK)
        open_calls++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t elements[300];
    int64_t shape[] = {sizeof(elements)};
    const DLTensor tensor = {.data = elements,
                             .device = {.device_type = kDLCPU},
                             .ndim = 1,
                             .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
                             .shape = shape};
    uint8_t seed[32] = {9};
    struct session_limits limits = session_default_limits;

    if (size < 1)
        return 0;
    if (identity_system_init(NULL) != SKEP_OK ||
        identity_from_seed(&identity, seed, NULL) != SKEP_OK)
        abort();
    bool initiator = (data[0] & INITIATOR) != 0;
    limits.message.max_message_bytes = 1 << 20;
    limits.stream_window = 20000;
    limits.connection_window = 30000;
    limits.max_streams = 8;
    struct session_config config = {.initiator = initiator,
                                    .identity = &identity,
                                    .plaintext = true,
                                    .cipher = NOISE_CHACHAPOLY,
                                    .swarm = "fuzz",
                                    .limits = &limits};
    if (session_new(&config, &events, NULL, 1, &session, NULL) != SKEP_OK)
        return 0;
    open_calls = 0;
    complete_calls = 0;
    if ((data[0] & GREETED) != 0 && !greet(initiator))
        abort();
    for (int i = 0; initiator && i < 3; i++)
        start_call(&tensor);
    (void)feed(data + 1, size - 1, (size_t)(data[0] >> 2) * 37 + 1);
    session_free(session, NULL);
    if (open_calls != 0)
        abort();
    return 0;
}
