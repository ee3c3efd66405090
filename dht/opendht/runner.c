/*
 * A runner: one OpenDHT node with our port checks, messages and bookkeeping. Every put and get is
 * an `operation` in a list until it has ended, so that runner_free() can promise that each `done`
 * has run, whatever OpenDHT does with operations it is shut down over.
 */
#include "dht/opendht/runner_internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/thread.h"
#include "dht/opendht/opendht_ext.h"
#include "dht/record/served_values.h"
#include "dht/opendht/udp_port.h"

enum {
    /* Stop pipe, two sockets, the port checks, and what GnuTLS and the resolver open for a moment.
     */
    LOW_DESCRIPTORS = 12,
    DEFAULT_STORAGE_BYTES = 64 << 20,
    PUBLIC_ADDRESSES_MAX = 32, /* OpenDHT remembers so many */
    MISDATED_LOG_MS = 60 * 1000,
    PICK_ATTEMPTS = 8, /* another program may take a picked port before OpenDHT binds it */
};

/*
 * Counted: one reference of the list while it is under way, one of OpenDHT's closures. A closure
 * that outlives the runner finds `over` set and touches nothing but the operation.
 */
struct operation {
    atomic_uint refs;
    atomic_bool over;    /* `done` has been called or is about to be */
    atomic_bool stopped; /* the caller wants no more values */
    bool is_put;
    struct runner *runner;
    struct operation *next, *prev; /* guarded by runner->lock */
    runner_value_fn value;
    runner_reply_fn reply; /* NULL: not wanted */
    runner_done_fn done;
    void *arg;
};

static void operation_unref(struct operation *op)
{
    /* Release and acquire: the last holder must see all that the others wrote. */
    if (atomic_fetch_sub_explicit(&op->refs, 1, memory_order_acq_rel) == 1)
        mem_free(op);
}

/* Calls `done` unless that has happened, and takes the operation off the list. */
static void operation_end(struct operation *op, bool ok)
{
    struct runner *runner = op->runner;

    if (atomic_exchange(&op->over, true))
        return;
    pthread_mutex_lock(&runner->lock);
    if (op->prev != NULL)
        op->prev->next = op->next;
    else
        runner->operations = op->next;
    if (op->next != NULL)
        op->next->prev = op->prev;
    pthread_mutex_unlock(&runner->lock);

    if (op->done != NULL)
        op->done(op->arg, ok);

    pthread_mutex_lock(&runner->lock);
    if (op->is_put)
        runner->puts--;
    pthread_cond_broadcast(&runner->ended);
    pthread_mutex_unlock(&runner->lock);
    operation_unref(op);
}

static bool on_value(void *arg, uint64_t value_id, const uint8_t *data, size_t len)
{
    struct operation *op = arg;

    if (atomic_load(&op->over) || atomic_load(&op->stopped))
        return false;
    if (op->value(op->arg, value_id, data, len))
        return true;
    atomic_store(&op->stopped, true);
    return false;
}

static bool on_reply(void *arg)
{
    struct operation *op = arg;

    if (atomic_load(&op->over))
        return false;
    if (op->reply == NULL || op->reply(op->arg))
        return true;
    atomic_store(&op->stopped, true);
    return false;
}

static void on_done(void *arg, bool ok)
{
    operation_end(arg, ok);
}

static void on_release(void *arg)
{
    operation_end(arg, false);
    operation_unref(arg);
}

/* Lists a new operation; NULL, with `done` called, if it cannot be. */
static struct operation *operation_new(struct runner *runner, bool is_put, runner_value_fn value,
                                       runner_done_fn done, void *arg)
{
    struct operation *op = mem_calloc(1, sizeof(*op));
    bool listed = false;

    if (op != NULL) {
        atomic_init(&op->refs, 2);
        op->is_put = is_put;
        op->runner = runner;
        op->value = value;
        op->done = done;
        op->arg = arg;
        pthread_mutex_lock(&runner->lock);
        listed = !runner->closing;
        if (listed) {
            op->next = runner->operations;
            if (op->next != NULL)
                op->next->prev = op;
            runner->operations = op;
            runner->puts += is_put;
        }
        pthread_mutex_unlock(&runner->lock);
    }
    if (listed)
        return op;
    mem_free(op);
    if (done != NULL)
        done(arg, false);
    return NULL;
}

/*
 * A record that is refused for its dates comes from a live publisher, which hears nothing of it:
 * OpenDHT answers a put that is refused as it does one that is stored. It is fresh, so its date
 * tells how far the clocks differ.
 */
