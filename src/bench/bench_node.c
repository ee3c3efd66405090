/* Node processes for benchmarks. */
#include "bench/bench_node.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "bench/bench_stats.h"
#include "cli/command.h"
#include "cli/environment.h"

enum {
    MAX_ARGUMENTS = 48,
    START_TIMEOUT_MS = 60000,
    STOP_TIMEOUT_MS = 8000,
    FIND_MS = 10000, /* an expert */
};

/* The child's side of fork(): never returns. */
static void become_node(int input_fd, const char *const *arguments, char **environment)
{
    const char *argv[MAX_ARGUMENTS + 3] = {"skep"};
    int n = 1;

    for (int i = 0; i < MAX_ARGUMENTS && arguments[i] != NULL; i++)
        argv[n++] = arguments[i];
    argv[n++] = "--json";
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(input_fd, STDOUT_FILENO);
    cli_run_beside("skep", (char *const *)argv, environment);
    _exit(127);
}

static skep_status read_line(int fd, struct bytes *line, struct skep_error *err)
{
    uint64_t deadline_us = clock_deadline_us(START_TIMEOUT_MS);

    for (;;) {
        struct pollfd poller = {.fd = fd, .events = POLLIN};
        uint64_t left_ms = clock_left_ms(deadline_us);
        if (left_ms == 0)
            return error_set(err, SKEP_DEADLINE_EXCEEDED, "the node is not ready after %d ms",
                             START_TIMEOUT_MS);
        if (poll(&poller, 1, (int)left_ms) <= 0)
            continue;
        if (!bytes_reserve(line, 4096))
            return error_no_memory(err, "facts of the node", line->len + 4096);
        ssize_t n = read(fd, line->data + line->len, 4096);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return error_set(err, SKEP_UNAVAILABLE, "the node ended before it was ready");
        line->len += (size_t)n;
        if (memchr(line->data, '\n', line->len) != NULL)
            return SKEP_OK;
    }
}

skep_status bench_node_start(struct bench_node *out, const char *const *arguments,
                             struct skep_error *err)
{
    int pipe_fds[2] = {-1, -1};
    struct bytes line = {0};
    uint64_t start_ns = bench_now_ns();
    skep_status rc;

    *out = (struct bench_node){0};
    char **environment = environment_of_others(); /* what is measured is of no other swarm */
    if (environment == NULL)
        return error_no_memory(err, "environment", 0);
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
        mem_free(environment);
        return error_set(err, status_from_errno(errno), "pipe: %s", strerror(errno));
    }
    out->pid = fork();
    if (out->pid == 0)
        become_node(pipe_fds[1], arguments, environment);
    mem_free(environment);
    close(pipe_fds[1]);
    if (out->pid < 0) {
        out->pid = 0;
        rc = error_set(err, SKEP_RESOURCE_EXHAUSTED, "fork: %s", strerror(errno));
    } else {
        rc = read_line(pipe_fds[0], &line, err);
    }
    out->start_ns = bench_now_ns() - start_ns;
    if (rc == SKEP_OK) {
        out->facts = json_loadb((const char *)line.data, line.len, JSON_DISABLE_EOF_CHECK, NULL);
        if (out->facts == NULL)
            rc = error_set(err, SKEP_INTERNAL, "the node's first line is not JSON");
    }
    out->input_fd = pipe_fds[0];
    bytes_free(&line);
    if (rc != SKEP_OK)
        bench_node_stop(out);
    return rc;
}

void bench_node_stop(struct bench_node *node)
{
    uint64_t deadline_us = clock_deadline_us(STOP_TIMEOUT_MS);

    if (node->pid > 0) {
        kill(node->pid, SIGTERM);
        while (waitpid(node->pid, NULL, WNOHANG) == 0) {
            if (clock_left_ms(deadline_us) == 0) {
                kill(node->pid, SIGKILL);
                waitpid(node->pid, NULL, 0);
                break;
            }
            poll(NULL, 0, 5); /* a child's end can be waited for with a deadline only by asking */
        }
    }
    if (node->input_fd > 0)
        close(node->input_fd);
    json_decref(node->facts);
    *node = (struct bench_node){0};
}

skep_status bench_node_finish(struct bench_node *node, json_t **stats, struct skep_error *err)
{
    struct bytes line = {0};

    *stats = NULL;
    kill(node->pid, SIGTERM);
    skep_status rc = read_line(node->input_fd, &line, err);
    if (rc == SKEP_OK) {
        *stats = json_loadb((const char *)line.data, line.len, JSON_DISABLE_EOF_CHECK, NULL);
        if (*stats == NULL)
            rc = error_set(err, SKEP_INTERNAL, "the node's last line is not JSON");
    }
    bytes_free(&line);
    return rc;
}

double bench_node_resident_mib(const struct bench_node *node)
{
    static const char name[] = "VmRSS:";
    char path[64];
    char line[256];
    long kib = 0;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)node->pid);
    FILE *status = fopen(path, "r");
    if (status == NULL)
        return 0.0;
    while (fgets(line, sizeof(line), status) != NULL)
        if (strncmp(line, name, sizeof(name) - 1) == 0)
            kib = strtol(line + sizeof(name) - 1, NULL, 10);
    fclose(status);
    return (double)kib / 1024.0;
}

const char *bench_node_fact(const struct bench_node *node, const char *key)
{
    const char *text = json_string_value(json_object_get(node->facts, key));

    return text != NULL ? text : "";
}

void bench_caller_stop(struct bench_caller *caller)
{
    skep_remote_expert_free(caller->expert);
    skep_client_free(caller->client);
    *caller = (struct bench_caller){0};
}

skep_status bench_caller_start(struct bench_caller *out, const char *peer, const char *uid,
                               bool plaintext, struct skep_error *err)
{
    struct skep_client_options options;
    uint64_t deadline_us = clock_deadline_us(FIND_MS);

    *out = (struct bench_caller){0};
    skep_client_options_init(&options);
    options.initial_peers = &peer;
    options.initial_peer_count = 1;
    options.insecure_plaintext = plaintext;
    skep_status rc = skep_client_new(&options, &out->client, err);
    if (rc == SKEP_OK)
        rc = skep_client_wait_joined(out->client, FIND_MS, err);
    if (rc == SKEP_OK)
        do {
            rc = skep_client_find(out->client, uid, 2000, &out->expert, err);
        } while (rc == SKEP_NOT_FOUND && clock_left_ms(deadline_us) > 0);
    if (rc != SKEP_OK)
        bench_caller_stop(out);
    return rc;
}
