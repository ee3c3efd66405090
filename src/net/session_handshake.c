/*
 * From the preamble to READY. The initiator writes preamble and message 1 at once; messages 2 and
 * 3 carry the hellos; READY (the responder's first frame) tells the initiator that it was taken, so
 * no call leaves before both sides know each other. Byte layout: docs/protocol.md, "Handshake".
 */
#include "net/session_internal.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"
#include "wire/tracker_frame.h"

#define SESSION_AGENT "skep/0.1.0"

static const char *mode_name(unsigned mode)
{
    switch (mode) {
    case PREAMBLE_PLAINTEXT:
        return "plaintext";
    case PREAMBLE_CHACHAPOLY:
        return "encrypted (ChaChaPoly)";
    case PREAMBLE_AESGCM:
        return "encrypted (AESGCM)";
    default:
        return "an unknown mode";
    }
}

static struct preamble own_preamble(const struct session *s)
{
    return (struct preamble){
        .major = PROTOCOL_MAJOR,
        .minor = PROTOCOL_MINOR,
        .mode = s->config.plaintext              ? PREAMBLE_PLAINTEXT
                : s->peer.cipher == NOISE_AESGCM ? PREAMBLE_AESGCM
                                                 : PREAMBLE_CHACHAPOLY,
        .psk = s->config.psk != NULL,
    };
}

void session_handshake_refuse(struct session *s, skep_status status, const char *text)
{
    uint8_t refusal[REFUSAL_MAX_BYTES];
    struct preamble own = own_preamble(s);

    /* If memory is short the connection just closes. */
    (void)bytes_append(&s->handshake_out, refusal, refusal_encode(refusal, &own, status, text));
}

/* ---- Writing ---- */

static skep_status start_noise(struct session *s, const uint8_t *prologue, struct skep_error *err)
{
    struct noise_config config = {
        .initiator = s->config.initiator,
        .cipher = s->peer.cipher,
        .static_secret = s->config.identity->dh_secret,
        .psk = s->config.psk,
        .prologue = prologue,
        .prologue_len = PREAMBLE_BYTES,
    };

    return noise_handshake_new(&config, &s->noise, err);
}

/* Appends [u16 length][message] with this payload. */
static skep_status write_message(struct session *s, const uint8_t *payload, size_t len,
                                 struct skep_error *err)
{
    uint8_t message[2 + HANDSHAKE_MAX_MESSAGE];
    size_t n = HANDSHAKE_MAX_MESSAGE;
    skep_status rc = SKEP_OK;

    if (s->config.plaintext) {
        memcpy(message + 2, payload, len);
        n = len;
    } else {
        rc = noise_handshake_write(s->noise, payload, len, message + 2, &n, err);
    }
    if (rc != SKEP_OK)
        return rc;
    store_u16(message, (uint16_t)n);
    if (!bytes_append(&s->handshake_out, message, 2 + n))
        return error_no_memory(err, "handshake", 2 + n);
    return SKEP_OK;
}

static skep_status write_hello(struct session *s, struct skep_error *err)
{
    struct bytes payload = {0};
    struct hello hello = {
        .major = PROTOCOL_MAJOR,
        .minor = PROTOCOL_MINOR,
        .agent = SESSION_AGENT,
        .features = PROTOCOL_FEATURES & ~s->limits.message.refused_encodings,
        .stream_window = s->limits.stream_window,
        .connection_window = s->limits.connection_window,
        .max_streams = s->limits.max_streams,
        .time_ms = s->config.wall_ms != NULL ? (uint64_t)s->config.wall_ms() : 0,
    };
    skep_status rc;

    memcpy(hello.peer_id, s->config.identity->peer_id, sizeof(hello.peer_id));
    /* Message 2 is readable to whoever dials, message 3 (under the psk) only to members: a
     * responder keeps the name of a private swarm to itself. */
    if (s->config.swarm != NULL && (s->config.initiator || s->config.psk == NULL))
        memcpy(hello.swarm, s->config.swarm, strlen(s->config.swarm));
    rc = hello_encode(&hello, &payload, err);
    if (rc == SKEP_OK)
        rc = write_message(s, payload.data, payload.len, err);
    bytes_free(&payload);
    return rc;
}

