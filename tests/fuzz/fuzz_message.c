/* HEADERS of calls and replies, and hellos. What decodes must survive encoding and decoding. */
#undef NDEBUG /* here assertions are the test */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "wire/frame.h"
#include "wire/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct message_limits limits = {
    .max_message_bytes = 1 << 30, .max_tensors = 64, .max_dims = 8};

static void try_call(const uint8_t *data, size_t size)
{
    static struct call_headers first, second;
    struct bytes bytes = {0};

    if (call_headers_decode(&first, data, size, &limits, NULL) != SKEP_OK)
        return;
    if (call_headers_encode(&first, &bytes, NULL) != SKEP_OK ||
        call_headers_decode(&second, bytes.data, bytes.len, &limits, NULL) != SKEP_OK)
        abort();
    assert(bytes.len <= FRAME_MAX_PAYLOAD);
    assert(strcmp(first.method, second.method) == 0 && strcmp(first.uid, second.uid) == 0);
    assert(first.timeout_ms == second.timeout_ms && first.tensor_count == second.tensor_count);
    assert(first.params.len == second.params.len);
    call_headers_free(&first);
    call_headers_free(&second);
    bytes_free(&bytes);
}

static void try_reply(const uint8_t *data, size_t size)
{
    static struct reply_headers first, second;
    struct bytes bytes = {0};

    if (reply_headers_decode(&first, data, size, &limits, NULL) != SKEP_OK)
        return;
    if (reply_headers_encode(&first, &bytes, NULL) != SKEP_OK ||
        reply_headers_decode(&second, bytes.data, bytes.len, &limits, NULL) != SKEP_OK)
        abort();
    assert(first.status == second.status && strcmp(first.message, second.message) == 0);
    assert(first.tensor_count == second.tensor_count);
    reply_headers_free(&first);
    reply_headers_free(&second);
    bytes_free(&bytes);
}

static void try_hello(const uint8_t *data, size_t size)
{
    struct hello first, second;
    struct bytes bytes = {0};

    if (hello_decode(&first, data, size, NULL) != SKEP_OK)
        return;
    if (hello_encode(&first, &bytes, NULL) != SKEP_OK ||
        hello_decode(&second, bytes.data, bytes.len, NULL) != SKEP_OK)
        abort();
    assert(strcmp(first.swarm, second.swarm) == 0 && first.max_streams == second.max_streams);
    bytes_free(&bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_call(data, size);
    try_reply(data, size);
    try_hello(data, size);
    return 0;
}
