/*
 * Names to addresses (base/lookup.h), answered on a loop.
 */
#ifndef SKEP_NET_LOOP_LOOKUP_H
#define SKEP_NET_LOOP_LOOKUP_H

#include "base/lookup.h"
#include "net/loop.h"

struct loop_lookup;

/* On the loop's thread, once; the lookup is over then. @param answer  borrowed. */
typedef void (*loop_lookup_fn)(void *arg, const struct lookup_answer *answer);

/*
 * Starts asking. On the loop's thread; fn never runs inside this call.
 * @param out  for loop_lookup_end(); valid until fn runs. NULL on failure.
 * Everything else as lookup_start().
 */
SKEP_MUST_CHECK skep_status loop_lookup_start(struct loop *loop, const struct endpoint *name,
                                              bool foreign, loop_lookup_fn fn, void *arg,
                                              struct loop_lookup **out, struct skep_error *err);
/* Nobody wants the answer any more: fn does not run. Waits for nothing. On the loop's thread,
 * before fn has run. NULL is allowed. */
void loop_lookup_end(struct loop_lookup *lookup);

#endif
