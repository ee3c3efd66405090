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
    SHOWN_MAX_BYTES = 8192,
    SHOWN_MAX_VALUES = 1 << 17, /* of all keys */
};

struct shown;

/* @return owned: shown_free(); NULL if memory is short. */
struct shown *shown_new(void);
void shown_free(struct shown *shown); /* NULL is allowed */

/*
 * Whether a value that is stored now is to be shown; notes it if so. A value that is shown and
 * comes again, maybe with another length, is shown again if it fits.
 * @param now_s  any clock that does not go back.
 * @return false also if memory is short or SHOWN_MAX_VALUES are shown.
 */
bool shown_add(struct shown *shown, const uint8_t key[static RECORD_KEY_BYTES], uint64_t value_id,
               size_t len, uint64_t now_s, uint32_t lifetime_s);

/* Values that are shown, also those that have ended and not been swept up yet. */
size_t shown_count(const struct shown *shown);

#endif
