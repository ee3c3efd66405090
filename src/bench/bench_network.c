/*
 * Processes full of DHT peers.
 *
 * Over its two pipes a process says a line when its peers have joined (the port of the first), then
 * answers each line it reads by one: "publish", "usage", and "<peer> <request>" for one of its
 * peers. It ends when its input does: also when this program is killed.
 */
#include "bench/bench_network.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "dht/swarm/swarm.h"

enum {
    STEP_TIMEOUT_MS = 300000,
    JOIN_MS = 20000,
    LIFETIME_S = 3600,
    /* As a node would every period. What is put while the network is a second old lands in part on
     * nodes that are not the closest to its key. */
    ROUNDS = 2,
};

const char bench_network_swarm[] = "skep-bench";

/* ---- the child's side ---- */

struct child {
    struct bench_process *process; /* its own copy */
    uint16_t port;                 /* of the network's first peer; 0: this process has it */
    struct identity identities[BENCH_NETWORK_PROCESS_PEERS];
    struct swarm *swarms[BENCH_NETWORK_PROCESS_PEERS];
    pthread_mutex_t lock; /* guards pending */
    pthread_cond_t ended;
    size_t pending; /* declares under way */
};

static skep_status start_peers(struct child *c, struct skep_error *err)
{
    char text[32];
    const char *peer = text;
    uint16_t port = c->port;
    skep_status rc = identity_system_init(err);

    for (size_t i = 0; i < c->process->peers && rc == SKEP_OK; i++) {
        snprintf(text, sizeof(text), "127.0.0.1:%u", (unsigned)port);
        const struct swarm_config config = {
            .name = bench_network_swarm,
            .identity = &c->identities[i],
            .dht_listen = {.host = "127.0.0.1"},
            .initial_peers = &peer,
            .initial_peer_count = port != 0,
        };
        rc = identity_generate(&c->identities[i], err);
        if (rc == SKEP_OK)
            rc = swarm_join(&config, &c->swarms[i], err);
        if (rc == SKEP_OK && !swarm_wait_joined(c->swarms[i], clock_deadline_us(STEP_TIMEOUT_MS)))
            rc = error_set(err, SKEP_DEADLINE_EXCEEDED, "peer %zu has not joined", i);
        if (rc == SKEP_OK && port == 0)
            port = swarm_dht_port(c->swarms[i]);
    }
    c->port = port;
    return rc;
}

static void on_declared(void *arg, struct declaration *declarations, size_t count)
{
    struct child *c = arg;

    (void)declarations;
    (void)count;
    pthread_mutex_lock(&c->lock);
    c->pending--;
    pthread_cond_signal(&c->ended);
    pthread_mutex_unlock(&c->lock);
}

static void fill(struct declaration *d, struct record *r, size_t key, const struct swarm *swarm)
{
    memset(r, 0, sizeof(*r));
    r->kind = RECORD_EXPERT;
    r->expires_at = clock_wall_ms() / 1000 + LIFETIME_S;
    snprintf(r->expert.uid, sizeof(r->expert.uid), "bench.%zu", key);
    snprintf(r->expert.cls, sizeof(r->expert.cls), "nop");
    r->expert.endpoint_count = 1;
    r->expert.endpoints[0] = (struct endpoint){.host = "127.0.0.1", .port = 31330};
    d->record = r;
    record_key_expert(swarm_record(swarm), r->expert.uid, d->key);
}

/* Declares and waits; one peer after the other, or the puts of all processes together would swamp
 * the machine and time out. */
