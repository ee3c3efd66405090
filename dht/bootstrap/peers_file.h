/*
 * The file of known DHT peers: one `host:port` a line, numeric addresses, `#` starts a comment.
 * Written whole or not at all, mode 0600. Thread: any, one at a time per file.
 */
#ifndef SKEP_DHT_BOOTSTRAP_PEERS_FILE_H
#define SKEP_DHT_BOOTSTRAP_PEERS_FILE_H

#include <stddef.h>
#include <skep/status.h>
#include "base/endpoint.h"

enum {
    PEERS_FILE_MAX = 64,          /* addresses kept */
    PEERS_FILE_MAX_BYTES = 65536, /* a longer file is read up to here */
};

/*
 * Reads at most `cap` addresses. A missing file has none. Lines that are not an address, and the
 * last one of a saved file that was cut off, are left out with a warning that names the file and
 * the first such line; so is an empty file. A damaged file never keeps a node from starting.
 * @return how many were written.
 */
size_t peers_file_load(const char *path, struct address *out, size_t cap);

/* Errors name the path: SKEP_PERMISSION_DENIED, SKEP_RESOURCE_EXHAUSTED, SKEP_NOT_FOUND (no such
 * folder), SKEP_INTERNAL; the old file is unchanged then. */
SKEP_MUST_CHECK skep_status peers_file_save(const char *path, const struct address *addresses,
                                            size_t count, struct skep_error *err);

#endif
