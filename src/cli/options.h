/*
 * Options of a subcommand, from one table: parsing, help and messages all come from it.
 *
 * A value comes from the first of: the command line (`--name value`, `--name=value`), the
 * environment (SKEP_NAME, dashes as underscores; empty is as good as unset), the file named by
 * --config (`name = value`, see docs/operations.md), the default in the table. Each command has
 * --config, --log-level, --log-format, --help and --version besides its own.
 *
 *     static const struct option_spec specs[] = {
 *         {.name = "listen", .kind = OPTION_ENDPOINT, .any_port = true,
 *          .default_text = "0.0.0.0:*", .help = "where to serve requests"},
 *         {.name = "max-batch-size", .kind = OPTION_INT, .min = 1, .max = 65536, .unit = "rows",
 *          .default_text = "4096", .help = "most rows of one batch"},
 *         {.name = "initial-peers", .kind = OPTION_LIST, .placeholder = "HOST:PORT,...",
 *          .help = "peers of the swarm to join"},
 *     };
 *     static const struct option_table table = {
 *         .command = "node", .summary = "Runs a node.", .example = "skep node --listen [::]:31330",
 *         .specs = specs, .count = OPTION_COUNT(specs),
 *     };
 *
 *     int cmd_node(int argc, char **argv)
 *     {
 *         struct options o;
 *         int code;
 *         if (!options_begin(&o, &table, argc, argv, &code))
 *             return code;
 *         ... options_int(&o, "max-batch-size") ...
 *         options_free(&o);
 *     }
 *
 * One thread at a time.
 */
#ifndef SKEP_CLI_OPTIONS_H
#define SKEP_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <skep/status.h>

#include "base/endpoint.h"

enum option_kind {
    OPTION_STRING,
    OPTION_CHOICE,   /* one of `choices` */
    OPTION_FLAG,     /* `--name`, or `--name=BOOL`; false unless given */
    OPTION_INT,      /* min <= value <= max */
    OPTION_FLOAT,    /* number_min <= value <= number_max, finite */
    OPTION_ENDPOINT, /* endpoint_parse() */
    OPTION_LIST,     /* of strings: repeated, and separated by commas; no element is empty */
};

struct option_spec {
    const char *name; /* without dashes in front: "update-period" */
    enum option_kind kind;
    const char *help;         /* what it is, without a full stop */
    const char *default_text; /* as it would be given; NULL: unset */
    const char *unset;        /* what holds when it is unset, for the help; NULL: nothing does */
    const char *section;      /* heading above it in the help; NULL: in the section of the last */
    const char *placeholder;  /* of the value in the help; NULL: one by kind */
    const char *unit;         /* what the value is counted in; shown unless it is a time. "s" and
                                 "ms" take 500ms, 1.5s, 2m, 1h, and a number alone as seconds;
                                 "bytes" takes 64K, 10M, 1.5GiB, in any case */
    const char *choices;      /* "adam|sgd|none" */
    int64_t min, max;
    double number_min, number_max;
    bool any_port; /* `*` and 0 are allowed as port */
    bool required;
    /* More checks of a string, or of each element of a list; may be NULL. The sentence need not
     * name the option. */
    skep_status (*check)(const char *text, struct skep_error *err);
};
#define OPTION_COUNT(specs) (sizeof(specs) / sizeof((specs)[0]))

struct option_table {
    const char *command; /* "node" */
    const char *summary; /* a sentence or more, for `skep help node` */
    const char *example; /* one or more lines */
    const struct option_spec *specs;
    size_t count;
    const char *positional; /* "UID..." in the help; NULL: none are taken */
    int positional_min;
    int positional_max;    /* -1: any number */
    const char *log_level; /* default of --log-level; NULL: "warning" */
};

struct options {
    const struct option_table *table; /* borrowed */
    struct option_value *values;      /* owned: options_free() */
    char **positional;                /* owned list of views of argv */
    size_t positional_count;
    bool help, version; /* --help, --version were given; nothing else was checked */
};

/*
 * Parses. argv[0] is the command's name. @param argv borrowed until options_free().
 * @return SKEP_INVALID_ARGUMENT with a sentence that names the option, the value seen and what was
 *         expected; SKEP_NOT_FOUND and the like for the --config file; SKEP_RESOURCE_EXHAUSTED.
 *         *out is empty then.
 */
SKEP_MUST_CHECK skep_status options_parse(struct options *out, const struct option_table *table,
                                          int argc, char **argv, struct skep_error *err);

/*
 * What a command does first: parses, sets level and format of the log, answers --help and
 * --version. False if the command is
 * over: *exit_code is then what it returns (0 after help, 2 after bad usage, which was reported).
 */
bool options_begin(struct options *out, const struct option_table *table, int argc, char **argv,
                   int *exit_code);
void options_free(struct options *o); /* NULL and zeroed are allowed */

/* A ready-made check for lists of endpoints: each element is `host:port`, not `*` or 0. */
skep_status options_check_endpoint(const char *text, struct skep_error *err);
/* The same for lists of peers: `tracker://host:port` too. */
skep_status options_check_initial_peer(const char *text, struct skep_error *err);
/* A name that a swarm can have; a peer id. */
skep_status options_check_swarm(const char *text, struct skep_error *err);
skep_status options_check_peer_id(const char *text, struct skep_error *err);

/* Values, by a name that is in the table under that kind (anything else aborts). Strings and lists
 * are views of o. */
const char *options_string(const struct options *o, const char *name); /* or choice; NULL: unset */
bool options_flag(const struct options *o, const char *name);
int64_t options_int(const struct options *o, const char *name);  /* 0: unset */
double options_float(const struct options *o, const char *name); /* 0: unset */
const struct endpoint *options_endpoint(const struct options *o,
                                        const char *name); /* NULL: unset */
const char *const *options_list(const struct options *o, const char *name, size_t *count);
/* Whether it has a value other than the default of the table. */
bool options_given(const struct options *o, const char *name);

/*
 * For an option that has no effect beside the others: nothing if it was not given, or is a flag
 * that says false. On the command line it is refused, as whoever typed it expects something of it:
 * cli_usage_error(). In the environment or a configuration file, which several setups may share, it
 * is warned about and taken out: its default holds from then on.
 * @param why  with a name of what makes it so: "does nothing with --optimizer adam".
 * @return CLI_DONE, CLI_USAGE, or CLI_FAILED if memory is short.
 */
int options_idle(struct options *o, const char *name, const char *why, ...) SKEP_PRINTF(3, 4);
/*
 * For two options that contradict each other: the one that was given where it ranks lower is taken
 * out, with a warning unless it is a variable of the environment beside the command line. Nothing
 * if they have the same rank or are not both given. Returns as options_idle().
 */
int options_outrank(struct options *o, const char *name, const char *other);
/* The same, where of two of the same rank `name` is the idle one. @param why  a sentence's end, as
 * of options_idle(). */
int options_contrary(struct options *o, const char *name, const char *other, const char *why);
/* For an option that has no effect without another one. Returns as options_idle(). */
int options_needs(struct options *o, const char *name, const char *other);
/* Whether it was given and, if it is a flag, says true. */
bool options_in_force(const struct options *o, const char *name);

/* The help: usage, examples, then the options with their defaults. */
void options_print_help(const struct option_table *table, FILE *out);

/*
 * A text's nearest among names, for "did you mean": NULL if none is near.
 * @param names  borrowed; the result is one of them.
 */
const char *options_nearest(const char *text, const char *const *names, size_t count);

#endif
