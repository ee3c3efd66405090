/*
 * One secure connection without its socket: bytes in, events and bytes out.
 *
 * Does the handshake, frames, streams, window credit, PING, GOAWAY and CANCEL of docs/protocol.md
 * for either role. The initiator opens calls, the responder answers them. It has no thread, socket
 * or clock of its own: one thread uses it at a time, times are given in clock_mono_us() units.
 * Events run inside the call that caused them, and may call back into the session except
 * session_free().
 */
#ifndef SKEP_NET_SESSION_H
#define SKEP_NET_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "crypto/identity.h"
#include "crypto/noise.h"
#include "wire/message.h"

struct session;
struct session_stream; /* one call, seen from one side; a stream belongs to its session */

struct session_limits {
    struct message_limits message;
    uint32_t stream_window;     /* bytes a peer may send on a stream before we credit more */
    uint32_t connection_window; /* the same for all streams of the connection together */
    uint32_t max_streams;       /* open at once, per connection */
    uint64_t
        max_reply_backlog; /* bytes of replies waiting for the peer; beyond: new calls refused */
    uint32_t handshake_timeout_ms;
    uint32_t idle_timeout_ms;  /* responder: no open stream and nothing received for so long */
    uint32_t stall_timeout_ms; /* bytes owed in either direction, none moved for so long */
    uint32_t ping_period_ms;   /* initiator: PING after so long without receiving anything, while
                                  streams are open; 0: never */
};
extern const struct session_limits session_default_limits;

/* Borrowed until session_free(). */
struct session_config {
    bool initiator;
    const struct identity *identity;
    const uint8_t *psk;              /* 32 bytes: private swarm; NULL: public */
    bool plaintext;                  /* both sides must ask for it */
    enum noise_cipher cipher;        /* initiator's choice; a responder takes either */
    const uint8_t *expected_peer_id; /* 32 bytes: refuse anyone else (SKEP_UNAUTHENTICATED) */
    const char *swarm;               /* both sides must be in the same one */
    const struct session_limits *limits;
    int64_t (*wall_ms)(void); /* what the hello says of our clock; NULL: nothing */
};

struct session_peer {
    uint8_t peer_id[PEER_ID_BYTES];
    char agent[64];
    enum noise_cipher cipher;
    bool plaintext;
    unsigned minor;
    uint64_t features;
    uint64_t time_ms; /* its clock when it wrote its hello; 0: it does not say */
};

/*
 * Tensors pass through here as they travel: one whose descriptor has an encoding is given, and
 * handed out, as U8 [wire_bytes]. Who sends looks at the peer's features (hello_takes_encoding());
 * decoding is left to whoever has the time. Limits count what is larger, encoded or decoded.
 */
struct session_events {
    /* The handshake is done and the peer is who was expected. */
    void (*established)(void *arg, const struct session_peer *peer);

    /* Responder. HEADERS have come, tensors have not: a refusal saves receiving them. Return a
     * status other than SKEP_OK with a sentence in err to answer it at once. `*user` is kept with
     * the stream. The headers are a view until call_gone or call_answered; their memory ends behind
     * the last of tensor_count descriptors, so the struct must not be copied as a whole. */
    skep_status (*call_started)(void *arg, struct session_stream *stream,
                                const struct call_headers *headers, void **user,
                                struct skep_error *err);
    /* Responder. All tensors are here; each is taken by the callee (owned: skep_tensor_free()), the
     * array is a view for the call. Answer with session_reply(), now or later, exactly once unless
     * call_gone comes first. */
    void (*call_complete)(void *arg, struct session_stream *stream,
                          const struct call_headers *headers, DLManagedTensor **tensors,
                          void *user);
    /* Responder, for a call that was started (with SKEP_OK) and not yet answered in full: cancelled
     * by the peer, broken, or the connection ended. The stream is invalid after this returns. For
     * every call_started exactly one of call_gone and call_answered comes. */
    void (*call_gone)(void *arg, struct session_stream *stream, void *user);
    /* Responder. The reply's last byte has been handed out by session_send(). Stream invalid after.
     */
    void (*call_answered)(void *arg, struct session_stream *stream, void *user);

    /* Initiator. A call ended, for whatever reason, exactly once: `reply` with tensors (each taken,
     * the array a view) if the peer answered (whatever its status), else reply is NULL and err says
     * why. `sent` tells whether any of the call had been handed out by session_send(). The stream
     * and the reply, which is as long as its tensor_count (see call_started), are invalid after
     * this. */
    void (*call_done)(void *arg, struct session_stream *stream, void *user,
                      const struct reply_headers *reply, DLManagedTensor **tensors, bool sent,
                      const struct skep_error *err);

