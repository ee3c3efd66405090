/*
 * Threads for work that would hold an I/O loop for longer than a millisecond: encoding and decoding
 * large tensors, looking at all their numbers.
 *
 * One thread takes whatever comes first; another takes small jobs only, so that those never wait
 * for a large one. Threads: any thread posts; jobs run on these threads with no lock held.
 */
#ifndef SKEP_NET_OFFLOAD_H
#define SKEP_NET_OFFLOAD_H

#include <stddef.h>
#include <skep/status.h>

struct offload;

/* Embedded in whatever is posted, so that posting allocates nothing and cannot fail. */
struct offload_job {
    void (*run)(struct offload_job *job);
    size_t bytes;             /* of the tensors it works on */
    struct offload_job *next; /* the offload's */
};

enum {
    /* A loop decodes so much itself, and looks at its numbers: that takes some 0.1 ms at most. */
    OFFLOAD_FROM_BYTES = 256 << 10,
    OFFLOAD_SMALL_BYTES = 4 << 20, /* jobs of at most so many bytes are small */
};

/* @param out  owned: offload_free(). @return SKEP_RESOURCE_EXHAUSTED if a thread cannot start. */
SKEP_MUST_CHECK skep_status offload_new(struct offload **out, struct skep_error *err);
/* Runs a job soon. The job is borrowed until it runs. */
void offload_post(struct offload *offload, struct offload_job *job);
/* Gives a block back to the system soon (base/block_cache.h). Allocates nothing and cannot fail.
 * @param offload  struct offload. @param block  taken; at least BLOCK_CACHE_SLOW bytes. */
void offload_give_back(void *offload, void *block, size_t capacity);
/* Waits until no job is posted or running. */
void offload_drain(struct offload *offload);
/* Runs all jobs that were posted, ends the threads, frees. NULL is allowed. */
void offload_free(struct offload *offload);

#endif
