/*
 * skep bench throughput: many clients call the experts of one node process, over the real
 * transport. The presets are those of the benchmark that hivemind comes with
 * (benchmarks/benchmark_throughput.py), so that figures can be set side by side.
 *
 * A client does one thing after the other: it picks an expert, waits for forward, then for backward
 * if asked for. Clients share connections, each of which has an identity, a handshake and a thread
 * of its own; all send the same rows. A client that meets a full queue tries again when there is
 * room.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <skep/client.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "base/thread.h"
#include "bench/bench.h"
#include "bench/bench_frame.h"
#include "bench/bench_node.h"

enum {
    MAX_CONNECTIONS = 64,
    MIN_CONNECTIONS = 8,
    REPLIES_BYTES = 64 << 20,  /* a node's max_reply_backlog, for a connection */
    CALL_TIMEOUT_MS = 3600000, /* the last of a full queue waits for all before it */
    SHOW_MS = 200,
};

struct preset {
    const char *name;
    const char *cls;
    int64_t experts, clients, batches, rows, max_batch, handlers; /* 0: the default */
    bool backward;
};

/* hivemind's max_batch_size is four times batch_size where it says nothing else. */
static const struct preset presets[] = {
    {"default", "ffn", 16, 128, 16, 2048, 0, 0, true},
    {"ffn_forward_backward", "ffn", 16, 128, 16, 2048, 0, 0, true},
    {"ffn_forward", "ffn", 16, 128, 16, 2048, 0, 0, false},
    {"ffn_small_batch", "ffn", 4, 128, 16, 32, 8192, 0, false},
    {"ffn_small_batch_512clients", "ffn", 1, 512, 16, 1, 8192, 0, true},
    {"ffn_small_batch_512clients_32handlers", "ffn", 1, 512, 16, 1, 8192, 32, true},
    {"ffn_massive", "ffn", 16, 512, 16, 512, 8192, 0, false},
    {"minimalistic", "ffn", 1, 1, 16, 2048, 0, 1, true},
    {"nop", "nop", 16, 128, 16, 2048, 0, 0, false},
};

static const struct option_spec specs[] = {
    {.name = "preset",
     .kind = OPTION_CHOICE,
     .choices = "default|ffn_forward_backward|ffn_forward|ffn_small_batch|"
                "ffn_small_batch_512clients|ffn_small_batch_512clients_32handlers|ffn_massive|"
                "minimalistic|nop",
     .default_text = "default",
     .help = "hivemind's settings; default is ffn_forward_backward: 16 experts, 128 clients, 16 "
             "batches of 2048 rows each"},
    {.name = "num-experts",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1024,
     .help = "instead of the preset's"},
    {.name = "num-clients",
     .kind = OPTION_INT,
     .min = 1,
     .max = 65536,
     .help = "instead of the preset's"},
    {.name = "num-batches-per-client",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1000000,
     .help = "instead of the preset's"},
    {.name = "batch-size",
     .kind = OPTION_INT,
     .min = 1,
     .max = 65536,
     .unit = "rows",
     .help = "instead of the preset's"},
    {.name = "hidden-dim",
     .kind = OPTION_INT,
     .min = 1,
     .max = 65536,
     .default_text = "1024",
     .help = "width of the experts"},
    {.name = "precision",
     .kind = OPTION_CHOICE,
     .choices = "float32|bfloat16",
     .default_text = "float32",
     .help = "what the node computes in"},
    {.name = "num-connections",
     .kind = OPTION_INT,
     .min = 1,
     .max = MAX_CONNECTIONS,
     .help = "encrypted connections that the clients share",
     .unset = "8, or so many that replies in flight on each stay below 64 MiB, the limit of a"
              " node"},
    BENCH_OPTION_RUNS(BENCH_MAX_RUNS, "1", "each with a new node; medians are shown"),
    BENCH_OPTION_JSON,
};

static const struct option_table table = {
    .command = "bench throughput",
    .summary = "Measures a node under load: samples per second next to what its compute alone "
               "would do, start-up, memory, and where the time of calls goes.",
    .example = "skep bench throughput --preset ffn_small_batch\n"
               "skep bench throughput --num-experts 4 --num-clients 16 --num-batches-per-client 2 "
               "--batch-size 256",
    .specs = specs,
    .count = OPTION_COUNT(specs),
};

/* ---- what is run */

struct plan {
    struct preset preset; /* as the options change it */
    int64_t hidden;
    const char *precision;
    size_t connections;
};

/* What one run found. */
struct figures {
    double samples_per_s, compute_samples_per_s;
    double start_s, resident_mib;
    double compute_share, waiting_share, transport_share; /* of the calls' time, in % */
};