static void say_misdated(struct runner *runner, const uint8_t *key, const uint8_t *data, size_t len)
{
    static struct log_limit gate;
    unsigned long suppressed;
    struct record_misdated misdated;
    char peer[PEER_ID_SHORT_BYTES];
    int64_t now_s = clock_wall_ms() / 1000;

    if (!record_is_misdated(data, len, runner->swarm, key, now_s, &misdated))
        return;
    atomic_fetch_add_explicit(&runner->misdated, 1, memory_order_relaxed);
    if (!log_limit_passes(&gate, MISDATED_LOG_MS, &suppressed))
        return;
    peer_id_short(misdated.peer_id, peer);
    log_warn("DHT: records of peer %s are refused: they %s %lld s %s by our clock, and clocks may "
             "differ by %d s: check the clocks of both machines",
             peer, misdated.off_by_s < 0 ? "ended" : "are dated",
             (long long)(misdated.off_by_s < 0 ? -misdated.off_by_s : misdated.off_by_s),
             misdated.off_by_s < 0 ? "ago" : "ahead", RECORD_CLOCK_TOLERANCE_S);
}

static bool on_store(void *arg, const uint8_t key[OPENDHT_EXT_KEY_BYTES], uint64_t value_id,
                     const uint8_t *data, size_t len)
{
    struct runner *runner = arg;

    if (data != NULL &&
        record_store_policy(data, len, value_id, key, runner->swarm, clock_wall_ms() / 1000))
        return true;
    if (data != NULL)
        say_misdated(runner, key, data, len);
    atomic_fetch_add_explicit(&runner->refused, 1, memory_order_relaxed);
    return false;
}

static bool on_edit(void *arg, const uint8_t key[OPENDHT_EXT_KEY_BYTES], uint64_t value_id,
                    const uint8_t *old, size_t old_len, const uint8_t *data, size_t len)
{
    struct runner *runner = arg;
    const struct record_edit edit = {old, data, old_len, len, value_id, key};

    if (data != NULL && record_edit_policy(&edit, runner->swarm, clock_wall_ms() / 1000))
        return true;
    if (data != NULL)
        say_misdated(runner, key, data, len);
    atomic_fetch_add_explicit(&runner->refused, 1, memory_order_relaxed);
    return false;
}

static bool on_show(void *arg, const uint8_t key[OPENDHT_EXT_KEY_BYTES], uint64_t value_id,
                    size_t len, uint32_t lifetime_s)
{
    struct runner *runner = arg;

    return served_values_add(runner->served, key, value_id, len, clock_mono_us() / 1000000,
                             lifetime_s);
}

static void on_sent(void *arg, size_t bytes)
{
    struct runner *runner = arg;

    atomic_fetch_add_explicit(&runner->sent_packets, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&runner->sent_bytes, bytes, memory_order_relaxed);
}

/*
 * Requests a second, in all and from one address. OpenDHT's own limits lose packets when nodes
 * share an address and one looks things up in bulk. Measured with ten nodes on one host, 4,000
 * paced puts and gets at 64 under way: 10.1 s and 7.8 s with 15 gets lost under those limits; 0.7 s
 * each and none lost under these, the same as under none. What they still bound is the memory
 * OpenDHT keeps for counting: eight bytes a request of the last second.
 */
static void set_rates(struct opendht_ext_config *ext, bool unlimited)
{
    ext->max_req_per_sec = unlimited ? -1 : 131072;
    ext->max_peer_req_per_sec = unlimited ? -1 : 65536;
}

/* Starts OpenDHT with all signals blocked, so that its threads leave them to the main one. */
static bool run_dht(dht_runner *dht, const struct opendht_ext_config *ext, char *why, size_t bytes)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool ok = opendht_ext_run(dht, ext, why, bytes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}

static skep_status start(struct runner *runner, const struct runner_config *config,
                         const struct udp_port *port, struct skep_error *err)
{
    char text[ENDPOINT_TEXT_BYTES];
    char why[256];
    struct opendht_ext_config ext = {
        .bind4 = port->v4.len ? (const struct sockaddr *)&port->v4.sa : NULL,
        .bind4_len = port->v4.len,
        .bind6 = port->v6.len ? (const struct sockaddr *)&port->v6.sa : NULL,
        .bind6_len = port->v6.len,
        .network_id = config->network_id,
        .node_id = config->dht_id,
        .is_bootstrap = config->bootstrap_only,
        .is_client = config->is_client,
        /* Publishers refresh their records; keeping strangers' alive would only delay their end. */
        .maintain_storage = false,
        .storage_limit_bytes =
            config->storage_limit_bytes ? config->storage_limit_bytes : DEFAULT_STORAGE_BYTES,
        .type_lifetime_s = record_type_lifetime_s,
        .store = on_store,
        .edit = on_edit,
        .show = on_show,
        .sent = on_sent,
        .arg = runner,
    };

    set_rates(&ext, config->raise_rate_limits);
    runner->dht = dht_runner_new();
    if (runner->dht == NULL)
        return error_no_memory(err, "DHT runner", sizeof(struct runner));
    if (!run_dht(runner->dht, &ext, why, sizeof(why)))
        return error_set(err, SKEP_INTERNAL, "UDP %s: OpenDHT cannot start: %s",
                         endpoint_format(&config->listen, text), why);
    /* OpenDHT goes on quietly with one family if the other's port was taken meanwhile. */
    if ((port->v4.len && dht_runner_get_bound_port(runner->dht, AF_INET) != port->port) ||
        (port->v6.len && dht_runner_get_bound_port(runner->dht, AF_INET6) != port->port))
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "UDP port %u of %s: taken by another program while starting",
                         (unsigned)port->port, endpoint_format(&config->listen, text));
    runner->port = port->port;
    return SKEP_OK;
}

