/*
 * The tracker's sockets: one loop of its own, on a thread of its own ("skep-tracker").
 *
 * Threads: functions marked "loop" run on that loop's thread only: inside its events, or through
 * loop_call() / loop_post() on tracker_server_loop(). The others may be called from any thread but
 * that one. Events run on the loop's thread and must not block; they may call the "loop" functions,
 * except where scheduler.h forbids it: tracker_server_answer() and the like are to be posted.
 */
#ifndef SKEP_TRACKER_SERVER_H
#define SKEP_TRACKER_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include <skep/tracker.h>
#include "base/endpoint.h"
#include "net/loop.h"
#include "tracker/scheduler.h"

struct tracker_server;

struct tracker_server_events { /* each may be NULL */
    /* Numbers of a key have changed; at most once a key and turn of the loop. With nothing free and
     * nothing pending its last resource has gone (or is handed out). */
    void (*key_changed)(void *arg, const struct scheduler_key_counters *counters);
    /* As scheduler_events. */
    void (*waiting)(void *arg, const struct scheduler_request *request);
    void (*ended)(void *arg, uint64_t id, struct tracker_text key, enum scheduler_end how);
    /* Somebody asks for DHT peers (TRACKER_DHT_PEERS): appends the JSON of the answer, `[0,
     * {...}]`; false if there is none to give. NULL: the code is unknown here. */
    bool (*dht_peers)(void *arg, struct bytes *json);
    /* It has stopped: by STOP, tracker_server_request_stop() or tracker_server_free(). The last
     * event. */
    void (*stopped)(void *arg);
};

struct tracker_server_config {
    const char *host; /* name or address; borrowed for the call */
    uint16_t port;    /* the first free one of [port, port_end) is taken; port 0 picks any */
    uint32_t port_end;
    bool reuse_addr;            /* also a port on which connections of an earlier process linger */
    bool silent;                /* log warnings only */
    uint32_t report_interval_s; /* between two lines of the log about what it does; 0: none */
    uint32_t timeout_ms; /* of a message under way and of answers that are not read; 0: none */
    /* Beyond: the oldest that has not sent the magic number within greeting_grace_ms makes room;
     * else the newest is refused. 0: 65,536. */
    unsigned max_connections;
    uint32_t greeting_grace_ms; /* 0: the default, 1,000 */
    size_t max_unsent_bytes;    /* of one connection; beyond, it is read no further. 0: 256 KiB */
    const char *stop_key;       /* borrowed for the call; NULL: "tracker:<random>" */
    struct scheduler_limits limits;
    struct tracker_server_events events;
    void *arg;
};

struct tracker_server_counters {
    uint64_t connections_open, connections_accepted, connections_refused;
    uint64_t protocol_errors; /* connections closed for what they sent */
    uint64_t timeouts;        /* closed for what they did not send or read */
    uint64_t messages;        /* requests understood */
    uint64_t servers;         /* connections that gave their info as "server..." */
    uint64_t bytes_in, bytes_out;
    struct scheduler_totals scheduler;
};

/*
 * Listens and serves.
 * @return SKEP_FAILED_PRECONDITION naming the range if no port of it is free; SKEP_INVALID_ARGUMENT
 *         for an empty range or a bad host; SKEP_PERMISSION_DENIED; SKEP_UNAVAILABLE if the host
 *         does not resolve or is not this machine's.
 */
SKEP_MUST_CHECK skep_status tracker_server_new(const struct tracker_server_config *config,
                                               struct tracker_server **out, struct skep_error *err);
/* Whether it would find a free port now: host, port, port_end and reuse_addr count. Errors as
 * tracker_server_new(). */
SKEP_MUST_CHECK skep_status tracker_server_check(const struct tracker_server_config *config,
                                                 struct skep_error *err);
/* Stops if need be, at once, waits and frees. NULL is allowed. */
void tracker_server_free(struct tracker_server *server);

uint16_t tracker_server_port(const struct tracker_server *server);                       /* any */
void tracker_server_endpoint(const struct tracker_server *server, struct endpoint *out); /* any */
const char *tracker_server_stop_key(const struct tracker_server *server);                /* any */
struct loop *tracker_server_loop(struct tracker_server *server);                         /* any */
/* Stops accepting, sends what is answered already, closes. Returns at once. Async-signal-safe;
 * also from the loop's thread. */
void tracker_server_request_stop(struct tracker_server *server);
/* Ends it now, whatever is unsent; has stopped when it returns. */
void tracker_server_end(struct tracker_server *server);
/* Whether it has stopped, at the latest at the deadline. */
bool tracker_server_wait(struct tracker_server *server, uint64_t deadline_us);
void tracker_server_counters(struct tracker_server *server, struct tracker_server_counters *out);
/* The same, as the public header has it. */
void tracker_server_stats(struct tracker_server *server, struct skep_tracker_stats *out);
/* The text of the answer to SUMMARY. @param out  appended to. @return SKEP_RESOURCE_EXHAUSTED. */
SKEP_MUST_CHECK skep_status tracker_server_summary(struct tracker_server *server, struct bytes *out,
                                                   struct skep_error *err);

/* Loop: the scheduler itself, for scheduler_counters(), scheduler_each_free() ... */
struct scheduler *tracker_server_scheduler(struct tracker_server *server);
/* Loop: as scheduler_answer(), _take(), _confirm(), _return(); what they cause is sent. */
bool tracker_server_answer(struct tracker_server *server, struct tracker_text key,
                           const struct tracker_resource *resource);
uint64_t tracker_server_take(struct tracker_server *server, struct tracker_text key,
                             struct tracker_resource *resource);
void tracker_server_confirm(struct tracker_server *server, uint64_t taken);
bool tracker_server_return(struct tracker_server *server, uint64_t taken);

#endif
