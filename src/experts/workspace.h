/*
 * Memory for the length of one forward or backward pass: activations and gradients. Taken for each
 * call and handed back, so that all experts of a process share what the few calls that run at once
 * need. A few pieces are kept between calls, because fresh memory costs a page fault every 4 KB;
 * pieces much larger than what is asked for lately are given back to the system.
 *
 * Thread: any.
 */
#ifndef SKEP_EXPERTS_WORKSPACE_H
#define SKEP_EXPERTS_WORKSPACE_H

#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

struct workspace {
    uint8_t *data; /* aligned to 64 bytes; contents are unspecified */
    size_t cap;
    size_t used; /* by workspace_cut() */
};

/* @param out  owned: workspace_give(). Zeroed on failure (SKEP_RESOURCE_EXHAUSTED). */
SKEP_MUST_CHECK skep_status workspace_take(size_t bytes, struct workspace *out,
                                           struct skep_error *err);
void workspace_give(struct workspace *ws); /* zeroed is allowed */

/* Gives all idle memory back to the system. */
void workspace_trim(void);
size_t workspace_idle_bytes(void);

/*
 * Cuts `count` floats, aligned to 64 bytes, off the front. With data NULL it only counts in
 * `used`, and returns NULL, so that one function both measures and lays out. Running over `cap` is
 * a broken promise of our own code: asserted.
 */
float *workspace_cut(struct workspace *ws, size_t count);

/* Memory for large arrays that live longer: on huge pages where the system allows it.
 * NULL if memory is short. Not initialized. Owned: mem_free(). */
float *floats_new(size_t count);
/* The same, zeroed; memory that is never written costs nothing. */
float *floats_new_zeroed(size_t count);

#endif