static void stop(struct runner *runner)
{
    opendht_ext_delete(runner->dht);
    runner->dht = NULL;
}

/* Starts on the wanted port, or on some free one. */
static skep_status start_somewhere(struct runner *runner, const struct runner_config *config,
                                   struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    for (int attempt = 0; attempt < PICK_ATTEMPTS; attempt++) {
        struct udp_port port;
        rc = udp_port_probe(&config->listen, &port, err);
        if (rc != SKEP_OK)
            return rc;
        rc = start(runner, config, &port, err);
        if (rc == SKEP_OK)
            return rc;
        stop(runner);
        if (config->listen.port != 0)
            return rc;
    }
    return rc;
}

void runner_own_process(void)
{
    opendht_ext_refuse_unknown_types();
}

skep_status runner_new(const struct runner_config *config, struct runner **out,
                       struct skep_error *err)
{
    char text[ENDPOINT_TEXT_BYTES];

    *out = NULL;
    if (config->network_id == 0)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "DHT network id: 0 is OpenDHT's public network, expected another number");
    skep_status rc = fd_check_low_free(LOW_DESCRIPTORS, err);
    if (rc != SKEP_OK)
        return rc;
    struct runner *runner = mem_calloc(1, sizeof(*runner));
    if (runner == NULL)
        return error_no_memory(err, "DHT runner", sizeof(*runner));
    runner->swarm = config->swarm;
    runner->served = served_values_new();
    pthread_mutex_init(&runner->lock, NULL);
    cond_init(&runner->ended);
    rc = runner->served != NULL ? start_somewhere(runner, config, err)
                                : error_no_memory(err, "DHT runner", sizeof(*runner));
    if (rc != SKEP_OK) {
        runner_free(runner, 0);
        return rc;
    }
    if (!opendht_ext_ends_on_time())
        log_info(
            "DHT: this process loaded OpenDHT by itself: records of others are kept up to an hour "
            "after they have ended");
    log_debug("DHT on UDP %s, port %u, network %08x", endpoint_format(&config->listen, text),
              (unsigned)runner->port, (unsigned)config->network_id);
    *out = runner;
    return SKEP_OK;
}

void runner_free(struct runner *runner, uint64_t deadline_us)
{
    if (runner == NULL)
        return;
    pthread_mutex_lock(&runner->lock);
    runner->closing = true;
    /* Only puts are worth waiting for: what is asked for now, nobody will use. */
    while (runner->puts > 0 && cond_wait_until(&runner->ended, &runner->lock, deadline_us))
        ;
    pthread_mutex_unlock(&runner->lock);

    stop(runner); /* most of what is left ends here, as its closures go */
    for (;;) {
        pthread_mutex_lock(&runner->lock);
        struct operation *op = runner->operations;
        pthread_mutex_unlock(&runner->lock);
        if (op == NULL)
            break;
        operation_end(op, false);
    }
    runner_free_listens(runner);
    served_values_free(runner->served);
    pthread_cond_destroy(&runner->ended);
    pthread_mutex_destroy(&runner->lock);
    mem_free(runner);
}

uint16_t runner_port(const struct runner *runner)
{
    return runner->port;
}

void runner_contact(struct runner *runner, const struct address *address)
{
    opendht_ext_contact(runner->dht, (const struct sockaddr *)&address->sa, address->len);
}

void runner_check_dubious(struct runner *runner)
{
    opendht_ext_hurry(runner->dht);
}

void runner_introduce(struct runner *runner)
{
    opendht_ext_introduce(runner->dht);
}

