/* skep bench: runs skep-bench, a program of its own, with the same arguments. */
#include <errno.h>
#include <limits.h>
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

/* Returns only if there is no such program in the folder of this one. */
static void run_beside(char **argv)
{
    char path[PATH_MAX + sizeof(program)];
    ssize_t len = readlink("/proc/self/exe", path, PATH_MAX);
    char *slash;

    if (len <= 0 || len == PATH_MAX)
        return;
    path[len] = '\0';
    slash = strrchr(path, '/');
    if (slash == NULL)
        return;
    memcpy(slash + 1, program, sizeof(program));
    execv(path, argv);
}

int cmd_bench(int argc, char **argv)
{
    (void)argc;
    fflush(NULL);
    run_beside(argv);
    execvp(program, argv);
    fprintf(stderr,
            "skep bench: cannot run %s, which holds the benchmarks: %s\n"
            "Install it beside skep, or in a folder of PATH.\n",
            program, strerror(errno));
    return CLI_FAILED;
}
