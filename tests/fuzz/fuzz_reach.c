/* What strangers answer to a reachability check: a peer's dial_back, and a datagram to the DHT's
 * ping. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "dht/opendht/udp_ping.h"
#include "node/reach/reach_ask.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reach_answer answer = {0};
    struct address address;

    if (reach_read_answer(data, size, &answer, NULL) == SKEP_OK &&
        (!endpoint_to_address(&answer.dialled, &address) || answer.dialled.port == 0 ||
         memchr(answer.message, '\0', sizeof(answer.message)) == NULL))
        abort();
    (void)udp_ping_is_answer(data, size, 7);
    return 0;
}
