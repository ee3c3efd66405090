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
    size_t count = 0;

    if (!endpoint_to_address(&tracker, &at))
        abort();
    skep_status rc = tracker_peers_parse((const char *)data, size, 77, &at, out, 8, &count, NULL);
    if ((rc == SKEP_OK) != (count > 0) || count > 8)
        abort();
    for (size_t i = 0; i < count; i++) {
        endpoint_from_address(&e, (const struct sockaddr *)&out[i].sa);
        if (!endpoint_is_usable(&e) || endpoint_is_loopback(&e))
            abort();
    }
    return 0;
}
