/*
 * Expert UIDs and prefixes: the one strict rule (DESIGN.md section 1, golden cases in
 * tests/golden/uids). A UID is `name.i.j...`; a prefix is a UID cut after some coordinate, ending
 * with a dot. Coordinates are non-negative decimal integers without leading zeros that fit 63 bits.
 */
#ifndef SKEP_DHT_RECORD_UID_H
#define SKEP_DHT_RECORD_UID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

enum {
    UID_BYTES = 256,      /* longest UID or prefix, with NUL; longer ones are refused */
    UID_MAX_COORDS = 127, /* what fits UID_BYTES: "n" and as many ".0" */
};

struct uid {
    char text[UID_BYTES];
    size_t name_len;
    size_t coord_count;
    int64_t coords[UID_MAX_COORDS];
    size_t prefix_len[UID_MAX_COORDS]; /* prefix i is the first prefix_len[i] characters: prefix 0
                                          is "name.", prefix i has i coordinates */
};

/* SKEP_INVALID_ARGUMENT quoting the text and the part that is wrong. */
SKEP_MUST_CHECK skep_status uid_parse(struct uid *out, const char *text, struct skep_error *err);
bool uid_is_valid(const char *text, size_t len);
bool uid_prefix_is_valid(const char *text, size_t len);

/* A pattern of a grid: `name.[a:b].[c:d]`, `name.3.[0:8]`: half-open ranges, or fixed coordinates.
 */
struct uid_pattern {
    char name[UID_BYTES];
    size_t dims;
    struct {
        int64_t first, end;
    } range[UID_MAX_COORDS];
};
SKEP_MUST_CHECK skep_status uid_pattern_parse(struct uid_pattern *out, const char *text,
                                              struct skep_error *err);
/* Number of UIDs in the pattern, saturating at UINT64_MAX. */
uint64_t uid_pattern_count(const struct uid_pattern *pattern);
/* UID number i (i < count) in row-major order. */
void uid_pattern_at(const struct uid_pattern *pattern, uint64_t i, char out[static UID_BYTES]);
bool uid_pattern_has(const struct uid_pattern *pattern, const struct uid *uid);

#endif
