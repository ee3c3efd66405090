/*
 * What `skep bench` compares its figures with, measured on the same machine in the same run: the
 * bytes of a call over plain TCP, and the bytes of a call through the cipher.
 */
#ifndef SKEP_BENCH_BENCH_BASELINE_H
#define SKEP_BENCH_BENCH_BASELINE_H

#include <stddef.h>
#include <skep/status.h>
#include "bench/bench_stats.h"
#include "crypto/noise.h"

enum { BENCH_BASELINE_MAX_BYTES = 1 << 30 };

/*
 * A raw TCP echo: `bytes` there and the same number back over 127.0.0.1, one exchange at a time,
 * with a process of its own at the far end, which answers once it has all of them, as a server must
 * that computes with them. Blocking sockets, TCP_NODELAY, the system's buffer sizes.
 *
 * @param bytes    1 to BENCH_BASELINE_MAX_BYTES.
 * @param warmup   exchanges that are not counted.
 * @param samples  gets `rounds` samples: ns from the first byte sent to the last received.
 * @return SKEP_INVALID_ARGUMENT; SKEP_RESOURCE_EXHAUSTED; SKEP_DEADLINE_EXCEEDED if the far end
 * does not move for 10 s; SKEP_UNAVAILABLE if it went away. The far end is gone on return. Thread:
 * any; forks, and the child makes system calls only.
 */
SKEP_MUST_CHECK skep_status bench_tcp_echo(size_t bytes, size_t warmup, size_t rounds,
                                           struct bench_samples *samples, struct skep_error *err);

/*
 * The cipher's share of such an exchange, in one thread: `bytes` encrypted and decrypted, and once
 * more for the way back, in place, in messages of at most NOISE_MAX_MESSAGE bytes.
 *
 * @param samples  gets `rounds` samples: ns an exchange.
 * @return SKEP_INVALID_ARGUMENT; SKEP_RESOURCE_EXHAUSTED; SKEP_UNIMPLEMENTED if this CPU lacks the
 *         cipher; SKEP_INTERNAL if a message does not come out as it went in.
 */
SKEP_MUST_CHECK skep_status bench_cipher_echo(enum noise_cipher cipher, size_t bytes, size_t warmup,
                                              size_t rounds, struct bench_samples *samples,
                                              struct skep_error *err);

#endif