struct connection {
    struct skep_client *client;
    struct skep_remote_expert **experts; /* owned, each and the list */
};

struct run {
    const struct plan *plan;
    struct bench_node node;
    struct connection connections[MAX_CONNECTIONS];
    DLManagedTensor *rows, *ones; /* what all clients send */
    pthread_mutex_t lock;         /* guards all below */
    pthread_cond_t changed;
    size_t clients_left;
    uint64_t calls, call_ns; /* that have ended, and their time */
    struct caller *held;     /* whom a full queue has refused, to try again */
    uint64_t held_ns;        /* how long they have been held */
    struct skep_error error; /* the first */
};

struct caller {
    struct run *run;
    struct connection *connection;
    struct skep_remote_expert *expert; /* of this batch */
    uint64_t random;
    int64_t batches_left;
    bool is_backward;
    uint64_t start_ns;
    struct caller *next_held;
    uint64_t held_since_ns;
};

/* ---- one client */

static void start_batch(struct caller *c);

static void end_client(struct caller *c, const struct skep_error *err)
{
    struct run *run = c->run;

    pthread_mutex_lock(&run->lock);
    if (err != NULL && run->error.status == SKEP_OK)
        run->error = *err;
    run->clients_left--;
    pthread_cond_signal(&run->changed);
    pthread_mutex_unlock(&run->lock);
}

static bool note_call(struct run *run, uint64_t ns)
{
    pthread_mutex_lock(&run->lock);
    run->calls++;
    run->call_ns += ns;
    bool goes_on = run->error.status == SKEP_OK;
    pthread_mutex_unlock(&run->lock);
    return goes_on;
}

static void call_done(struct skep_call *call, void *arg);

static void send_call(struct caller *c)
{
    const DLTensor *rows[1] = {&c->run->rows->dl_tensor};
    const DLTensor *ones[1] = {&c->run->ones->dl_tensor};
    const struct skep_call_options options = {.timeout_ms = CALL_TIMEOUT_MS};
    struct skep_call *call;
    struct skep_error err;
    skep_status rc;

    if (c->is_backward)
        rc = skep_remote_expert_backward_start(c->expert, rows, 1, ones, 1, &options, call_done, c,
                                               &call, &err);
    else
        rc = skep_remote_expert_forward_start(c->expert, rows, 1, &options, call_done, c, &call,
                                              &err);
    if (rc != SKEP_OK)
        end_client(c, &err);
}

static void start_call(struct caller *c)
{
    c->start_ns = bench_now_ns();
    send_call(c);
}

/* Keeps a client whose call met a full queue, until there is likely to be room. */
static void hold(struct caller *c)
{
    struct run *run = c->run;

    c->held_since_ns = bench_now_ns();
    pthread_mutex_lock(&run->lock);
    c->next_held = run->held;
    run->held = c;
    pthread_mutex_unlock(&run->lock);
}

/* Lets clients that are held try again, `count` of them. */
static void release(struct run *run, size_t count)
{
    for (; count > 0; count--) {
        pthread_mutex_lock(&run->lock);
        struct caller *c = run->held;
        if (c != NULL) {
            run->held = c->next_held;
            run->held_ns += bench_now_ns() - c->held_since_ns;
        }
        pthread_mutex_unlock(&run->lock);
        if (c == NULL)
            return;
        send_call(c);
    }
}

static void call_done(struct skep_call *call, void *arg)
{
    struct caller *c = arg;
    uint64_t ns = bench_now_ns() - c->start_ns;
    DLManagedTensor *result;
    struct skep_error err;
    size_t count;
    skep_status rc = skep_call_result(call, &result, 1, &count, &err);

    if (rc == SKEP_OK)
        skep_tensor_free(result);
    skep_call_free(call);
    if (rc == SKEP_RESOURCE_EXHAUSTED && err.retry_after_ms > 0) {
        hold(c);
        return;
    }
    release(c->run, 1); /* what has ended has left room */
    if (rc != SKEP_OK) {
        end_client(c, &err);
    } else if (!note_call(c->run, ns)) {
        end_client(c, NULL); /* another client has failed */
    } else if (c->run->plan->preset.backward && !c->is_backward) {
        c->is_backward = true;
        start_call(c);
    } else {
        start_batch(c);
    }
}

static void start_batch(struct caller *c)
{
    if (c->batches_left == 0) {
        end_client(c, NULL);
        return;
    }
    c->batches_left--;
    c->is_backward = false;
    c->random = c->random * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
    c->expert = c->connection->experts[(c->random >> 33) % (uint64_t)c->run->plan->preset.experts];
    start_call(c);
}

