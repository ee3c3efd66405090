/*
 * msgpack from strangers. msgpack-c reserves memory from the counts a message declares, so each
 * message is first walked over by mp_check(), which allows no more elements than there are bytes;
 * then msgpack-c parses it into a zone. Reading is by type-checked accessors.
 */
#ifndef SKEP_BASE_MP_H
#define SKEP_BASE_MP_H

#include <msgpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

enum { MP_MAX_DEPTH = 16 }; /* msgpack-c's own stack holds 32 */

/* Whether data is exactly one well-formed msgpack object, no deeper than MP_MAX_DEPTH, whose
 * declared counts and lengths fit in the bytes that are there. Allocates nothing. */
bool mp_check(const uint8_t *data, size_t len);

struct mp {
    msgpack_unpacked unpacked;  /* owned: mp_free() */
    const msgpack_object *root; /* view of this; strings and bins are views of `data` */
};
/* Parses exactly one object. @param data borrowed until mp_free().
 * @return SKEP_DATA_LOSS naming `what` if it is not one whole well-formed object. */
SKEP_MUST_CHECK skep_status mp_parse(struct mp *out, const uint8_t *data, size_t len,
                                     const char *what, struct skep_error *err);
void mp_free(struct mp *mp); /* NULL and zeroed are allowed */

/* The value under a string key of a map; NULL if absent or if `map` is no map. The first wins. */
const msgpack_object *mp_get(const msgpack_object *map, const char *key);
/* Each is false, and leaves its output alone, if o is NULL or of another type or range. */
bool mp_u64(const msgpack_object *o, uint64_t *out);
bool mp_i64(const msgpack_object *o, int64_t *out);
bool mp_f64(const msgpack_object *o, double *out); /* floats and integers */
bool mp_bool(const msgpack_object *o, bool *out);
/* A string without NUL that fits cap with its terminator, copied. */
bool mp_str(const msgpack_object *o, char *out, size_t cap);
bool mp_bin(const msgpack_object *o, const uint8_t **data, size_t *len);
/* A bin of exactly len bytes, copied. */
bool mp_bin_exact(const msgpack_object *o, uint8_t *out, size_t len);
bool mp_array(const msgpack_object *o, const msgpack_object **items, size_t *count);

/* Packing into an sbuffer; false if memory is short is sticky in msgpack-c's return values, so
 * these return the packer's 0 / -1. */
int mp_pack_str(msgpack_packer *pk, const char *text);
int mp_pack_bin(msgpack_packer *pk, const void *data, size_t len);

#endif