skep_status session_handshake_begin(struct session *s, struct skep_error *err)
{
    uint8_t preamble[PREAMBLE_BYTES];

    s->peer.plaintext = s->config.plaintext;
    s->peer.cipher = s->config.cipher;
    if (!s->config.initiator) {
        s->phase = PHASE_PREAMBLE;
        return SKEP_OK;
    }
    struct preamble own = own_preamble(s);
    preamble_encode(preamble, &own);
    if (!bytes_append(&s->handshake_out, preamble, sizeof(preamble)))
        return error_no_memory(err, "handshake", sizeof(preamble));
    if (!s->config.plaintext) {
        skep_status rc = start_noise(s, preamble, err);
        if (rc != SKEP_OK)
            return rc;
    }
    s->phase = PHASE_MESSAGE2;
    return write_message(s, preamble, 0, err);
}

/* ---- Judging the peer ---- */

static skep_status judge_swarm(struct session *s, const struct hello *hello)
{
    const char *own = s->config.swarm != NULL ? s->config.swarm : "";
    char theirs[TEXT_QUOTE_BYTES];

    if (s->config.psk != NULL && s->config.initiator)
        return SKEP_OK; /* the responder judges it, and knows the swarm key */
    if (strcmp(hello->swarm, own) == 0)
        return SKEP_OK;
    text_quote(hello->swarm, strlen(hello->swarm), theirs);
    return session_fail(s, SKEP_FAILED_PRECONDITION,
                        "swarms differ: the %s is in \"%s\", the %s in %s",
                        s->config.initiator ? "initiator" : "responder", own,
                        s->config.initiator ? "responder" : "initiator", theirs);
}

static skep_status judge_identity(struct session *s, const struct hello *hello)
{
    uint8_t dh[32];
    char seen[PEER_ID_HEX_BYTES], expected[PEER_ID_HEX_BYTES];

    peer_id_hex(hello->peer_id, seen);
    /* Plaintext proves nothing; elsewhere the claimed identity must own the key that answered. */
    if (!s->config.plaintext &&
        (!identity_dh_public(hello->peer_id, dh) ||
         memcmp(dh, noise_handshake_remote_static(s->noise), sizeof(dh)) != 0))
        return session_fail(s, SKEP_UNAUTHENTICATED,
                            "the peer claims to be %s, but answers with another key", seen);
    if (s->config.expected_peer_id != NULL &&
        memcmp(hello->peer_id, s->config.expected_peer_id, PEER_ID_BYTES) != 0) {
        peer_id_hex(s->config.expected_peer_id, expected);
        return session_fail(s, SKEP_UNAUTHENTICATED, "the peer is %s, expected %s", seen, expected);
    }
    return SKEP_OK;
}

/* Which side must be updated; a and b are the protocol versions of responder and initiator. */
static const char *who_is_behind(unsigned responder_major, unsigned initiator_major)
{
    return responder_major < initiator_major ? "update the responder" : "update the initiator";
}

static skep_status judge_hello(struct session *s, const uint8_t *payload, size_t len)
{
    struct hello hello;
    struct skep_error err;
    skep_status rc = hello_decode(&hello, payload, len, &err);

    if (rc != SKEP_OK)
        return session_fail(s, rc, "%s", err.message);
    if (hello.major != PROTOCOL_MAJOR)
        return session_fail(s, SKEP_FAILED_PRECONDITION,
                            "protocol versions differ: this side %d.%d, peer %u.%u: %s",
                            PROTOCOL_MAJOR, PROTOCOL_MINOR, hello.major, hello.minor,
                            s->config.initiator ? who_is_behind(hello.major, PROTOCOL_MAJOR)
                                                : who_is_behind(PROTOCOL_MAJOR, hello.major));
    rc = judge_identity(s, &hello);
    if (rc == SKEP_OK)
        rc = judge_swarm(s, &hello);
    if (rc != SKEP_OK)
        return rc;
    memcpy(s->peer.peer_id, hello.peer_id, sizeof(s->peer.peer_id));
    memcpy(s->peer.agent, hello.agent, sizeof(s->peer.agent));
    s->peer.minor = hello.minor;
    s->peer.features = hello.features;
    s->peer.time_ms = hello.time_ms;
    s->peer_max_streams = hello.max_streams;
    s->peer_stream_window = hello.stream_window;
    s->send_window = hello.connection_window;
    return SKEP_OK;
}

/* Both directions are ours now: a larger buffer for larger messages, and the channels. */
static skep_status open_transport(struct session *s)
{
    uint8_t *larger = mem_alloc(BUFFER_BYTES);

    if (larger == NULL)
        return session_fail(s, SKEP_RESOURCE_EXHAUSTED,
                            "no memory for a receive buffer of %d bytes", BUFFER_BYTES);
    memcpy(larger, s->in + s->in_start, s->in_end - s->in_start);
    s->in_end -= s->in_start;
    s->in_start = 0;
    mem_free(s->in);
    s->in = larger;
    s->in_cap = BUFFER_BYTES;
    if (!s->config.plaintext) {
        noise_handshake_split(s->noise, &s->send_channel, &s->receive_channel);
        s->sealed = true;
    }
    s->phase = PHASE_READY;
    return SKEP_OK;
}