void runner_status(struct runner *runner, struct runner_status *out)
{
    struct opendht_ext_stats stats;

    runner_end_listens(runner); /* whoever runs a node looks at it now and then */
    opendht_ext_read_stats(runner->dht, &stats);
    *out = (struct runner_status){
        .good_nodes = stats.good_nodes,
        .dubious_nodes = stats.dubious_nodes,
        .storage_values = stats.storage_values,
        .storage_bytes = stats.storage_bytes,
        .values_refused = atomic_load_explicit(&runner->refused, memory_order_relaxed),
        .values_misdated = atomic_load_explicit(&runner->misdated, memory_order_relaxed),
    };
    pthread_mutex_lock(&runner->lock);
    out->listens = runner->listens;
    pthread_mutex_unlock(&runner->lock);
}

void runner_traffic(const struct runner *runner, struct runner_traffic *out)
{
    out->packets = atomic_load_explicit(&runner->sent_packets, memory_order_relaxed);
    out->bytes = atomic_load_explicit(&runner->sent_bytes, memory_order_relaxed);
}

size_t runner_known_peers(struct runner *runner, struct address *out, size_t cap)
{
    struct sockaddr_storage *addresses = mem_calloc(cap, sizeof(*addresses));
    socklen_t *lens = mem_calloc(cap, sizeof(*lens));
    size_t count = 0;

    if (addresses != NULL && lens != NULL)
        count = opendht_ext_known_peers(runner->dht, addresses, lens, cap);
    for (size_t i = 0; i < count; i++)
        out[i] = (struct address){.sa = addresses[i], .len = lens[i]};
    mem_free(lens);
    mem_free(addresses);
    return count;
}

size_t runner_public_addresses(struct runner *runner, bool v6, struct endpoint *out, size_t cap)
{
    struct sockaddr_storage seen[PUBLIC_ADDRESSES_MAX];
    size_t count =
        opendht_ext_public_addresses(runner->dht, v6 ? AF_INET6 : AF_INET, seen,
                                     cap < PUBLIC_ADDRESSES_MAX ? cap : PUBLIC_ADDRESSES_MAX);

    for (size_t i = 0; i < count; i++) {
        endpoint_from_address(&out[i], (const struct sockaddr *)&seen[i]);
        out[i].port = runner->port;
    }
    return count;
}

bool runner_public_address(struct runner *runner, bool v6, struct endpoint *out)
{
    return runner_public_addresses(runner, v6, out, 1) == 1;
}

void runner_put(struct runner *runner, const uint8_t key[static RECORD_KEY_BYTES],
                const struct runner_value *value, runner_put_fn done, void *arg)
{
    /* OpenDHT would try a value that is too long for nine seconds and give no reason. */
    if (value->len > RECORD_MAX_PREFIX_BYTES || value->type >= RECORD_TYPE_COUNT ||
        value->id == 0) {
        log_warn("DHT put refused: %zu bytes, type %u, id %llu", value->len, value->type,
                 (unsigned long long)value->id);
        if (done != NULL)
            done(arg, false);
        return;
    }
    struct operation *op = operation_new(runner, true, NULL, done, arg);
    if (op == NULL)
        return;
    const struct opendht_ext_calls calls = {
        .done = on_done,
        .release = on_release,
        .arg = op,
    };
    opendht_ext_put(runner->dht, key, value->id, value->type, value->data, value->len, &calls);
}

void runner_push(struct runner *runner, const uint8_t key[static RECORD_KEY_BYTES])
{
    opendht_ext_push(runner->dht, key);
}

void runner_get(struct runner *runner, const uint8_t key[static RECORD_KEY_BYTES],
                runner_value_fn value, runner_done_fn done, void *arg)
{
    runner_get_replies(runner, key, value, NULL, done, arg);
}

/* The calls of an operation that finds values; false, with `done` called, if there is none. */
static bool get_calls(struct runner *runner, runner_value_fn value, runner_reply_fn reply,
                      runner_done_fn done, void *arg, struct opendht_ext_calls *out)
{
    struct operation *op = operation_new(runner, false, value, done, arg);

    if (op == NULL)
        return false;
    op->reply = reply; /* before OpenDHT hears of it */
    *out = (struct opendht_ext_calls){
        .value = on_value,
        .reply = on_reply,
        .done = on_done,
        .release = on_release,
        .arg = op,
    };
    return true;
}

void runner_get_replies(struct runner *runner, const uint8_t key[static RECORD_KEY_BYTES],
                        runner_value_fn value, runner_reply_fn reply, runner_done_fn done,
                        void *arg)
{
    struct opendht_ext_calls calls;

    if (get_calls(runner, value, reply, done, arg, &calls))
        opendht_ext_get(runner->dht, key, &calls);
}

void runner_query(struct runner *runner, const uint8_t key[static RECORD_KEY_BYTES],
                  runner_value_fn value, runner_reply_fn reply, runner_done_fn done, void *arg)
{
    struct opendht_ext_calls calls;

    if (get_calls(runner, value, reply, done, arg, &calls))
        opendht_ext_query(runner->dht, key, &calls);
}