static skep_status declare(struct child *c, size_t peer, struct declaration *declarations,
                           size_t count, struct skep_error *err)
{
    c->pending = 1;
    skep_status rc = directory_declare(swarm_directory(c->swarms[peer]), declarations, count,
                                       clock_deadline_us(STEP_TIMEOUT_MS), on_declared, c, err);
    if (rc != SKEP_OK)
        return rc;
    pthread_mutex_lock(&c->lock);
    while (c->pending > 0)
        pthread_cond_wait(&c->ended, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return SKEP_OK;
}

/* The keys of this process, shared out among its peers. */
static skep_status publish(struct child *c, struct skep_error *err)
{
    size_t peers = c->process->peers, keys = c->process->keys, failed = 0;
    struct declaration *declarations = mem_calloc(keys, sizeof(*declarations));
    struct record *records = mem_calloc(keys, sizeof(*records));
    skep_status rc = SKEP_OK;

    if (declarations == NULL || records == NULL) {
        mem_free(declarations);
        mem_free(records);
        return error_no_memory(err, "records", keys * sizeof(*records));
    }
    for (size_t i = 0; i < ROUNDS * peers && rc == SKEP_OK; i++) {
        size_t peer = i % peers;
        size_t first = keys * peer / peers, end = keys * (peer + 1) / peers;
        for (size_t k = first; k < end; k++)
            fill(&declarations[k], &records[k], c->process->first_key + k, c->swarms[peer]);
        if (first < end)
            rc = declare(c, peer, declarations + first, end - first, err);
    }
    for (size_t k = 0; k < keys; k++)
        failed += declarations[k].outcome != SKEP_OK;
    if (rc == SKEP_OK && failed > 0)
        rc = error_set(err, SKEP_UNAVAILABLE, "%zu of %zu records not published", failed, keys);
    return rc; /* the memory goes with the process */
}

static uint64_t resident_bytes(void)
{
    unsigned long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    if (f == NULL)
        return 0;
    if (fscanf(f, "%lu %lu", &size, &resident) != 2)
        resident = 0;
    fclose(f);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void tell_usage(const struct child *c, char reply[static BENCH_LINE_BYTES])
{
    struct timespec cpu = {0};
    uint64_t packets = 0, bytes = 0;

    for (size_t i = 0; i < c->process->peers; i++) {
        struct runner_traffic traffic;
        runner_traffic(swarm_runner(c->swarms[i]), &traffic);
        packets += traffic.packets;
        bytes += traffic.bytes;
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    snprintf(reply, BENCH_LINE_BYTES, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64, packets,
             bytes, (uint64_t)cpu.tv_sec * 1000000000 + (uint64_t)cpu.tv_nsec, resident_bytes());
}

/* What the network was made for. */
static skep_status do_work(struct child *c, const struct bench_network_work *work,
                           struct skep_error *err)
{
    if (work == NULL)
        return publish(c, err);
    return work->publish(work->arg, c->swarms, c->process->first_peer, c->process->peers, err);
}

static skep_status serve(struct child *c, const struct bench_network_work *work, const char *line,
                         char reply[static BENCH_LINE_BYTES], struct skep_error *err)
{
    char *request;

    snprintf(reply, BENCH_LINE_BYTES, "ok");
    if (strcmp(line, "publish") == 0)
        return do_work(c, work, err);
    if (strcmp(line, "usage") == 0) {
        tell_usage(c, reply);
        return SKEP_OK;
    }
    unsigned long peer = strtoul(line, &request, 10);
    if (*request != ' ' || peer >= c->process->peers || work == NULL || work->serve == NULL)
        return error_set(err, SKEP_INTERNAL, "asked for \"%s\"", line);
    return work->serve(c->swarms[peer], request + 1, reply, err);
}

/* One line; false at the end of the input. */
static bool hear(int fd, char line[static BENCH_LINE_BYTES])
{
    for (size_t len = 0; len + 1 < BENCH_LINE_BYTES; len++) {
        if (read(fd, line + len, 1) != 1)
            return false;
        if (line[len] == '\n') {
            line[len] = '\0';
            return true;
        }
    }
    return false;
}

static bool say(int fd, const char *line)
{
    char text[BENCH_LINE_BYTES + 1];
    int len = snprintf(text, sizeof(text), "%s\n", line);

    return write(fd, text, (size_t)len) == len;
}

/* Never returns, and frees nothing: the process ends. */
static void be_child(struct bench_process *process, const struct bench_network *network, int in,
                     int out)
{
    struct child *c = calloc(1, sizeof(*c));
    struct skep_error err = {0};
    char line[BENCH_LINE_BYTES], reply[BENCH_LINE_BYTES];

    if (c == NULL)
        _exit(1);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing of it is worth ending in order */
    signal(SIGINT, SIG_IGN); /* the terminal sends it to all; the end of `in` is the word for us */
    c->process = process;
    c->port = network->port;
    pthread_mutex_init(&c->lock, NULL);
    cond_init(&c->ended);
    skep_status rc = start_peers(c, &err);
    snprintf(reply, sizeof(reply), "%u", (unsigned)c->port);
    while (rc == SKEP_OK && say(out, reply) && hear(in, line))
        rc = serve(c, network->work, line, reply, &err);
    if (rc != SKEP_OK)
        log_error("bench network: %s", err.message);
    _exit(rc != SKEP_OK);
}

/* ---- this process's side ---- */

static skep_status read_line(struct bench_process *p, char line[static BENCH_LINE_BYTES],
                             struct skep_error *err)
{
    uint64_t deadline_us = clock_deadline_us(STEP_TIMEOUT_MS);
    size_t len = 0;

    while (len + 1 < BENCH_LINE_BYTES) {
        struct pollfd poller = {.fd = p->from, .events = POLLIN};
        uint64_t left_ms = clock_left_ms(deadline_us);
        if (left_ms == 0)
            return error_set(err, SKEP_DEADLINE_EXCEEDED, "bench network: no word for %d ms",
                             STEP_TIMEOUT_MS);
        if (poll(&poller, 1, (int)left_ms) <= 0)
            continue;
        ssize_t n = read(p->from, line + len, 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return error_set(err, SKEP_UNAVAILABLE, "bench network: a process of peers ended");
        if (line[len] == '\n')
            break;
        len++;
    }
    line[len] = '\0';
    return SKEP_OK;
}

static skep_status write_line(struct bench_process *p, const char *line, struct skep_error *err)
{
    if (p->to >= 0 && say(p->to, line))
        return SKEP_OK;
    return error_set(err, SKEP_UNAVAILABLE, "bench network: a process of peers ended");
}

static void close_pipes(struct bench_process *p)
{
    if (p->to >= 0)
        close(p->to);
    if (p->from >= 0)
        close(p->from);
    p->to = p->from = -1;
}

static skep_status start_process(struct bench_network *network, struct bench_process *p,
                                 struct skep_error *err)
{
    int to[2] = {-1, -1}, from[2] = {-1, -1};

    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) {
        if (to[0] >= 0) {
            close(to[0]);
            close(to[1]);
        }
        return error_set(err, status_from_errno(errno), "pipe: %s", strerror(errno));
    }
    p->to = to[1];
    p->from = from[0];
    p->pid = fork();
    if (p->pid == 0) {
        /* This side's ends, also of the others: an input ends when nobody can write to it. */
        for (size_t i = 0; i <= network->process_count; i++)
            close_pipes(&network->processes[i]);
        be_child(p, network, to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    network->process_count++;
    if (p->pid > 0)
        return SKEP_OK;
    p->pid = 0;
    return error_set(err, SKEP_RESOURCE_EXHAUSTED, "fork: %s", strerror(errno));
}

static skep_status start_all(struct bench_network *network, size_t processes,
                             struct skep_error *err)
{
    skep_status rc = SKEP_OK;
    char line[BENCH_LINE_BYTES];

    for (size_t i = 0; i < processes && rc == SKEP_OK; i++) {
        struct bench_process *p = &network->processes[i];
        p->first_key = network->keys * i / processes;
        p->keys = network->keys * (i + 1) / processes - p->first_key;
        p->first_peer = network->peers * i / processes;
        p->peers = network->peers * (i + 1) / processes - p->first_peer;
        rc = start_process(network, p, err);
        if (rc == SKEP_OK)
            rc = read_line(p, line, err);
        if (rc == SKEP_OK && i == 0)
            network->port = (uint16_t)strtoul(line, NULL, 10);
    }
    return rc;
}

/* Stops what there is on failure. */
static skep_status open_network(struct bench_network *network, size_t processes,
                                struct skep_error *err)
{
    size_t peers = network->peers;

    if (processes == 0 || processes > BENCH_NETWORK_MAX_PROCESSES || peers < processes ||
        peers > processes * BENCH_NETWORK_PROCESS_PEERS)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%zu peers in %zu processes, expected 1 to %d in each", peers, processes,
                         BENCH_NETWORK_PROCESS_PEERS);
    signal(SIGPIPE, SIG_IGN);
    skep_status rc = start_all(network, processes, err);
    if (rc != SKEP_OK)
        bench_network_stop(network);
    return rc;
}

skep_status bench_network_open(struct bench_network *network, size_t peers, size_t processes,
                               const struct bench_network_work *work, struct skep_error *err)
{
    *network = (struct bench_network){.peers = peers, .work = work};
    return open_network(network, processes, err);
}

skep_status bench_network_publish(struct bench_network *network, struct skep_error *err)
{
    skep_status rc = SKEP_OK;
    char line[BENCH_LINE_BYTES];

    for (size_t i = 0; i < network->process_count && rc == SKEP_OK; i++)
        rc = write_line(&network->processes[i], "publish", err);
    for (size_t i = 0; i < network->process_count && rc == SKEP_OK; i++)
        rc = read_line(&network->processes[i], line, err);
    if (rc != SKEP_OK)
        bench_network_stop(network);
    return rc;
}

skep_status bench_network_start(struct bench_network *network, size_t peers, size_t processes,
                                size_t keys, struct skep_error *err)
{
    *network = (struct bench_network){.peers = peers, .keys = keys};
    skep_status rc = open_network(network, processes, err);
    return rc == SKEP_OK ? bench_network_publish(network, err) : rc;
}

skep_status bench_network_ask(struct bench_network *network, size_t peer, const char *request,
                              char reply[static BENCH_LINE_BYTES], struct skep_error *err)
{
    char line[BENCH_LINE_BYTES];
    size_t i = 0;

    while (i + 1 < network->process_count && network->processes[i + 1].first_peer <= peer)
        i++;
    struct bench_process *p = &network->processes[i];
    snprintf(line, sizeof(line), "%zu %s", peer - p->first_peer, request);
    skep_status rc = write_line(p, line, err);
    return rc == SKEP_OK ? read_line(p, reply, err) : rc;
}

skep_status bench_network_usage(struct bench_network *network, struct bench_usage *out,
                                struct skep_error *err)
{
    char line[BENCH_LINE_BYTES];
    skep_status rc = SKEP_OK;

    *out = (struct bench_usage){0};
    for (size_t i = 0; i < network->process_count && rc == SKEP_OK; i++)
        rc = write_line(&network->processes[i], "usage", err);
    for (size_t i = 0; i < network->process_count && rc == SKEP_OK; i++) {
        struct bench_usage u;
        rc = read_line(&network->processes[i], line, err);
        if (rc != SKEP_OK)
            break;
        if (sscanf(line, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &u.packets, &u.bytes,
                   &u.cpu_ns, &u.resident_bytes) != 4)
            return error_set(err, SKEP_INTERNAL, "bench network: usage \"%s\"", line);
        out->packets += u.packets;
        out->bytes += u.bytes;
        out->cpu_ns += u.cpu_ns;
        out->resident_bytes += u.resident_bytes;
    }
    return rc;
}

size_t bench_network_kill(struct bench_network *network, size_t peers)
{
    size_t killed = 0;

    for (size_t i = network->process_count; i-- > 1 && killed < peers;) {
        struct bench_process *p = &network->processes[i];
        if (p->pid == 0)
            continue;
        kill(p->pid, SIGKILL);
        waitpid(p->pid, NULL, 0);
        close_pipes(p);
        p->pid = 0;
        killed += p->peers;
    }
    return killed;
}

void bench_network_stop(struct bench_network *network)
{
    for (size_t i = 0; i < network->process_count; i++) {
        struct bench_process *p = &network->processes[i];
        close_pipes(p);
        if (p->pid <= 0)
            continue;
        kill(p->pid, SIGKILL); /* they have nothing to put in order */
        waitpid(p->pid, NULL, 0);
    }
    *network = (struct bench_network){0};
}

skep_status bench_network_join(uint16_t port, const struct identity *identity, struct swarm **out,
                               struct skep_error *err)
{
    char text[32];
    const char *peer = text;

    snprintf(text, sizeof(text), "127.0.0.1:%u", (unsigned)port);
    const struct swarm_config config = {
        .name = bench_network_swarm,
        .identity = identity,
        .dht_listen = {.host = "127.0.0.1"},
        .initial_peers = &peer,
        .initial_peer_count = 1,
    };
    skep_status rc = swarm_join(&config, out, err);
    if (rc == SKEP_OK && !swarm_wait_joined(*out, clock_deadline_us(JOIN_MS)))
        rc = error_set(err, SKEP_DEADLINE_EXCEEDED, "the network of peers does not answer");
    return rc;
}
