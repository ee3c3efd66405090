/*
 * Which of the short values stored here are shown to queries (dht/opendht/opendht_ext.h): of each
 * key as many as fit in one answer. An estimate by what was accepted and how long its type lives;
 * nobody tells when OpenDHT drops a value or lets it live on.
 *
 * Thread: one at a time.
 */
#ifndef SKEP_DHT_RECORD_SERVED_VALUES_H
#define SKEP_DHT_RECORD_SERVED_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "dht/record/record.h"

enum {
    /* Content of the values shown of one key. In one datagram, whose fragments (six, with the usual
     * 1,500 bytes) must all arrive. */
    SERVED_VALUES_MAX_BYTES = 8192,
    SERVED_VALUES_MAX_VALUES = 1 << 17, /* of all keys */
};

struct served_values;

/* @return owned: served_values_free(); NULL if memory is short. */
struct served_values *served_values_new(void);
void served_values_free(struct served_values *served); /* NULL is allowed */

/*
 * Whether a value that is stored now is to be shown; notes it if so. A value that is shown and
 * comes again, maybe with another length, is shown again if it fits.
 * @param now_s  any clock that does not go back.
 * @return false also if memory is short or SERVED_VALUES_MAX_VALUES are shown.
 */
bool served_values_add(struct served_values *served, const uint8_t key[static RECORD_KEY_BYTES],
                       uint64_t value_id, size_t len, uint64_t now_s, uint32_t lifetime_s);

/* Values that are shown, also those that have ended and not been swept up yet. */
size_t served_values_count(const struct served_values *served);

#endif
