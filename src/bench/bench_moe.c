/* skep bench moe: beam search, and what a mixture adds to the calls it makes. */
#include "bench/bench_moe.h"

#include "bench/bench.h"
#include "bench/bench_grid.h"

static const struct option_spec specs[] = {
    BENCH_OPTION_PEERS(BENCH_NETWORK_MAX_PEERS),
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
    BENCH_OPTION_RUNS(BENCH_MOE_MAX_RUNS, "5", "measured runs of each case; medians are shown"),
    BENCH_OPTION_JSON,
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

/* How many nodes there are; by default no more than peers. */
static size_t nodes_of(const struct options *o)
{
    size_t nodes = (size_t)options_int(o, "num-nodes"), peers = (size_t)options_int(o, "num-peers");

    return !options_given(o, "num-nodes") && nodes > peers ? peers : nodes;
}

static int check_nodes(struct options *o)
{
    size_t peers = (size_t)options_int(o, "num-peers");

    if (nodes_of(o) <= peers)
        return CLI_DONE;
    return cli_usage_error(table.command, "--num-nodes %zu: expected at most --num-peers, %zu",
                           nodes_of(o), peers);
}

static skep_status measure_moe(struct bench_frame *frame, const struct options *o,
                               struct skep_error *err)
{
    struct bench_moe b = {
        .frame = frame,
        .peers = (size_t)options_int(o, "num-peers"),
        .nodes = nodes_of(o),
        .side = (size_t)options_int(o, "grid-size"),
        .batches = (size_t)options_int(o, "num-batches"),
        .searches = (size_t)options_int(o, "num-searches"),
        .passes = (size_t)options_int(o, "num-passes"),
    };

    bench_frame_expect(frame, 3 + 3 * frame->runs);
    skep_status rc = bench_moe_search(&b, err);
    return rc == SKEP_OK ? bench_moe_calls(&b, err) : rc;
}

const struct bench_command bench_moe = {
    .options = &table, .check = check_nodes, .measure = measure_moe};
