/*
 * OpenDHT's ping, for those who only want to know whether a DHT port can be reached: one datagram
 * there, one back. It says that it comes from a client, so that whoever answers does not take the
 * sender for a peer of the DHT. No sockets, no state.
 */
#ifndef SKEP_DHT_OPENDHT_UDP_PING_H
#define SKEP_DHT_OPENDHT_UDP_PING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UDP_PING_MAX_BYTES = 96 };

/* @param id  names the answer. @return the length. */
size_t udp_ping_write(uint32_t network_id, uint32_t id, uint8_t out[static UDP_PING_MAX_BYTES]);
/* Whether a datagram answers the ping of that id. */
bool udp_ping_is_answer(const uint8_t *data, size_t len, uint32_t id);

#endif
