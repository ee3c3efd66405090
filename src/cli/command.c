/* `skep` without a subcommand: the list of commands, the help, the version. */
#include <skep/version.h>
#include "cli/command.h"

#include <msgpack.h>
#include <opendht/opendht_c.h>
#include <jansson.h>
#include <oneapi/dnnl/dnnl.h>
#include <sodium.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "cli/options.h"
#include "cli/output.h"

static const struct cli_command commands[] = {
#define CLI_ROW(function, name, summary) {name, summary, function},
    CLI_COMMANDS(CLI_ROW)
#undef CLI_ROW
};
enum { COMMAND_COUNT = sizeof(commands) / sizeof(commands[0]) };

/* Of a program that uses the options of this one: cli_add_option_tables(). */
static const struct option_table *const *const *more_tables;
static size_t more_table_count;

const struct option_table *cli_option_table(size_t i)
{
    static const struct option_table *const *const tables[] = {
#define CLI_OPTIONS(function, name, summary) &function##_options,
        CLI_COMMANDS(CLI_OPTIONS)
#undef CLI_OPTIONS
    };

    if (i < OPTION_COUNT(tables))
        return *tables[i];
    i -= OPTION_COUNT(tables);
    return i < more_table_count ? *more_tables[i] : NULL;
}

void cli_add_option_tables(const struct option_table *const *const *list, size_t count)
{
    more_tables = list;
    more_table_count = count;
}

static const struct cli_command *find_command(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static void print_commands(FILE *out)
{
    fputs("Usage: skep COMMAND [OPTIONS]\n\nCommands:\n", out);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-16s %s\n", commands[i].name, commands[i].summary);
    fputs("  help             show the help of a command: skep help COMMAND\n"
          "\nskep --version, or -v, lists the libraries built in.\n",
          out);
}

static int unknown_command(const char *name)
{
    const char *names[COMMAND_COUNT];

    for (size_t i = 0; i < COMMAND_COUNT; i++)
        names[i] = commands[i].name;
    const char *nearest = options_nearest(name, names, COMMAND_COUNT);
    fprintf(stderr, "skep: \"%s\": unknown command", name);
    if (nearest != NULL)
        fprintf(stderr, ", did you mean %s?", nearest);
    fputs("\nTry: skep help\n", stderr);
    return CLI_USAGE;
}

bool cli_asks_for_help(const char *text)
{
    return strcmp(text, "help") == 0 || strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0;
}

bool cli_asks_for_version(const char *text)
{
    return strcmp(text, "--version") == 0 || strcmp(text, "-v") == 0 || strcmp(text, "-V") == 0;
}

/* Whether nothing stands behind the arguments that are used; else it is named. */
static bool is_last(int argc, char **argv, int used)
{
    if (argc <= used)
        return true;
    fprintf(stderr,
            "skep: \"%s\": unexpected argument, expected nothing after \"%s\"\n"
            "Try: skep help\n",
            argv[used], argv[used - 1]);
    return false;
}

/* @param argv  what stands behind `skep`: "help", a command, and what the command has below it. */
static int help(int argc, char **argv)
{
    if (argc > 1 && cli_asks_for_version(argv[1]))
        return is_last(argc, argv, 2) ? cli_print_version() : CLI_USAGE;
    if (argc < 2 || cli_asks_for_help(argv[1])) {
        if (!is_last(argc, argv, 2))
            return CLI_USAGE;
        print_commands(stdout);
        return CLI_DONE;
    }
    const struct cli_command *command = find_command(argv[1]);
    if (command == NULL)
        return unknown_command(argv[1]);
    if (argc > 2 && cli_asks_for_help(argv[2])) { /* `skep help node --help` asks twice */
        if (!is_last(argc, argv, 3))
            return CLI_USAGE;
        argc = 2;
    }
    /* The name of a benchmark is the only word that may stand behind that of a command. */
    if (!is_last(argc, argv, command->run == cmd_bench ? 3 : 2))
        return CLI_USAGE;
    /* The command's own --help; behind the name of a benchmark, that benchmark's. */
    char option[] = "--help";
    char *arguments[] = {argv[1], argc > 2 ? argv[2] : option, argc > 2 ? option : NULL, NULL};
    return command->run(argc > 2 ? 3 : 2, arguments);
}

/* What each library says of itself at run time; a build with fewer of them lists fewer. */
int cli_print_version(void)
{
    const dnnl_version_t *dnnl = dnnl_version();

    printf("skep %s\n", skep_version());
    printf("OpenDHT %s\n", dht_version());
    printf("libsodium %s\n", sodium_version_string());
    printf("oneDNN %d.%d.%d\n", dnnl->major, dnnl->minor, dnnl->patch);
    printf("libuv %s\n", uv_version_string());
    printf("msgpack-c %s\n", msgpack_version());
    printf("jansson %s\n", jansson_version_str());
    return CLI_DONE;
}

int cli_main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;

    if (name == NULL) {
        print_commands(stderr);
        return CLI_USAGE;
    }
    if (cli_asks_for_version(name))
        return is_last(argc, argv, 2) ? output_end(cli_print_version()) : CLI_USAGE;
    if (cli_asks_for_help(name))
        return output_end(help(argc - 1, argv + 1));
    const struct cli_command *command = find_command(name);
    if (command == NULL)
        return unknown_command(name);
    return output_end(command->run(argc - 1, argv + 1));
}

void cli_fill_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", O_RDONLY); /* takes the lowest that is free */
}

void cli_run_beside(const char *program, char *const *argv, char *const *environment)
{
    char path[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 1);
    char *name;

    if (len <= 0)
        return;
    path[len] = '\0';
    name = strrchr(path, '/') + 1; /* the path of a program is absolute */
    if (strlen(program) >= sizeof(path) - (size_t)(name - path)) {
        errno = ENAMETOOLONG;
        return;
    }
    memcpy(name, program, strlen(program) + 1);
    execve(path, argv, environment);
}

int cli_exit(int code)
{
#ifdef SKEP_SANITIZED
    return code; /* sanitizers report at the exit */
#else
    /* An expert that has not come back by the end of a stop may still be at work, in kernels that
     * the exit handlers of libraries would take from under it. All else has been ended by now. */
    fflush(NULL);
    _exit(code);
#endif
}
