/* skep bench: runs skep-bench, a program of its own, with the same arguments. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"

static const char program[] = "skep-bench";

/* None of its own: each benchmark has some. */
static const struct option_table table = {.command = "bench"};
const struct option_table *const cmd_bench_options = &table;

int cmd_bench(int argc, char **argv)
{
    (void)argc;
    fflush(NULL);
    cli_run_beside(program, argv, environ);
    execvp(program, argv);
    fprintf(stderr,
            "skep bench: cannot run %s, which holds the benchmarks: %s\n"
            "Install it beside skep, or in a folder of PATH.\n",
            program, strerror(errno));
    return CLI_FAILED;
}
