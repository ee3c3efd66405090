/* A `skep node` process for benchmarks: this program again, started, asked for its facts, ended. */
#ifndef SKEP_BENCH_BENCH_NODE_H
#define SKEP_BENCH_BENCH_NODE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <skep/client.h>
#include <skep/status.h>

struct bench_node {
    pid_t pid;         /* 0: not running */
    int input_fd;      /* its output, kept open so that it may go on printing; 0: none. Owned */
    json_t *facts;     /* owned; what it printed once ready */
    uint64_t start_ns; /* from before the process existed until its facts were here */
};

/*
 * Starts `skep ARGUMENTS... --json` and waits for its line of facts.
 * @param arguments  NULL-terminated, the subcommand first. Borrowed.
 * @return SKEP_DEADLINE_EXCEEDED or SKEP_UNAVAILABLE if it does not get ready.
 */
SKEP_MUST_CHECK skep_status bench_node_start(struct bench_node *out, const char *const *arguments,
                                             struct skep_error *err);
/*
 * SIGTERM, then waits for what it prints at its end: its statistics. Still to be stopped after.
 * @param stats  owned: json_decref(). NULL on failure.
 */
SKEP_MUST_CHECK skep_status bench_node_finish(struct bench_node *node, json_t **stats,
                                              struct skep_error *err);
/* SIGTERM, and SIGKILL if that is not enough. Zeroed is allowed. */
void bench_node_stop(struct bench_node *node);
/* Its resident memory in MiB; 0 if unknown. */
double bench_node_resident_mib(const struct bench_node *node);
/* A text among the facts; "" if absent. View of the node. */
const char *bench_node_fact(const struct bench_node *node, const char *key);

/* A client of the node that has found one of its experts. Zeroed: none. */
struct bench_caller {
    struct skep_client *client;        /* owned */
    struct skep_remote_expert *expert; /* owned */
};
/* @param peer  the node's bootstrap peer, borrowed for the call. On failure *out is zeroed. */
SKEP_MUST_CHECK skep_status bench_caller_start(struct bench_caller *out, const char *peer,
                                               const char *uid, bool plaintext,
                                               struct skep_error *err);
void bench_caller_stop(struct bench_caller *caller); /* zeroed is allowed */

#endif
