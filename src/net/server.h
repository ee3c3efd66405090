/*
 * The serving side of the transport: listeners, one per I/O thread (SO_REUSEPORT), and the calls
 * that come in over them.
 *
 * Threads: server_new() starts `io_threads` loops, and two threads for what would hold a loop for
 * longer than a millisecond: large tensors are decoded, prepared and encoded there (offload.h).
 * Handlers but `prepare` run on the loops and must not block; but
 * `finished` may also run inside server_call_reply(), on the thread that replies. So it must take
 * no lock that is held while replying. A call's functions may be used from any thread.
 */
#ifndef SKEP_NET_SERVER_H
#define SKEP_NET_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "base/endpoint.h"
#include "net/session.h"

struct server;
struct server_call;

struct server_handlers {
    /* HEADERS have come, the tensors not yet. Other than SKEP_OK answers at once (sentence in err).
     * *user is kept with the call. */
    skep_status (*started)(void *arg, struct server_call *call, const struct call_headers *headers,
                           void **user, struct skep_error *err);
    /*
     * The whole request is here, decoded; `complete` follows. For what takes time over its tensors,
     * without an answer: for large requests it runs on a thread other than the loop's. `finished`
     * never runs beside it. NULL: nothing to do.
     */
    void (*prepare)(void *arg, struct server_call *call);
    /* The whole request is here, decoded and prepared. Tensors are the call's
     * (server_call_tensors()). Answer with server_call_reply() exactly once, now or later, on any
     * thread. */
    void (*complete)(void *arg, struct server_call *call);
    /* The last event of every call whose `started` returned SKEP_OK: answered, refused or its
     * caller gone. `user` may be freed if `complete` never came or server_call_reply() was called
     * before. If the caller is gone (server_call_is_gone()), it may call server_call_reply(). */
    void (*finished)(void *arg, struct server_call *call, void *user);
};

struct server_config {
    struct endpoint listen; /* port 0 picks one; every address of a name is listened on */
    unsigned io_threads;
    /*
     * Beyond: the oldest connection of the same I/O thread that has not finished its handshake
     * makes room, if it has had handshake_grace_ms for it; else the newest is closed, counted,
     * logged. So silent strangers cannot keep peers out, while a burst of peers loses none to its
     * own latecomers.
     */
    unsigned max_connections;
    uint32_t handshake_grace_ms;          /* 0: the default, 1,000 */
    unsigned max_connections_per_address; /* the same for one IPv4 address or IPv6 /64: a silent one
                                             of that address makes room. Loopback is not counted. */
    const struct identity *identity;      /* borrowed until server_free() */
    const uint8_t *psk;                   /* as session_config */
    bool plaintext;
    const char *swarm;
    struct session_limits limits;
    struct server_handlers handlers;
    void *arg;
};

struct server_counters {
    uint64_t connections_accepted, connections_open, connections_refused, handshakes_failed,
        protocol_errors, calls, bytes_in, bytes_out;
    uint64_t handshakes_evicted; /* of handshakes_failed: closed to make room */
    /* Tensors of replies that held NaN or infinity and so travelled as float32. */
    uint64_t not_encoded;
};

/*
 * Listens and serves. @return SKEP_FAILED_PRECONDITION, naming the endpoint, if the port is in use;
 * SKEP_PERMISSION_DENIED if it may not be bound; SKEP_UNAVAILABLE if the host does not resolve or
 * is not this machine's.
 */
SKEP_MUST_CHECK skep_status server_new(const struct server_config *config, struct server **out,
                                       struct skep_error *err);
/* What getsockname() says: the port really bound. */
void server_endpoint(const struct server *server, struct endpoint *out);
void server_counters(const struct server *server, struct server_counters *out);

/* Returns once each I/O thread has come round its loop: it hangs if one of them does. */
void server_touch(struct server *server);

/* Stops listening and tells every peer GOAWAY; open calls go on. Does not block. Thread: any. */
void server_drain(struct server *server, const char *reason);
/* Waits until no call is open or the deadline; returns whether none is. */
bool server_wait_idle(struct server *server, uint64_t deadline_us);
/* Ends everything. Calls not answered yet are gone (`finished` runs) before this returns; those
 * whose reply is still owed by another thread must have been replied to before this is called, or
 * be replied to before server_free(). NULL is allowed. */
void server_stop(struct server *server);
void server_free(struct server *server);

/* Views of the call, valid until server_call_reply() (for `headers`, until finished). */
const struct call_headers *server_call_headers(const struct server_call *call);
DLManagedTensor **server_call_tensors(struct server_call *call,
                                      size_t *count); /* still owned by call */
/* Takes the tensors over: the caller frees them (the array stays the call's). */
void server_call_take_tensors(struct server_call *call);
const uint8_t *server_call_peer_id(const struct server_call *call);
void server_call_peer_address(const struct server_call *call, struct endpoint *out);
void *server_call_user(const struct server_call *call);
uint64_t server_call_deadline_us(const struct server_call *call); /* CLOCK_NEVER if none */
/* Whether the caller is gone: work for it is wasted. Thread: any. */
bool server_call_is_gone(const struct server_call *call);
/*
 * The caller is to be known to live while the call is open: as session_watch(). If it does not, its
 * connection ends, and with it the call. Inside `complete` only.
 */
void server_call_watch(struct server_call *call, uint32_t silence_ms);
/*
 * In which encoding the reply's F32 tensors should travel: they do if the peer takes it, it saves
 * bytes, and NaN and infinity have a place in it or do not occur. ENCODING_NONE if never called.
 * Before server_call_reply(), by who replies.
 */
void server_call_set_encoding(struct server_call *call, enum tensor_encoding encoding);
/*
 * Answers. @param result msgpack, may be NULL; copied. @param tensors always taken.
 * @param err  its status, sentence and retry hint are sent; NULL or SKEP_OK for success.
 * Thread: any. Also right when the caller is gone: then it only frees. The call is invalid after.
 */
void server_call_reply(struct server_call *call, const struct skep_error *err,
                       const uint8_t *result, size_t result_len, DLManagedTensor **tensors,
                       size_t tensor_count);

#endif
