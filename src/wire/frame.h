/*
 * The outermost bytes of a connection: its preamble, refusals, and frames.
 * Byte layout: docs/protocol.md. No sockets, no clocks, no memory.
 */
#ifndef SKEP_WIRE_FRAME_H
#define SKEP_WIRE_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

enum {
    FRAME_HEADER_BYTES = 9,
    FRAME_MAX_PAYLOAD = 65000, /* with its header it fits one Noise message (65,535 with tag) */
};

enum frame_type {
    FRAME_HEADERS = 1, /* msgpack map: a call or a reply begins */
    FRAME_DATA = 2,    /* tensor bytes */
    FRAME_END = 3,     /* empty: the call or reply is whole */
    FRAME_CANCEL = 4,  /* one byte of status: the sender gives the stream up */
    FRAME_PING = 5,    /* 8 bytes, to be sent back */
    FRAME_PONG = 6,    /* the 8 bytes of the PING */
    FRAME_GOAWAY = 7,  /* one byte of status, then text */
    FRAME_WINDOW = 8,  /* u32: so many more bytes of DATA may be sent */
    FRAME_READY = 9,   /* empty: the responder has accepted the initiator */
    /* Unknown types from here on are skipped: room for hints of later minors. */
    FRAME_FIRST_OPTIONAL = 128,
};

struct frame_header {
    uint32_t length; /* of the payload */
    uint8_t type;
    uint32_t stream; /* 0: the connection itself */
};

void frame_header_encode(uint8_t out[static FRAME_HEADER_BYTES], uint32_t length, uint8_t type,
                         uint32_t stream);
/*
 * Decodes and checks a header: the type is known or optional, the length fits the type, and the
 * stream is zero or not as the type demands.
 * @return SKEP_DATA_LOSS naming field, value and limit; *out is zeroed then.
 */
SKEP_MUST_CHECK skep_status frame_header_decode(struct frame_header *out,
                                                const uint8_t data[static FRAME_HEADER_BYTES],
                                                struct skep_error *err);
/* "DATA"; "optional" or "unknown" for others. Constant string. */
const char *frame_type_name(uint8_t type);

/* Text of GOAWAY and refusals, in bytes without a NUL. */
enum { FRAME_MAX_TEXT = 400 };

/* GOAWAY: SKEP_OK means "no new calls, open ones go on"; another status ends the connection. */
struct goaway {
    skep_status status;
    char text[FRAME_MAX_TEXT + 1];
};
/* The payload; `out` has room for 1 + FRAME_MAX_TEXT bytes. Longer text is cut. Returns its size.
 */
size_t goaway_encode(uint8_t *out, skep_status status, const char *text);
/* False if it is empty or too long. Control characters of the text become '?'. */
bool goaway_decode(struct goaway *out, const uint8_t *data, size_t len);

/* The first bytes of a connection, from the initiator. These are also the Noise prologue. */
enum { PREAMBLE_BYTES = 8 };
enum preamble_mode {
    PREAMBLE_PLAINTEXT = 0,
    PREAMBLE_CHACHAPOLY = 1, /* as enum noise_cipher */
    PREAMBLE_AESGCM = 2,
};
struct preamble {
    uint8_t major, minor;
    uint8_t mode; /* enum preamble_mode, or what a later version knows */
    bool psk;     /* XXpsk3: a private swarm */
};
void preamble_encode(uint8_t out[static PREAMBLE_BYTES], const struct preamble *preamble);
/* Whether these first bytes (any number of them) can still become a preamble. */
bool preamble_may_start(const uint8_t *data, size_t len);
/* False if the magic is wrong. Unknown flags are left to later minors. */
bool preamble_decode(struct preamble *out, const uint8_t data[static PREAMBLE_BYTES]);

/*
 * A refusal, from the responder, in place of a handshake message (or of its first transport
 * message): a length field of 0, then what the responder speaks and why it will not go on. This
 * layout is the same in all versions.
 */
enum { REFUSAL_HEADER_BYTES = 9, REFUSAL_MAX_BYTES = REFUSAL_HEADER_BYTES + FRAME_MAX_TEXT };
struct refusal {
    struct preamble spoken;
    skep_status status;
    char text[FRAME_MAX_TEXT + 1];
};
/* Longer text is cut. Returns the size. */
size_t refusal_encode(uint8_t out[static REFUSAL_MAX_BYTES], const struct preamble *spoken,
                      skep_status status, const char *text);
/*
 * Decodes a refusal from its length field of 0 on.
 * @return bytes used, 0 if more are needed. An over-long text is cut to what has come.
 */
size_t refusal_decode(struct refusal *out, const uint8_t *data, size_t len);

/* A status from the wire: numbers that are none of ours become SKEP_INTERNAL. */
skep_status status_from_wire(uint64_t number);
/* Copies text from a peer, cut to cap with its NUL; control characters and stray bytes become
 * '?', so that it is safe to log and to print. */
void text_from_wire(char *out, size_t cap, const uint8_t *data, size_t len);

#endif
