/* See udp_ping.h. */
#include "dht/opendht/udp_ping.h"

#include <sodium.h>
#include <string.h>

#include "base/mp.h"
#include "dht/record/record.h"

struct packet {
    uint8_t *data;
    size_t len;
};

static int append(void *arg, const char *data, size_t len)
{
    struct packet *packet = arg;

    if (len > UDP_PING_MAX_BYTES - packet->len)
        return -1;
    memcpy(packet->data + packet->len, data, len);
    packet->len += len;
    return 0;
}

size_t udp_ping_write(uint32_t network_id, uint32_t id, uint8_t out[static UDP_PING_MAX_BYTES])
{
    struct packet packet = {.data = out};
    uint8_t sender[RECORD_KEY_BYTES]; /* nobody's: a ping needs one */
    msgpack_packer pk;

    randombytes_buf(sender, sizeof(sender));
    msgpack_packer_init(&pk, &packet, append);
    msgpack_pack_map(&pk, 7);
    mp_pack_str(&pk, "a");
    msgpack_pack_map(&pk, 1);
    mp_pack_str(&pk, "id");
    mp_pack_bin(&pk, sender, sizeof(sender));
    mp_pack_str(&pk, "q");
    mp_pack_str(&pk, "ping");
    mp_pack_str(&pk, "t");
    msgpack_pack_uint32(&pk, id);
    mp_pack_str(&pk, "y");
    mp_pack_str(&pk, "q");
    mp_pack_str(&pk, "v");
    mp_pack_str(&pk, "SKEP");
    mp_pack_str(&pk, "n");
    msgpack_pack_uint32(&pk, network_id);
    mp_pack_str(&pk, "s"); /* a client */
    msgpack_pack_true(&pk);
    return packet.len;
}

bool udp_ping_is_answer(const uint8_t *data, size_t len, uint32_t id)
{
    struct mp mp = {0};
    uint64_t answered = 0;
    uint8_t peer[RECORD_KEY_BYTES];

    bool is = mp_parse(&mp, data, len, "datagram", NULL) == SKEP_OK &&
              mp_u64(mp_get(mp.root, "t"), &answered) && answered == id &&
              mp_bin_exact(mp_get(mp_get(mp.root, "r"), "id"), peer, sizeof(peer));
    mp_free(&mp);
    return is;
}
