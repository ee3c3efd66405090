/*
 * Loops spread over cores, on the threads that oneDNN computes with: Debian's oneDNN runs on GNU
 * OpenMP, and a second set of threads beside it would fight it for the cores while OpenMP's still
 * spin.
 *
 * Each thread that starts loops has a team: itself and threads of GNU OpenMP's that serve it alone.
 * A team has as many threads as the process may use CPUs (cpu_count.h), or as OMP_NUM_THREADS says
 * where the environment sets it, or as parallel_team_make() was given. The sum of all teams may
 * exceed the CPUs; GNU OpenMP then spins for a short time only.
 *
 * After each loop a team spins for some milliseconds before it sleeps. Where other threads or
 * processes want the same cores, OMP_WAIT_POLICY or GOMP_SPINCOUNT should be set; a preempted
 * spinner otherwise costs whole time slices.
 *
 * GNU OpenMP ends the process when the system refuses it a thread. So threads are probed for before
 * a team is made, and teams are checked between batches.
 */
#ifndef SKEP_EXPERTS_PARALLEL_H
#define SKEP_EXPERTS_PARALLEL_H

#include <stddef.h>
#include <skep/status.h>

enum { PARALLEL_MAX_PARTS = 256 };

/* The threads of a team for which nothing else was said. Thread: any. */
unsigned parallel_default(void);

/*
 * Makes the calling thread's team: `threads` in all, which exist when this returns.
 * @return SKEP_RESOURCE_EXHAUSTED if the system refuses them; the thread then computes alone.
 */
SKEP_MUST_CHECK skep_status parallel_team_make(unsigned threads, struct skep_error *err);

/* Makes sure, before a batch, that the team is whole, and goes on with fewer threads while the
 * system refuses more. Cheap. Returns how many there are. Not inside a loop. */
unsigned parallel_team_check(void);

/* Gives the calling thread its default team, unless it has one: before calls of oneDNN's that may
 * use several threads. The loops below do so themselves. */
void parallel_prepare(void);

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
 * than small work. Returns what to hand to parallel_restore(), for which 0 means "nothing". */
int parallel_single(void);
void parallel_restore(int token);

#endif
