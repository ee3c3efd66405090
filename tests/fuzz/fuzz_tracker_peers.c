/* A tracker's answer to the question for DHT peers: only usable numeric addresses may come out. */
#include <stdint.h>
#include <stdlib.h>

#include "dht/bootstrap/tracker_peers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct endpoint tracker = {.host = "192.0.2.9", .port = 9190};
    struct address at, out[8];
    struct endpoint e;
    struct tracker_peers peers = {.addresses = out, .cap = 8};
    const struct tracker_text answer = {.data = (const char *)data, .len = size};

    if (!endpoint_to_address(&tracker, &at))
        abort();
    skep_status rc = tracker_peers_parse(answer, 77, &at, &peers, NULL);
    if ((rc == SKEP_OK) != (peers.count > 0) || peers.count > 8)
        abort();
    for (size_t i = 0; i < peers.count; i++) {
        endpoint_from_address(&e, (const struct sockaddr *)&out[i].sa);
        if (!endpoint_is_usable(&e) || endpoint_is_loopback(&e))
            abort();
    }
    return 0;
}
