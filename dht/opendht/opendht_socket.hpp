/* The socket that OpenDHT sends through: C++, for opendht_ext.cpp only. See opendht_socket.cpp. */
#ifndef SKEP_DHT_OPENDHT_OPENDHT_SOCKET_HPP
#define SKEP_DHT_OPENDHT_OPENDHT_SOCKET_HPP

#include <memory>

#include <opendht.h>

#include "dht/opendht/opendht_ext.h"

/* Bound to these; counts and marks as the config says. Throws what OpenDHT's own throws. */
std::unique_ptr<dht::net::DatagramSocket> opendht_socket_new(const dht::SockAddr &bind4,
                                                             const dht::SockAddr &bind6,
                                                             const opendht_ext_config &config);

#endif