static void tell_established(struct session *s)
{
    noise_handshake_free(s->noise);
    s->noise = NULL;
    s->phase = PHASE_OPEN;
    if (s->events->established != NULL)
        s->events->established(s->arg, &s->peer);
}

/* ---- Responder ---- */

static skep_status judge_preamble(struct session *s, const struct preamble *p)
{
    if (p->major == 0 && p->minor == 0) {
        s->was_question = true;
        return session_fail(s, SKEP_FAILED_PRECONDITION,
                            "the peer only asked whether Skep listens here; version %d.%d does",
                            PROTOCOL_MAJOR, PROTOCOL_MINOR);
    }
    if (p->major != PROTOCOL_MAJOR)
        return session_fail(s, SKEP_FAILED_PRECONDITION,
                            "protocol versions differ: initiator %u.%u, responder %d.%d: %s",
                            p->major, p->minor, PROTOCOL_MAJOR, PROTOCOL_MINOR,
                            who_is_behind(PROTOCOL_MAJOR, p->major));
    bool plaintext = p->mode == PREAMBLE_PLAINTEXT;
    if (plaintext != s->config.plaintext || p->mode > PREAMBLE_AESGCM)
        return session_fail(s, SKEP_FAILED_PRECONDITION,
                            "modes differ: initiator asks for %s, responder takes %s only",
                            mode_name(p->mode), s->config.plaintext ? "plaintext" : "encrypted");
    if (!plaintext && !noise_cipher_available((enum noise_cipher)p->mode))
        return session_fail(s, SKEP_FAILED_PRECONDITION,
                            "modes differ: initiator asks for %s, which the responder's CPU lacks",
                            mode_name(p->mode));
    if (p->psk != (s->config.psk != NULL))
        return session_fail(s, SKEP_FAILED_PRECONDITION,
                            "swarms differ: the initiator has %s swarm key, the responder's swarm "
                            "is %s",
                            p->psk ? "a" : "no", p->psk ? "public" : "private");
    return SKEP_OK;
}

static skep_status receive_preamble(struct session *s, const uint8_t *data, size_t len,
                                    size_t *used)
{
    struct preamble preamble;
    struct skep_error err;
    char shown[TEXT_QUOTE_BYTES];
    skep_status rc;

    /* A tracker's client, or who looks what listens here (dht/bootstrap/join_check.c). */
    s->was_question = len >= TRACKER_MAGIC_BYTES && load_u32(data) == TRACKER_MAGIC;
    if (s->was_question)
        return session_fail_silently(s, SKEP_DATA_LOSS,
                                     "not a Skep connection: it starts as a tracker's client does");
    if (!preamble_may_start(data, len))
        return session_fail_silently(s, SKEP_DATA_LOSS, "not a Skep connection: it starts with %s",
                                     text_quote((const char *)data, len < 8 ? len : 8, shown));
    if (len < PREAMBLE_BYTES)
        return SKEP_OK;
    *used = PREAMBLE_BYTES;
    preamble_decode(&preamble, data);
    s->phase = PHASE_MESSAGE1; /* from here on the peer understands a refusal */
    rc = judge_preamble(s, &preamble);
    if (rc != SKEP_OK || s->config.plaintext)
        return rc;
    s->peer.cipher = (enum noise_cipher)preamble.mode;
    rc = start_noise(s, data, &err);
    return rc == SKEP_OK ? SKEP_OK : session_fail(s, rc, "%s", err.message);
}

static skep_status answer_message1(struct session *s, size_t len)
{
    struct skep_error err;

    if (len != 0)
        return session_fail(s, SKEP_DATA_LOSS, "handshake: %zu bytes in message 1, expected none",
                            len);
    skep_status rc = write_hello(s, &err);
    if (rc != SKEP_OK)
        return session_fail(s, rc, "%s", err.message);
    s->phase = PHASE_MESSAGE3;
    return SKEP_OK;
}

static skep_status accept_message3(struct session *s, const uint8_t *payload, size_t len)
{
    /* The keys first: a refusal for what the hello says is for the initiator's eyes only. */
    skep_status rc = open_transport(s);

    if (rc == SKEP_OK)
        rc = judge_hello(s, payload, len);
    if (rc != SKEP_OK)
        return rc;
    if (!session_control(s, FRAME_READY, 0, NULL, 0))
        return s->failure.status;
    tell_established(s);
    return s->failed ? s->failure.status : SKEP_OK;
}

