/* skep bench moe: beam search, and what a mixture adds to the calls it makes. */
#include "bench/bench_moe.h"

#include "bench/bench.h"
#include "bench/bench_grid.h"
#include "cli/options.h"

static const struct option_spec specs[] = {
    {.name = "num-peers",
     .kind = OPTION_INT,
     .min = 4,
     .max = BENCH_NETWORK_MAX_PEERS,
     .default_text = "128",
     .help = "DHT peers of the network, 16 at most in a process"},
    {.name = "num-nodes",
     .kind = OPTION_INT,
     .min = 1,
     .max = BENCH_NETWORK_MAX_PEERS,
     .default_text = "8",
     .help = "how many of the peers publish experts, each a random share of the grid"},
    {.name = "grid-size",
     .kind = OPTION_INT,
     .min = 2,
     .max = BENCH_GRID_MAX_SIDE,
     .default_text = "16",
     .help = "coordinates of each of the grid's three dimensions: 16 makes 4,096 experts"},
    {.name = "num-batches",
     .kind = OPTION_INT,
     .min = 1,
     .max = 100000,
     .default_text = "100",
     .help = "watched searches a run, 64 samples each"},
    {.name = "num-searches",
     .kind = OPTION_INT,
     .min = 1,
     .max = 20,
     .default_text = "5",
     .help = "cold searches a run, each by a peer that has not asked for anything yet"},
    {.name = "num-passes",
     .kind = OPTION_INT,
     .min = 1,
     .max = 100000,
     .default_text = "200",
     .help = "forward passes a run, and as often the bare calls"},
    {.name = "runs",
     .kind = OPTION_INT,
     .min = 1,
     .max = BENCH_MOE_MAX_RUNS,
     .default_text = "5",
     .help = "measured runs of each case; medians are shown"},
    {.name = "json", .kind = OPTION_FLAG, .help = "print JSON for programs"},
};

static const struct option_table table = {
    .command = "bench moe",
    .summary = "Measures beam search over a grid of 16x16x16 experts in a network of DHT peers on "
               "loopback, under a watch (against a scan over all experts) and cold (against bare "
               "OpenDHT gets); then forward passes of a mixture over 16 nop experts in 4 node "
               "processes, against the bare calls.",
    .example = "skep bench moe\nskep bench moe --num-peers 32 --num-nodes 32 --json",
    .specs = specs,
    .count = OPTION_COUNT(specs),
};
const struct option_table *const bench_moe_options = &table;

void bench_moe_step(struct bench_moe *b, const char *what)
{
    progress_set(&b->progress, b->steps++, what);
}

int bench_moe(int argc, char **argv)
{
    struct options o;
    struct skep_error err = {0};
    int code;

    if (!options_begin(&o, &table, argc, argv, &code))
        return code;
    bool json = options_flag(&o, "json");
    struct bench_moe b = {
        .runs = (size_t)options_int(&o, "runs"),
        .peers = (size_t)options_int(&o, "num-peers"),
        .nodes = (size_t)options_int(&o, "num-nodes"),
        .side = (size_t)options_int(&o, "grid-size"),
        .batches = (size_t)options_int(&o, "num-batches"),
        .searches = (size_t)options_int(&o, "num-searches"),
        .passes = (size_t)options_int(&o, "num-passes"),
    };
    if (!options_given(&o, "num-nodes") && b.nodes > b.peers)
        b.nodes = b.peers;
    if (b.nodes > b.peers) {
        options_free(&o);
        return cli_usage_error(table.command, "--num-nodes %zu: expected at most --num-peers, %zu",
                               b.nodes, b.peers);
    }
    progress_start(&b.progress, table.command, 3 + 3 * b.runs, json, stderr);
    skep_status rc = bench_moe_search(&b, &err);
    if (rc == SKEP_OK)
        rc = bench_moe_calls(&b, &err);
    progress_end(&b.progress, NULL);
    code = bench_report_end(&b.report, json, table.command, rc, &err);
    options_free(&o);
    return code;
}