/* ---- node and connections */

static skep_status start_node(struct run *run, struct skep_error *err)
{
    const struct preset *p = &run->plan->preset;
    char pattern[48], experts[24], hidden[24], max_batch[24], queue[24], handlers[24];
    const char *arguments[] = {"node",
                               "--listen",
                               "127.0.0.1:*",
                               "--no-dht",
                               "--expert-pattern",
                               pattern,
                               "--num-experts",
                               experts,
                               "--expert-cls",
                               p->cls,
                               "--hidden-dim",
                               hidden,
                               "--precision",
                               run->plan->precision,
                               "--max-batch-size",
                               max_batch,
                               "--max-queued-tasks",
                               queue,
                               "--stall-timeout",
                               "0",
                               "--log-level",
                               "error",
                               p->handlers > 0 ? "--num-handlers" : NULL,
                               handlers,
                               NULL};

    snprintf(pattern, sizeof(pattern), "bench.[0:%" PRId64 "]", p->experts);
    snprintf(experts, sizeof(experts), "%" PRId64, p->experts);
    snprintf(hidden, sizeof(hidden), "%" PRId64, run->plan->hidden);
    snprintf(max_batch, sizeof(max_batch), "%" PRId64, p->max_batch);
    snprintf(queue, sizeof(queue), "%" PRId64, p->clients + 1); /* one each at a time */
    snprintf(handlers, sizeof(handlers), "%" PRId64, p->handlers);
    return bench_node_start(&run->node, arguments, err);
}

static skep_status connect_one(struct run *run, struct connection *c, struct skep_error *err)
{
    const size_t count = (size_t)run->plan->preset.experts;
    const char *endpoint = bench_node_fact(&run->node, "endpoint");
    const char *peer = bench_node_fact(&run->node, "peer_id");
    const json_t *list = json_object_get(run->node.facts, "experts");
    struct skep_client_options options;

    skep_client_options_init(&options);
    options.no_dht = true;
    options.max_in_flight = UINT32_MAX;
    c->experts = mem_calloc(count, sizeof(struct skep_remote_expert *));
    if (c->experts == NULL)
        return error_no_memory(err, "benchmark", count * sizeof(*c->experts));
    skep_status rc = skep_client_new(&options, &c->client, err);
    for (size_t i = 0; i < count && rc == SKEP_OK; i++) {
        const char *uid = json_string_value(json_object_get(json_array_get(list, i), "uid"));
        rc = skep_client_expert_at(c->client, uid != NULL ? uid : "", endpoint, peer,
                                   &c->experts[i], err);
    }
    /* The handshake is none of the calls' time. */
    struct skep_expert_info info;
    if (rc == SKEP_OK)
        rc = skep_remote_expert_info(c->experts[0], 0, &info, err);
    return rc;
}

static void disconnect(struct run *run)
{
    for (size_t i = 0; i < run->plan->connections; i++) {
        struct connection *c = &run->connections[i];
        for (int64_t k = 0; c->experts != NULL && k < run->plan->preset.experts; k++)
            skep_remote_expert_free(c->experts[k]);
        mem_free(c->experts);
        skep_client_free(c->client);
    }
}

static skep_status make_rows(struct run *run, struct skep_error *err)
{
    const int64_t shape[2] = {run->plan->preset.rows, run->plan->hidden};
    const size_t n = (size_t)shape[0] * (size_t)shape[1];
    skep_status rc = skep_tensor_new(DTYPE_F32, 2, shape, &run->rows, err);

    if (rc == SKEP_OK)
        rc = skep_tensor_new(DTYPE_F32, 2, shape, &run->ones, err);
    if (rc != SKEP_OK)
        return rc;
    float *x = skep_tensor_data(&run->rows->dl_tensor);
    float *g = skep_tensor_data(&run->ones->dl_tensor);
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)((i * 2654435761u) % 1000) * 2e-3f - 1.0f;
        g[i] = 1.0f; /* of the sum of all outputs */
    }
    return SKEP_OK;
}

/* ---- a run */

static void show_calls(struct run *run, struct progress *progress)
{
    const struct preset *p = &run->plan->preset;
    uint64_t done = run->calls * (uint64_t)p->rows / (p->backward ? 2 : 1);
    char note[32];

    snprintf(note, sizeof(note), "%" PRIu64 " samples", done);
    progress_set(progress, run->calls, note);
}

static skep_status call_all(struct run *run, struct caller *callers, double *seconds,
                            struct progress *progress, struct skep_error *err)
{
    const struct preset *p = &run->plan->preset;
    uint64_t start_ns = bench_now_ns();

