/*
 * The subcommands of `skep`. A command is one file, cmd_<name>.c, with `int cmd_<name>(int argc,
 * char **argv)` and the table of its options, cmd_<name>_options, and one line here. argv[0] is the
 * command's name; the result is the exit code.
 */
#ifndef SKEP_CLI_COMMAND_H
#define SKEP_CLI_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

/* X(function, "name", "summary in the list of commands"), in the order of the list. */
#define CLI_COMMANDS(X)                                                                            \
    X(cmd_node, "node", "run a node that hosts and serves experts")                                \
    X(cmd_tracker, "tracker", "run a tracker that hands TVM servers to clients")                   \
    X(cmd_query_tracker, "query-tracker", "show a tracker's servers and queues")                   \
    X(cmd_dht, "dht", "run a bootstrap peer without experts")                                      \
    X(cmd_find, "find", "look up experts by UID or prefix")                                        \
    X(cmd_peers, "peers", "list the nodes of a swarm, their load and round trip")                  \
    X(cmd_stats, "stats", "show what a running node counts")                                       \
    X(cmd_call, "call", "call an expert: forward, backward, or show its schema")                   \
    X(cmd_export, "export", "write an expert's checkpoint as plain weights")                       \
    X(cmd_import, "import", "convert weights to checkpoints that a node can host")                 \
    X(cmd_bench, "bench", "measure Skep on this machine")                                          \
    X(cmd_keygen, "keygen", "create the key file of a node or a private swarm")

struct option_table;

struct cli_command {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
};

#define CLI_DECLARE(function, name, summary)                                                       \
    int function(int argc, char **argv);                                                           \
    extern const struct option_table *const function##_options;
CLI_COMMANDS(CLI_DECLARE)
#undef CLI_DECLARE

/* The options of all commands, then those that were added; NULL behind the last. */
const struct option_table *cli_option_table(size_t i);
/* Adds the tables of a program that has commands of its own. Kept by pointer; once, before use. */
void cli_add_option_tables(const struct option_table *const *const *list, size_t count);
/* "help", "--help" or "-h", which stand for each other where a command's name is expected. */
bool cli_asks_for_help(const char *text);
/* "--version", "-v" or "-V". */
bool cli_asks_for_version(const char *text);
/* Prints the versions of Skep and of its libraries. Returns the exit code. */
int cli_print_version(void);
/* Opens descriptors 0 to 2 if they are closed: else a socket or a file would get one of them, and
 * what the program prints would go there. Writing to them fails, as it would with a closed one. */
void cli_fill_standard_descriptors(void);
/* Runs a program that is installed beside this one. @param argv, environment  of execve(). Returns
 * if there is none, with errno. */
void cli_run_beside(const char *program, char *const *argv, char *const *environment);
/* Ends the process. Returns only in builds with a sanitizer: main() then returns the code. */
int cli_exit(int code);
/* Runs `skep` with the arguments of main(). Returns its exit code. */
int cli_main(int argc, char **argv);

#endif
