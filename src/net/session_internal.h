/*
 * What the files of a session share:
 *   session.c            life, time, questions
 *   session_handshake.c  from the preamble to READY, for both roles
 *   session_stream.c     calls: opening, answering, ending, and the tables they are in
 *   session_send.c       what is due -> bytes
 *   session_receive.c    bytes -> frames -> streams
 *
 * Nothing here is thread-safe; see session.h.
 */
#ifndef SKEP_NET_SESSION_INTERNAL_H
#define SKEP_NET_SESSION_INTERNAL_H

#include "base/list.h"
#include "net/session.h"
#include "wire/frame.h"

enum {
    /* Handshake messages are hellos of a few hundred bytes; room for later minors. */
    HANDSHAKE_MAX_MESSAGE = 2048,
    /* Before the peer has proved anything it gets the least buffer the interface allows. */
    SMALL_BUFFER_BYTES = 20 * 1024,
    /* Several whole Noise messages, and small enough to stay in the second-level cache. */
    BUFFER_BYTES = 256 * 1024,
    LEAST_RECEIVE_BYTES = 16 * 1024,
    NOISE_MAX_PLAIN = NOISE_MAX_MESSAGE - NOISE_TAG_BYTES,
    /* DATA payload of a large tensor: a multiple of 64, so that each lands aligned in the tensor.
     */
    DATA_CHUNK_BYTES = FRAME_MAX_PAYLOAD / 64 * 64,
    /* From here on payload is encrypted straight from the tensor; below, a copy costs less than
     * the tag and key schedule of another Noise message. */
    DIRECT_BYTES = 8 * 1024,
    /* Control frames that wait because the peer reads nothing; beyond, the connection ends. */
    MAX_CONTROL_BYTES = 64 * 1024,
    LEAST_WINDOW = 4096,
    INLINE_PARTS = 4,
    MAX_SPARE_STREAMS = 64,
};

/* One tensor on its way out. */
struct part {
    const uint8_t *data;
    uint64_t bytes;
    DLManagedTensor *owned; /* a reply's: freed with the stream */
};

enum stream_queue { QUEUE_NONE, QUEUE_READY, QUEUE_BLOCKED };

/* What has come of the peer's half of a stream. */
enum stream_intake {
    INTAKE_HEADERS, /* initiator: the reply's HEADERS are awaited */
    INTAKE_DATA,    /* HEADERS have come, END has not */
    INTAKE_DONE,
    INTAKE_DISCARD, /* answered early: what still comes is dropped */
};

struct session_stream {
    uint32_t id;
    bool started;  /* responder: call_started said OK, its end has not been told yet */
    bool answered; /* responder: a reply is queued */
    bool give_up;  /* responder: no reply will come, CANCEL says so */
    bool head_sent;
    bool end_sent;
    bool detached; /* out of all tables: its last event is running */
    bool watched;  /* responder: counted in session.watched */
    enum stream_intake intake;
    void *user;

    struct session_stream *hash_next; /* once detached: in session.answered or .spare */
    struct list_link in_all;
    enum stream_queue queue;
    struct list_link in_queue; /* unless QUEUE_NONE */

    /* Going out: HEADERS as encoded, then parts. */
    struct bytes head;
    uint64_t timeout_ms; /* initiator: as given by the caller at opened_us */
    uint64_t opened_us;
    struct part *parts; /* inline_parts, or owned */
    size_t part_count, part_at;
    uint64_t part_offset;
    uint64_t send_left; /* of all parts */
    uint64_t send_window;
    struct part inline_parts[INLINE_PARTS];

    /* Coming in. `intake_block` holds the headers (cut behind their last descriptor), then the
     * array of tensors. */
    void *intake_block;
    struct call_headers *call;   /* responder; view of intake_block */
    struct reply_headers *reply; /* initiator; view of intake_block */
    DLManagedTensor **tensors;   /* view of intake_block */
    size_t tensor_count, tensor_at;
    uint64_t tensor_offset;
    uint64_t receive_left;   /* declared and not received */
    uint64_t declared;       /* counted in session.declared_bytes */
    uint64_t receive_window; /* the peer may send so much more */
    uint64_t receive_credit; /* received and not yet given back as WINDOW */
};

enum session_phase {
    PHASE_PREAMBLE, /* responder: waits for the preamble */
    PHASE_MESSAGE1, /* responder: waits for it */
    PHASE_MESSAGE2, /* initiator: waits for it */
    PHASE_MESSAGE3, /* responder: waits for it */
    PHASE_READY,    /* initiator: waits for READY */
    PHASE_OPEN,
};

/* The frame that is being received. */
struct frame_intake {
    uint8_t header_bytes[FRAME_HEADER_BYTES];
    size_t header_len;
    struct frame_header frame;
    bool in_payload;
    uint32_t left;                 /* payload bytes to come */
    struct session_stream *stream; /* of DATA; NULL: drop it */
    struct bytes gathered;         /* payload of other frames that came in pieces */
};

struct session {
    struct session_config config; /* its pointers are the owner's */
    struct session_limits limits;
    const struct session_events *events;
    void *arg;
    uint64_t now_us; /* the latest time told */
    enum session_phase phase;
    struct session_peer peer;
    uint32_t peer_max_streams;
    uint64_t peer_stream_window;

    /* The end. */
    bool failed;
    bool was_question; /* the initiator asked whether a peer listens here, and wanted no more */
    bool failure_told; /* session_received() or session_tick() has returned it */
    bool freeing;
    struct skep_error failure;

    /* Handshake. */
    struct noise_handshake *noise;
    struct bytes handshake_out; /* written as it is; also holds a refusal */
    uint64_t started_us;
    uint64_t asked_us; /* when what the peer must answer was handed out; for the round trip */

