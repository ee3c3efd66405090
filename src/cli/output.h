/* What the program prints: tables and progress for people, JSON for programs, exit codes. */
#ifndef SKEP_CLI_OUTPUT_H
#define SKEP_CLI_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <skep/status.h>

/* Exit codes of every subcommand. */
enum {
    CLI_DONE = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2, /* only what options_begin() refuses, or cli_usage_error() */
    CLI_NOT_FOUND = 3,
    CLI_TIMED_OUT = 4,
};
int cli_exit_code(skep_status status);

/* Prints "skep COMMAND: sentence", tamed, on standard error and returns the exit code of
 * err->status. */
int cli_fail(const char *command, const struct skep_error *err);
/* The same for what a command needs before it asks anybody: a file that is missing is a failure
 * (exit code 1), "not found" being said of experts alone. */
int cli_fail_before(const char *command, const struct skep_error *err);
/* The same for arguments that contradict each other: prints, with a pointer to the help, and
 * returns CLI_USAGE. */
int cli_usage_error(const char *command, const char *format, ...) SKEP_PRINTF(2, 3);

/* ---- standard output ---- */

/* Sends what has been printed. False from the first failure on, which is remembered. Any thread. */
bool output_flush(void);
/* Whether a write has failed, or whoever read our pipe has gone. For those who print for long. */
bool output_is_gone(void);
/* At the very end: sends what is left, and says on standard error what was lost and why.
 * @return the exit code, for a command that ends with `code` else: a full disk or a closed pipe
 * behind standard output is a failure too. */
int output_end(int code);

/* ---- tables ---- */

/* Columns are aligned; headers are bold on a terminal and plain elsewhere. */
struct table;

/* @param headers  borrowed until table_free(). A header that starts with '>' is of a column aligned
 * to the right. @return owned: table_free(); NULL if memory is short. */
struct table *table_new(const char *const *headers, size_t columns);
/* The next cell, row after row. What text_tame() replaces is shown as '?'. Does nothing on NULL;
 * running out of memory is remembered and told by table_print(). */
void table_cell(struct table *t, const char *format, ...) SKEP_PRINTF(2, 3);
/* False if memory ran short or the output failed. The last row may be incomplete. */
bool table_print(const struct table *t, FILE *out);
void table_free(struct table *t); /* NULL is allowed */

/* ---- progress ---- */

/*
 * A bar on a terminal, redrawn in place at most ten times a second; elsewhere a line at most every
 * five seconds, and at the end. Never draws anything if `quiet`.
 */
struct progress {
    FILE *out; /* borrowed */
    const char *label;
    uint64_t total; /* 0: unknown */
    uint64_t done;
    uint64_t start_us, next_us;
    bool terminal, quiet, drawn;
};
void progress_start(struct progress *p, const char *label, uint64_t total, bool quiet, FILE *out);
/* @param note  shown behind the numbers, such as "loss 0.12"; NULL: nothing. */
void progress_set(struct progress *p, uint64_t done, const char *note);
void progress_end(struct progress *p, const char *note);

/* ---- JSON ---- */

/* Prints a value and a line end. @param value taken always; NULL counts as memory that ran short.
 * @return whether all of it was written. */
bool json_print(json_t *value, FILE *out);
/* The same for numbers of others: 17 digits, so that each reads back as the number it was. */
bool json_print_exact(json_t *value, FILE *out);
/* One event, one line on standard output, at once: programs read them as they come. For what serves
 * on without its output: a failure is logged, once, and told by output_end(). @param event  taken
 * always; NULL (memory ran short) prints nothing. */
void json_print_event(json_t *event);

/* Whether a stream is a terminal that understands colours and cursor movement. */
bool output_is_terminal(FILE *stream);

#endif