    run->clients_left = (size_t)p->clients;
    for (int64_t i = 0; i < p->clients; i++) {
        callers[i] = (struct caller){
            .run = run,
            .connection = &run->connections[(size_t)i % run->plan->connections],
            .random = (uint64_t)i + 1,
            .batches_left = p->batches,
        };
        start_batch(&callers[i]);
    }
    pthread_mutex_lock(&run->lock);
    while (run->clients_left > 0) {
        (void)cond_wait_until(&run->changed, &run->lock, clock_deadline_us(SHOW_MS));
        show_calls(run, progress);
        /* In case that nothing ends any more while somebody is held. */
        pthread_mutex_unlock(&run->lock);
        release(run, (size_t)p->clients);
        pthread_mutex_lock(&run->lock);
    }
    pthread_mutex_unlock(&run->lock);
    *seconds = (double)(bench_now_ns() - start_ns) / 1e9;
    if (run->error.status != SKEP_OK && err != NULL)
        *err = run->error;
    return run->error.status;
}

static double count_of(const json_t *stats, const char *direction, const char *key)
{
    return (double)json_integer_value(json_object_get(json_object_get(stats, direction), key));
}

/* What the node has counted, in microseconds: every task waits for its own turn, and for the whole
 * batch that it is worked on with. Clients that were refused have waited too. */
static void add_shares(const struct run *run, const json_t *stats, struct figures *f)
{
    static const char *const directions[] = {"forward", "backward"};
    double waiting = (double)run->held_ns / 1e3, compute = 0.0, busy = 0.0;
    double all = (double)run->call_ns / 1e3;

    for (int i = 0; i < 2; i++) {
        waiting += count_of(stats, directions[i], "wait_us");
        compute += count_of(stats, directions[i], "work_us");
        busy += count_of(stats, directions[i], "busy_us");
    }
    f->waiting_share = 100.0 * waiting / all;
    f->compute_share = 100.0 * compute / all;
    f->transport_share = 100.0 - f->waiting_share - f->compute_share;
    const struct preset *p = &run->plan->preset;
    double samples = (double)p->clients * (double)p->batches * (double)p->rows;
    f->compute_samples_per_s = busy > 0.0 ? samples / (busy / 1e6) : 0.0;
}

static skep_status measure(struct run *run, struct figures *f, struct progress *progress,
                           struct skep_error *err)
{
    const struct preset *p = &run->plan->preset;
    struct caller *callers = mem_calloc((size_t)p->clients, sizeof(*callers));
    json_t *stats = NULL;
    double seconds = 0.0;

    if (callers == NULL)
        return error_no_memory(err, "benchmark", (size_t)p->clients * sizeof(*callers));
    skep_status rc = start_node(run, err);
    f->start_s = (double)run->node.start_ns / 1e9;
    for (size_t i = 0; i < run->plan->connections && rc == SKEP_OK; i++)
        rc = connect_one(run, &run->connections[i], err);
    if (rc == SKEP_OK)
        rc = make_rows(run, err);
    if (rc == SKEP_OK)
        rc = call_all(run, callers, &seconds, progress, err);
    f->resident_mib = bench_node_resident_mib(&run->node);
    if (rc == SKEP_OK)
        rc = bench_node_finish(&run->node, &stats, err);
    if (rc == SKEP_OK) {
        f->samples_per_s = (double)p->clients * (double)p->batches * (double)p->rows / seconds;
        add_shares(run, stats, f);
    }
    json_decref(stats);
    disconnect(run); /* waits for the callbacks, which use the callers */
    mem_free(callers);
    return rc;
}

static skep_status one_run(const struct plan *plan, struct figures *f, struct progress *progress,
                           struct skep_error *err)
{
    struct run run = {.plan = plan, .lock = PTHREAD_MUTEX_INITIALIZER};

    cond_init(&run.changed);
    skep_status rc = measure(&run, f, progress, err);
    bench_node_stop(&run.node);
    skep_tensor_free(run.rows);
    skep_tensor_free(run.ones);
    pthread_cond_destroy(&run.changed);
    pthread_mutex_destroy(&run.lock);
    return rc;
}

/* ---- reporting */

struct row {
    const char *name, *unit;
    size_t value, baseline; /* offsets in struct figures; equal: no baseline */
};

static skep_status add_row(struct bench_frame *frame, const struct row *row,
                           const struct figures *figures, struct skep_error *err)
{
    double values[BENCH_MAX_RUNS], baselines[BENCH_MAX_RUNS];

    for (size_t i = 0; i < frame->runs; i++) {
        values[i] = *(const double *)(const void *)((const char *)&figures[i] + row->value);
        baselines[i] = *(const double *)(const void *)((const char *)&figures[i] + row->baseline);
    }
    return bench_frame_add(frame, row->name, row->unit, values,
                           row->baseline != row->value ? baselines : NULL, err);
}

