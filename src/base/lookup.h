/*
 * Names to addresses, without anybody waiting for the system's resolver, which may take half a
 * minute and cannot be interrupted: each name is asked for on a thread of its own ("skep-lookup"),
 * which is left behind when nobody wants its answer any more, and then frees what is its own.
 */
#ifndef SKEP_BASE_LOOKUP_H
#define SKEP_BASE_LOOKUP_H

#include <stdbool.h>
#include <stddef.h>
#include <skep/status.h>
#include "base/endpoint.h"

struct lookup;

enum {
    LOOKUP_MAX_ADDRESSES = 16, /* of one name */
    LOOKUP_MAX_THREADS = 96,   /* of the process, those left behind included */
    LOOKUP_MAX_FOREIGN = 64,   /* asking at all, for a foreign name to be asked for too */
};

struct lookup_answer {
    skep_status status; /* as endpoint_resolve() */
    struct skep_error err;
    size_t count;
    struct address addresses[LOOKUP_MAX_ADDRESSES];
};

/* On the lookup's thread, once; it must not call lookup_end(). @param result  borrowed. */
typedef void (*lookup_fn)(void *arg, const struct lookup_answer *result);

/*
 * Starts asking; returns at once.
 * @param foreign  a stranger chose the name, who may have chosen one that nobody answers: it cannot
 *                 take the threads that are kept for the names of our own user.
 * @param out      owned: lookup_end(). NULL on failure, and then fn never runs.
 * @return SKEP_RESOURCE_EXHAUSTED if memory is short, the system gives no thread, or
 *         LOOKUP_MAX_THREADS (LOOKUP_MAX_FOREIGN) are still asking.
 */
SKEP_MUST_CHECK skep_status lookup_start(const struct endpoint *name, bool foreign, lookup_fn fn,
                                         void *arg, struct lookup **out, struct skep_error *err);
/*
 * Ends it, before or after its answer, without waiting for the resolver: fn does not run any more,
 * nor does it still, when this returns.
 * @return whether fn has run.
 */
bool lookup_end(struct lookup *lookup);

#endif
