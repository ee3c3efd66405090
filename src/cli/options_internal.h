/* What the files of the option parser share. */
#ifndef SKEP_CLI_OPTIONS_INTERNAL_H
#define SKEP_CLI_OPTIONS_INTERNAL_H

#include "cli/options.h"

/* Where a value came from; a lower one wins. */
enum option_source {
    SOURCE_UNSET = 0,
    SOURCE_COMMAND_LINE,
    SOURCE_ENVIRONMENT,
    SOURCE_FILE,
    SOURCE_DEFAULT,
};

struct option_value {
    enum option_source source;
    bool in_file;  /* the file has it, whoever wins */
    char *earlier; /* owned; what the command line said first and then took back, or NULL */
    char **texts;  /* owned, NULL-terminated; one, or the elements of a list */
    size_t count;
    int64_t integer;
    double number;
    bool flag;
    struct endpoint endpoint;
};

enum {
    OPTION_NAME_BYTES = 64,
    OPTION_WHERE_BYTES = 512,
    OPTION_TIME_BYTES = 32,
    CONFIG_LIMIT_BYTES = 1 << 20,
};

/* The options every command has. They come before those of the table. */
enum { COMMON_OPTIONS = 5 };
extern const struct option_spec option_common[COMMON_OPTIONS];

/* Option i of a command, the common ones first. */
const struct option_spec *option_at(const struct option_table *table, size_t i);
size_t option_total(const struct option_table *table);
/* The index of the option of that name (len characters); option_total() if there is none. */
size_t option_find(const struct option_table *table, const char *name, size_t len);
/* The default, also of the common ones; NULL if there is none. */
const char *option_default(const struct option_table *table, const struct option_spec *spec);

/*
 * Sets an option from text unless it has a value from a source that wins; then the text of a file
 * is checked all the same. Texts of a file and of the environment lose their quotes first
 * (option_unquote()). @param where  what messages begin with: "--listen", "SKEP_LISTEN",
 * "node.conf:3: listen".
 */
SKEP_MUST_CHECK skep_status option_assign(struct options *o, size_t i, enum option_source source,
                                          const char *text, const char *where,
                                          struct skep_error *err);
void option_value_clear(struct option_value *value);
/* Whether option i is --help or --version, which are asked for on a command line alone. */
bool option_is_answered(size_t i);

/* Parses a scalar's text, or one element of a list, into value's fields (not its texts). */
SKEP_MUST_CHECK skep_status option_parse_text(const struct option_spec *spec, const char *text,
                                              const char *where, struct option_value *value,
                                              struct skep_error *err);
/* What an option's number measures, and so what may stand behind it. */
enum option_measure { MEASURE_OTHER, MEASURE_TIME, MEASURE_SIZE };
enum option_measure option_measure(const struct option_spec *spec);

/* A value of an option that measures a time, with the largest unit in which it is a whole number.
 * Returns out. */
const char *option_format_time(const struct option_spec *spec, double value,
                               char out[static OPTION_TIME_BYTES]);

/* What a good value looks like: "a whole number from 1 to 64". Returns out. */
const char *option_expected(const struct option_spec *spec, char *out, size_t cap);

/*
 * Takes the quotes off a value that begins with one, or off each such element of a list: "a b" or
 * 'a b' becomes a b. Nothing inside them is an escape.
 * @param text  changed in place. @return SKEP_INVALID_ARGUMENT for a quote without its other half.
 */
SKEP_MUST_CHECK skep_status option_unquote(char *text, bool is_list, const char *where,
                                           struct skep_error *err);

/* Reads the text of a configuration file. @param path  for messages. */
SKEP_MUST_CHECK skep_status option_read_config(struct options *o, const char *path,
                                               const char *text, size_t len,
                                               struct skep_error *err);
SKEP_MUST_CHECK skep_status option_load_config(struct options *o, const char *path,
                                               struct skep_error *err);

/* "did you mean" with a leading comma, or nothing. Returns out. */
const char *option_suggestion(const struct option_table *table, const char *name,
                              const char *dashes, char *out, size_t cap);

/* Warns of options that the command line gives twice with different values. */
void options_warn_of_repeated(const struct options *o);

#endif