    /* Ciphers; unused in plaintext. */
    bool sealed;          /* both directions are encrypted from here on */
    bool received_sealed; /* a message of the peer's has verified: no refusal can come any more */
    struct noise_channel send_channel, receive_channel;

    /* Receiving. */
    uint8_t *in; /* owned */
    size_t in_cap, in_start, in_end;
    bool direct; /* the last buffer given out was a tensor's memory */
    struct frame_intake intake;
    uint32_t last_peer_stream; /* responder: highest id seen */
    uint64_t receive_window, receive_credit;
    uint64_t declared_bytes; /* tensor memory of messages received or being received */
    uint64_t last_receive_us;
    size_t receiving; /* streams in INTAKE_DATA */

    /* Sending. */
    struct bytes control;              /* whole control frames, in order */
    size_t control_at;                 /* how much of it has been handed out */
    struct linked_list ready, blocked; /* blocked: by the connection's window */
    uint64_t send_window;
    uint64_t stream_backlog; /* HEADERS and tensor bytes not handed out */
    uint64_t last_send_us;
    bool has_output;                 /* something was due when last looked at... */
    uint64_t output_since_us;        /* ...since then */
    struct session_stream *answered; /* replies handed out, events due; linked by hash_next */

    /* Liveness. */
    bool ping_out;
    uint64_t ping_number;
    uint64_t ping_us;
    uint64_t rtt_us;
    size_t watched;      /* open streams whose peer must be heard of */
    uint32_t silence_ms; /* for how long it may not be, while there are some */

    /* Streams. */
    uint32_t next_stream; /* initiator's next id */
    bool draining;        /* we sent GOAWAY */
    bool peer_draining;
    struct session_stream **table; /* by id; owned */
    size_t table_size;             /* power of two */
    size_t open_streams;
    struct linked_list all;           /* streams, in the order of opening */
    struct session_stream *unstamped; /* first of those at the end of `all` without opened_us */
    struct session_stream *spare;     /* linked by hash_next */
    size_t spare_count;
};

static inline struct session_stream *stream_in_all(struct list_link *link)
{
    return LIST_HOLDER(link, struct session_stream, in_all);
}

static inline struct session_stream *stream_in_queue(struct list_link *link)
{
    return LIST_HOLDER(link, struct session_stream, in_queue);
}

/* session.c */

/* Ends the connection, telling the peer why; the first failure stays. Returns its status. */
skep_status session_fail(struct session *s, skep_status status, const char *format, ...)
    SKEP_PRINTF(3, 4);
/* The same without a word to the peer: it has ended it itself, or does not speak our protocol. */
skep_status session_fail_silently(struct session *s, skep_status status, const char *format, ...)
    SKEP_PRINTF(3, 4);
/* Tells the session the time. */
void session_see_time(struct session *s, uint64_t now_us);
/* Notes since when something is due to be sent. */
void session_note_output(struct session *s);

/* session_handshake.c */

skep_status session_handshake_begin(struct session *s, struct skep_error *err);
/* Takes handshake bytes from `data`; *used tells how many. Stops when the phase is over. */
skep_status session_handshake_received(struct session *s, const uint8_t *data, size_t len,
                                       size_t *used);
/* An initiator's READY has come. */
skep_status session_handshake_ready(struct session *s);
/* Queues a refusal of the initiator. */
void session_handshake_refuse(struct session *s, skep_status status, const char *text);
/* Initiator: bytes that begin like a refusal; fails the session with it once it is whole. */
skep_status session_refused(struct session *s, const uint8_t *data, size_t len);

/* session_send.c */

/* Queues a control frame. False if memory or patience is short: the session has failed. */
bool session_control(struct session *s, uint8_t type, uint32_t stream, const void *payload,
                     size_t len);

/* session_stream.c */

struct session_stream *stream_find(const struct session *s, uint32_t id);
/* A new stream in all tables; NULL if memory is short. */
struct session_stream *stream_new(struct session *s, uint32_t id);
/* Takes it out of all tables; its memory stays for a last event. */
void stream_detach(struct session *s, struct session_stream *stream);
/* Frees a detached stream and all it holds. */
void stream_recycle(struct session *s, struct session_stream *stream);
void stream_free_spares(struct session *s);
/* Puts it into the queue in which it now belongs (at the front of it, or the end). */
void stream_requeue(struct session *s, struct session_stream *stream, bool front);
void stream_unqueue(struct session *s, struct session_stream *stream);
/* The connection's window has opened: all that waited for it is ready. */
void stream_unblock(struct session *s);
/* Takes the compact copy of headers, and their params or result over. On failure the headers are
 * still the caller's. */
skep_status stream_take_call(struct session_stream *stream, struct call_headers *headers,
                             struct skep_error *err);
skep_status stream_take_reply(struct session_stream *stream, struct reply_headers *headers,
                              struct skep_error *err);
/* Makes the tensors that the headers announce. */
skep_status stream_make_tensors(struct session *s, struct session_stream *stream,
                                struct skep_error *err);
/* Frees what has been received so far. */
void stream_drop_tensors(struct session_stream *stream);
/* Answers with a status alone. */
void stream_refuse(struct session *s, struct session_stream *stream, const struct skep_error *why);
/* Initiator: ends a call with its reply, or without one for `why`. */
void stream_done(struct session *s, struct session_stream *stream, const struct skep_error *why);
/* Initiator: the same for `why`, and the peer is told if it knows of the call. */
void stream_abandon(struct session *s, struct session_stream *stream, const struct skep_error *why);
/* Responder: ends a call whose caller is gone. */
void stream_gone(struct session *s, struct session_stream *stream);
void stream_set_intake(struct session *s, struct session_stream *stream, enum stream_intake intake);

#endif
