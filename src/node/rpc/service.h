/*
 * What a node answers: the methods of docs/methods.md over server.h's handlers.
 *
 * Threads: handlers run on I/O threads and don't block; answers come from whichever thread did the
 * work. Nothing here changes after service_init() but atomics.
 */
#ifndef SKEP_NODE_RPC_SERVICE_H
#define SKEP_NODE_RPC_SERVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <skep/node.h>
#include "net/server.h"
#include "node/reach/dial_back.h"
#include "node/lifecycle/local_expert.h"
#include "node/tracking/lease_server.h"
#include "node/rpc/idempotency.h"
#include "node/lifecycle/roster.h"
#include "node/tracking/tracking.h"

struct service {
    struct roster *roster; /* borrowed */
    int64_t max_batch_size;
    bool detect_anomalies;
    enum tensor_encoding encoding, grad_encoding; /* of replies to callers who don't say */
    struct idempotency_cache *idempotency;        /* borrowed */
    struct dial_back *dial_back;                  /* borrowed; NULL: not offered */
    struct lease_server *leases;                  /* the same */
    /* The same, but it comes and goes while calls are served. */
    struct tracking *_Atomic tracking;
    /* Fills in what the node knows; any thread. */
    void (*stats)(void *arg, struct skep_node_stats *out);
    /* "joining", "online" or "draining", as a node's record has it; any thread. */
    const char *(*state)(void *arg);
    void *stats_arg;
    const char *version;
    uint8_t peer_id[PEER_ID_BYTES];
    _Atomic uint64_t refused;   /* answered before any work */
    _Atomic uint64_t anomalies; /* requests that held NaN or infinity, refused or not */
};

/* `arg` of these handlers is the service. */
extern const struct server_handlers service_handlers;

/* Held: local_expert_release(); NULL with SKEP_NOT_FOUND in err if the node does not serve it. */
struct local_expert *service_hold(const struct service *service, const char *uid,
                                  struct skep_error *err);

/* requests.c: forward and backward. */
struct request;
/* HEADERS are here: checks them, and makes what the call needs. */
skep_status request_start(struct service *service, struct server_call *call,
                          const struct call_headers *headers, bool is_backward,
                          struct request **out, struct skep_error *err);
/* The tensors are here: looks at their numbers. Thread: any, before request_complete(). */
void request_prepare(struct request *request);
void request_complete(struct request *request);
/* The caller has its answer or, if it is gone, will never take one. */
void request_finished(struct request *request, bool is_gone_now);

/* reports.c: results in msgpack. */
void report_info(struct service *service, struct server_call *call,
                 const struct local_expert *local);
void report_stats(struct service *service, struct server_call *call);
void report_empty(struct server_call *call);

#endif
