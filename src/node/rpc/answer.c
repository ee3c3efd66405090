/* See answer.h. */
#include "node/rpc/answer.h"

#include "base/error.h"

void answer_refuse(struct server_call *call, const struct skep_error *err)
{
    server_call_reply(call, err, NULL, 0, NULL, 0);
}

void answer_packed(struct server_call *call, msgpack_sbuffer *buffer, int bad)
{
    struct skep_error err;

    if (bad != 0) {
        error_no_memory(&err, "reply", buffer->size);
        answer_refuse(call, &err);
    } else {
        server_call_reply(call, NULL, (const uint8_t *)buffer->data, buffer->size, NULL, 0);
    }
    msgpack_sbuffer_destroy(buffer);
}