/* ---- Initiator ---- */

static skep_status answer_message2(struct session *s, const uint8_t *payload, size_t len)
{
    struct skep_error err;
    skep_status rc = judge_hello(s, payload, len);

    if (rc != SKEP_OK)
        return rc;
    s->rtt_us = s->now_us > s->asked_us ? s->now_us - s->asked_us : 1;
    rc = write_hello(s, &err);
    if (rc != SKEP_OK)
        return session_fail(s, rc, "%s", err.message);
    return open_transport(s);
}

/* More calls may have been opened meanwhile than the responder allows: the latest are refused. */
static void shed_excess(struct session *s)
{
    struct skep_error err;

    error_set(&err, SKEP_RESOURCE_EXHAUSTED, "the peer allows %" PRIu32 " calls at once",
              s->peer_max_streams);
    while (s->open_streams > s->peer_max_streams && s->all.last != NULL)
        stream_done(s, stream_in_all(s->all.last), &err);
}

skep_status session_handshake_ready(struct session *s)
{
    if (s->phase != PHASE_READY)
        return session_fail(s, SKEP_DATA_LOSS, "frame: READY, expected none any more");
    for (struct list_link *l = s->all.first; l != NULL; l = l->next)
        stream_in_all(l)->send_window = s->peer_stream_window;
    tell_established(s);
    shed_excess(s);
    return s->failed ? s->failure.status : SKEP_OK;
}

skep_status session_refused(struct session *s, const uint8_t *data, size_t len)
{
    struct refusal r;

    if (refusal_decode(&r, data, len) == 0)
        return SKEP_OK;
    if (r.spoken.major != PROTOCOL_MAJOR)
        return session_fail_silently(
            s, SKEP_FAILED_PRECONDITION,
            "refused: protocol versions differ: initiator %d.%d, responder %u.%u: %s",
            PROTOCOL_MAJOR, PROTOCOL_MINOR, r.spoken.major, r.spoken.minor,
            who_is_behind(r.spoken.major, PROTOCOL_MAJOR));
    return session_fail_silently(s, r.status, "refused by the peer: %s", r.text);
}

/* ---- Both ---- */

/* Opens a handshake message: its payload is copied, for the buffer may move before it is read. */
static skep_status open_message(struct session *s, const uint8_t *message, size_t len,
                                uint8_t payload[static HANDSHAKE_MAX_MESSAGE], size_t *payload_len)
{
    struct skep_error err;

    if (s->config.plaintext) {
        memcpy(payload, message, len);
        *payload_len = len;
        return SKEP_OK;
    }
    *payload_len = HANDSHAKE_MAX_MESSAGE;
    skep_status rc = noise_handshake_read(s->noise, message, len, payload, payload_len, &err);
    if (rc == SKEP_OK)
        return SKEP_OK;
    if (s->phase == PHASE_MESSAGE3 && s->config.psk != NULL)
        return session_fail(s, SKEP_UNAUTHENTICATED,
                            "handshake: message 3 does not verify: the swarm keys differ");
    return session_fail(s, SKEP_UNAUTHENTICATED, "handshake: %s", err.message);
}

static skep_status receive_message(struct session *s, const uint8_t *data, size_t len, size_t *used)
{
    uint8_t payload[HANDSHAKE_MAX_MESSAGE];
    size_t payload_len;

    if (len < 2)
        return SKEP_OK;
    size_t n = load_u16(data);
    if (n == 0 && s->config.initiator)
        return session_refused(s, data, len);
    if (n > HANDSHAKE_MAX_MESSAGE)
        return session_fail(
            s, SKEP_DATA_LOSS, "handshake: message of %zu bytes, expected at most %d%s", n,
            HANDSHAKE_MAX_MESSAGE, s->config.initiator ? " (is this a Skep peer?)" : "");
    if (len < 2 + n)
        return SKEP_OK;
    *used = 2 + n;
    skep_status rc = open_message(s, data + 2, n, payload, &payload_len);
    if (rc != SKEP_OK)
        return rc;
    switch (s->phase) {
    case PHASE_MESSAGE1:
        return answer_message1(s, payload_len);
    case PHASE_MESSAGE2:
        return answer_message2(s, payload, payload_len);
    default:
        return accept_message3(s, payload, payload_len);
    }
}

skep_status session_handshake_received(struct session *s, const uint8_t *data, size_t len,
                                       size_t *used)
{
    *used = 0;
    return s->phase == PHASE_PREAMBLE ? receive_preamble(s, data, len, used)
                                      : receive_message(s, data, len, used);
}
