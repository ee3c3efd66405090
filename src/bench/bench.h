/* The benchmarks of `skep bench NAME`: each a command of its own, argv[0] being its name, with a
 * table of options. */
#ifndef SKEP_BENCH_BENCH_H
#define SKEP_BENCH_BENCH_H

struct option_table;

/* X(function, "name", "summary") */
#define CLI_BENCHES(X)                                                                             \
    X(bench_codecs, "codecs", "tensor compression: speed of each scheme, both ways")               \
    X(bench_dht, "dht", "lookups in a network of DHT peers, also with some of them killed")        \
    X(bench_experts, "experts", "forward, backward and optimizer against the bare oneDNN calls")   \
    X(bench_fairness, "fairness", "small calls while others stream large ones to another expert")  \
    X(bench_moe, "moe", "beam search over a grid of experts, and mixtures of experts")             \
    X(bench_rpc, "rpc", "calls over the wire: latency, rate and throughput; start-up and memory")  \
    X(bench_throughput, "throughput", "a node under the load of many clients")                     \
    X(bench_tracker, "tracker", "a tracker under load: rate, latency, memory")

#define BENCH_DECLARE(function, name, summary)                                                     \
    int function(int argc, char **argv);                                                           \
    extern const struct option_table *const function##_options;
CLI_BENCHES(BENCH_DECLARE)
#undef BENCH_DECLARE

#endif
