/*
 * Loops spread over cores, on the threads that oneDNN computes with: Debian's oneDNN runs on GNU
 * OpenMP, and a second set of threads beside it would fight it for the cores while OpenMP's still
 * spin.
 *
 * The environment is GNU OpenMP's, read when the process starts: OMP_NUM_THREADS (default: the CPUs
 * the process may use) is the number of threads. After each loop they spin for some milliseconds
 * before they sleep, so where other threads or processes want the same cores, OMP_WAIT_POLICY or
 * GOMP_SPINCOUNT should be set; a preempted spinner otherwise costs whole time slices.
 *
 * GNU OpenMP keeps one set of worker threads for each thread that starts loops, so large experts
 * are best run from one thread. Small work never starts any.
 */
#ifndef SKEP_EXPERTS_PARALLEL_H
#define SKEP_EXPERTS_PARALLEL_H

#include <stddef.h>

enum { PARALLEL_MAX_PARTS = 256 };

/* Works on [first, last). `part` tells the ranges of one loop apart, counted from 0. */
typedef void (*parallel_fn)(void *arg, size_t first, size_t last, unsigned part);

/* Into how many ranges parallel_range() would cut `count` items now: at least 1, none of them
 * smaller than `grain` items. Depends on the number of threads only, never on their load. */
unsigned parallel_parts(size_t count, size_t grain);

/*
 * Cuts [0, count) into parallel_parts() ranges whose borders are multiples of `align` items, and
 * calls fn once for each, on several threads at once. Returns when all are done.
 */
void parallel_range(size_t count, size_t grain, size_t align, parallel_fn fn, void *arg);

/* Lets the calling thread's oneDNN calls and loops use one thread only, and back: a fork costs more
 * than small work. Returns what to hand to parallel_restore(). */
int parallel_single(void);
void parallel_restore(int threads);

#endif