    /* The peer will take no more calls on this connection (it drains). */
    void (*goaway)(void *arg, const char *reason);

    /* Initiator. The PONG of the last PING has come. NULL: not needed. */
    void (*pong)(void *arg);
};

/* @param events borrowed until session_free(). @param out owned: session_free(). */
SKEP_MUST_CHECK skep_status session_new(const struct session_config *config,
                                        const struct session_events *events, void *arg,
                                        uint64_t now_us, struct session **out,
                                        struct skep_error *err);
/* Ends all streams (call_gone / call_done with SKEP_UNAVAILABLE, or `why` if not NULL), then frees.
 */
void session_free(struct session *s, const struct skep_error *why);

/*
 * Where the next received bytes should go: a buffer of at least 16 KiB owned by the session; it may
 * be a tensor's own memory. Valid until the next call into the session.
 */
void session_receive_buffer(struct session *s, uint8_t **data, size_t *cap);
/*
 * Takes `len` bytes that were put into the buffer of session_receive_buffer().
 * @return other than SKEP_OK if the connection must end: what session_send() still gives (a GOAWAY
 *         with the reason) should be sent if the peer takes it at once, then the session is freed.
 */
SKEP_MUST_CHECK skep_status session_received(struct session *s, size_t len, uint64_t now_us,
                                             struct skep_error *err);
/* Puts up to cap bytes that are due to be sent at `out` and returns how many; 0: nothing is due.
 * Streams take turns. cap must be at least 70,000 so that one whole message fits. */
size_t session_send(struct session *s, uint8_t *out, size_t cap, uint64_t now_us);
/* Timeouts. Call it at the time session_next_tick() gives, or later. Result as session_received().
 */
SKEP_MUST_CHECK skep_status session_tick(struct session *s, uint64_t now_us,
                                         struct skep_error *err);
uint64_t session_next_tick(const struct session *s);

/*
 * Initiator: opens a call. Allowed before the handshake is done: it waits.
 * @param headers  borrowed for the call; its tensor descriptors must describe `tensors`.
 * @param tensors  data borrowed until call_done.
 * @param user     given back in call_done.
 * @return SKEP_RESOURCE_EXHAUSTED if max_streams are open; SKEP_UNAVAILABLE after GOAWAY;
 *         SKEP_INVALID_ARGUMENT if the message is over the limits (nothing is sent).
 */
SKEP_MUST_CHECK skep_status session_call(struct session *s, const struct call_headers *headers,
                                         const DLTensor *const *tensors, void *user,
                                         struct session_stream **out, struct skep_error *err);
/* Initiator: gives a call up: CANCEL is sent, call_done runs before this returns (SKEP_CANCELLED or
 * `why`). */
void session_cancel(struct session *s, struct session_stream *stream, const struct skep_error *why);

/*
 * Responder: answers a call. @param tensors always taken, also on failure. If the reply is over the
 * limits the peer gets SKEP_INTERNAL saying so.
 */
void session_reply(struct session *s, struct session_stream *stream,
                   const struct reply_headers *headers, DLManagedTensor **tensors);

/* Sends GOAWAY: no new calls are accepted, open ones go on. */
void session_goaway(struct session *s, const char *reason);

/* NULL until established. View of s. */
const struct session_peer *session_peer(const struct session *s);
/* Responder: whether the initiator never began a handshake: it sent nothing, or only asked what
 * listens here (a preamble of version 0.0, or a tracker's: see dht/bootstrap/join_check.c). */
bool session_was_probe(const struct session *s);
size_t session_open_streams(const struct session *s);
/* Initiator, or responder that wants to know whether the peer lives: asks for a PONG. The round
 * trip counts from now_us. */
void session_ping(struct session *s, uint64_t now_us);
/*
 * Responder: the peer is to be known to live as long as this call is open. When nothing has come
 * for a third of silence_ms it gets a PING; when two thirds later there is still nothing, the
 * connection ends. Of several such calls the shortest time holds until the last of them has ended.
 */
void session_watch(struct session *s, struct session_stream *stream, uint32_t silence_ms);
/* When the last bytes came from the peer. */
uint64_t session_last_receive_us(const struct session *s);
/* The last measured round trip (handshake, then PINGs) in microseconds; 0: none yet. */
uint64_t session_rtt_us(const struct session *s);
/* Bytes that are queued for the peer and not handed out by session_send() yet. */
uint64_t session_backlog(const struct session *s);

#endif
