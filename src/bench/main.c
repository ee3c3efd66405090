/* The program `skep-bench`, which `skep bench` runs: dispatches to the benchmarks. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/bench_frame.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"
#include "dht/opendht/runner.h"

static const struct {
    const char *name, *summary;
    const struct bench_command *command;
} benches[] = {
#define BENCH_ROW(command, name, summary) {name, summary, &command},
    CLI_BENCHES(BENCH_ROW)
#undef BENCH_ROW
};
enum { BENCH_COUNT = sizeof(benches) / sizeof(benches[0]) };

static const struct option_table *const *const tables[] = {
#define BENCH_OPTIONS(command, name, summary) &command.options,
    CLI_BENCHES(BENCH_OPTIONS)
#undef BENCH_OPTIONS
};

static void print_help(FILE *out)
{
    fprintf(
        out,
        "Usage: skep bench NAME [OPTIONS]\n\nMeasures Skep on this machine, each figure with its "
        "baseline in the same run.\n\nExample:\n  skep bench rpc\n\nBenchmarks:\n");
    for (int i = 0; i < BENCH_COUNT; i++)
        fprintf(out, "  %-12s%s\n", benches[i].name, benches[i].summary);
    fprintf(out, "\nskep bench NAME --help shows the options of a benchmark.\n");
}

/* @param argv  argv[0] is the program's name, or "help" before the name of a benchmark. */
static int run_bench(int argc, char **argv)
{
    const char *names[BENCH_COUNT];

    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    bool is_help = cli_asks_for_help(argv[1]);
    if (is_help || cli_asks_for_version(argv[1])) {
        char option[] = "--help";
        char *arguments[] = {argv[0], argc > 2 ? argv[2] : NULL, option, NULL};
        if (is_help && argc == 3 && argv[2][0] != '-') /* skep bench help rpc */
            return run_bench(3, arguments);
        if (argc > 2)
            return cli_usage_error("bench", "\"%s\": unexpected argument after %s", argv[2],
                                   argv[1]);
        if (!is_help)
            return cli_print_version();
        print_help(stdout);
        return CLI_DONE;
    }
    for (int i = 0; i < BENCH_COUNT; i++) {
        names[i] = benches[i].name;
        if (strcmp(argv[1], benches[i].name) == 0)
            return bench_run(benches[i].command, argc - 1, argv + 1);
    }
    const char *near = options_nearest(argv[1], names, BENCH_COUNT);
    return cli_usage_error("bench", "no benchmark \"%s\"%s%s%s", argv[1],
                           near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                           near != NULL ? "\"?" : "");
}

int main(int argc, char **argv)
{
    cli_fill_standard_descriptors();
    runner_own_process();
    cli_add_option_tables(tables, OPTION_COUNT(tables));
    return cli_exit(output_end(run_bench(argc, argv)));
}
