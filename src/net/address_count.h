/*
 * How many connections each remote IP address has, so that one address cannot take them all.
 * The port does not count; an IPv4 address and its v4-mapped IPv6 form are one. All IPv6 addresses
 * of one /64 count as one: that is what a single customer gets, to choose addresses from at will.
 * Thread: any.
 */
#ifndef SKEP_NET_ADDRESS_COUNT_H
#define SKEP_NET_ADDRESS_COUNT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <skep/status.h>

struct address_count;

/* @param max_connections  in all: bounds the table's size. @param out owned: _free(). */
SKEP_MUST_CHECK skep_status address_count_new(unsigned max_connections, unsigned max_per_address,
                                              struct address_count **out, struct skep_error *err);
void address_count_free(struct address_count *table); /* NULL is allowed */
/* Counts one more connection. False, and not counted, if the address (or the table) is full.
 * Loopback always fits and is not counted. */
bool address_count_add(struct address_count *table, const struct sockaddr *sa);
/* Whether both are counted as one address. False for what is not counted. */
bool address_count_same(const struct sockaddr *a, const struct sockaddr *b);
/* Takes back one successful address_count_add(). */
void address_count_remove(struct address_count *table, const struct sockaddr *sa);

#endif
