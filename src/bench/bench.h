/* The benchmarks of `skep bench NAME`: each a struct bench_command (bench_frame.h). */
#ifndef SKEP_BENCH_BENCH_H
#define SKEP_BENCH_BENCH_H

struct bench_command;

/* X(command, "name", "summary") */
#define CLI_BENCHES(X)                                                                             \
    X(bench_codecs, "codecs", "tensor compression: speed of each scheme, both ways")               \
    X(bench_dht, "dht", "lookups in a network of DHT peers, also with some of them killed")        \
    X(bench_experts, "experts", "forward, backward and optimizer against the bare oneDNN calls")   \
    X(bench_fairness, "fairness", "small calls while others stream large ones to another expert")  \
    X(bench_moe, "moe", "beam search over a grid of experts, and mixtures of experts")             \
    X(bench_rpc, "rpc", "calls over the wire: latency, rate and throughput; start-up and memory")  \
    X(bench_throughput, "throughput", "a node under the load of many clients")                     \
    X(bench_tracker, "tracker", "a tracker under load: rate, latency, memory")

#define BENCH_DECLARE(command, name, summary) extern const struct bench_command command;
CLI_BENCHES(BENCH_DECLARE)
#undef BENCH_DECLARE

#endif