static skep_status add_rows(struct bench_frame *frame, const struct plan *plan,
                            const struct figures *figures, struct skep_error *err)
{
    const struct preset *p = &plan->preset;
    char name[BENCH_CASE_BYTES];
    const struct row rows[] = {
        {name, "samples/s", offsetof(struct figures, samples_per_s),
         offsetof(struct figures, compute_samples_per_s)},
        {"node, start to ready", "s", offsetof(struct figures, start_s),
         offsetof(struct figures, start_s)},
        {"node after the load, resident", "MiB", offsetof(struct figures, resident_mib),
         offsetof(struct figures, resident_mib)},
        {"of a call's time: compute", "%", offsetof(struct figures, compute_share),
         offsetof(struct figures, compute_share)},
        {"of a call's time: waiting in the queue", "%", offsetof(struct figures, waiting_share),
         offsetof(struct figures, waiting_share)},
        {"of a call's time: transport", "%", offsetof(struct figures, transport_share),
         offsetof(struct figures, transport_share)},
    };
    skep_status rc = SKEP_OK;

    snprintf(name, sizeof(name),
             "%s %s, %" PRId64 " expert%s, %" PRId64 " x %" PRId64 " x %" PRId64
             " rows, %zu connection%s; compute",
             p->cls, p->backward ? "forward+backward" : "forward", p->experts,
             p->experts == 1 ? "" : "s", p->clients, p->batches, p->rows, plan->connections,
             plan->connections == 1 ? "" : "s");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && rc == SKEP_OK; i++)
        rc = add_row(frame, &rows[i], figures, err);
    return rc;
}

/* ---- the command */

static void take_option(const struct options *o, const char *name, int64_t *value)
{
    if (options_given(o, name))
        *value = options_int(o, name);
}

static size_t choose_connections(const struct options *o, const struct plan *plan)
{
    int64_t clients = plan->preset.clients;
    int64_t reply = plan->preset.rows * plan->hidden * (int64_t)sizeof(float);
    int64_t together = reply < REPLIES_BYTES ? REPLIES_BYTES / reply : 1; /* clients of one */
    int64_t count = (clients + together - 1) / together;

    if (count < MIN_CONNECTIONS)
        count = MIN_CONNECTIONS;
    if (options_given(o, "num-connections"))
        count = options_int(o, "num-connections");
    if (count > MAX_CONNECTIONS)
        count = MAX_CONNECTIONS;
    return (size_t)(count < clients ? count : clients);
}

static struct plan plan_of(const struct options *o)
{
    const char *wanted = options_string(o, "preset");
    struct plan plan = {
        .preset = presets[0],
        .hidden = options_int(o, "hidden-dim"),
        .precision = options_string(o, "precision"),
    };

    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++)
        if (strcmp(presets[i].name, wanted) == 0)
            plan.preset = presets[i];
    take_option(o, "num-experts", &plan.preset.experts);
    take_option(o, "num-clients", &plan.preset.clients);
    take_option(o, "num-batches-per-client", &plan.preset.batches);
    take_option(o, "batch-size", &plan.preset.rows);
    if (plan.preset.max_batch == 0)
        plan.preset.max_batch = 4 * plan.preset.rows;
    if (plan.preset.max_batch < plan.preset.rows)
        plan.preset.max_batch = plan.preset.rows;
    plan.connections = choose_connections(o, &plan);
    return plan;
}

static int check_precision(struct options *o)
{
    return strcmp(options_string(o, "preset"), "nop") == 0
               ? options_idle(o, "precision",
                              "does nothing with --preset nop, which computes nothing")
               : CLI_DONE;
}

static skep_status measure_throughput(struct bench_frame *frame, const struct options *o,
                                      struct skep_error *err)
{
    static struct figures figures[BENCH_MAX_RUNS];
    struct plan plan = plan_of(o);
    uint64_t calls = (uint64_t)plan.preset.clients * (uint64_t)plan.preset.batches *
                     (plan.preset.backward ? 2 : 1);
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < frame->runs && rc == SKEP_OK; i++) {
        bench_frame_expect(frame, calls);
        rc = one_run(&plan, &figures[i], &frame->progress, err);
    }
    return rc == SKEP_OK ? add_rows(frame, &plan, figures, err) : rc;
}

const struct bench_command bench_throughput = {
    .options = &table, .check = check_precision, .measure = measure_throughput};
