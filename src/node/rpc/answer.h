/* Answering calls whose results are msgpack and nothing else. */
#ifndef SKEP_NODE_RPC_ANSWER_H
#define SKEP_NODE_RPC_ANSWER_H

#include <msgpack.h>
#include "net/server.h"

void answer_refuse(struct server_call *call, const struct skep_error *err);
/* @param buffer  what was packed; destroyed. @param bad  not 0: packing failed, for want of memory.
 */
void answer_packed(struct server_call *call, msgpack_sbuffer *buffer, int bad);

#endif
