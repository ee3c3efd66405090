/* Preamble, refusals and frame headers: fixed layouts, checked field by field. */
#include "wire/frame.h"

#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"

void frame_header_encode(uint8_t out[static FRAME_HEADER_BYTES], uint32_t length, uint8_t type,
                         uint32_t stream)
{
    store_u32(out, length);
    out[4] = type;
    store_u32(out + 5, stream);
}

/* What each type allows; the index is the type. */
static const struct {
    const char *name;
    uint32_t min, max;
    enum { ON_CONNECTION = 1, ON_STREAM = 2 } where;
} frame_rules[] = {
    [FRAME_HEADERS] = {"HEADERS", 1, FRAME_MAX_PAYLOAD, ON_STREAM},
    [FRAME_DATA] = {"DATA", 1, FRAME_MAX_PAYLOAD, ON_STREAM},
    [FRAME_END] = {"END", 0, 0, ON_STREAM},
    [FRAME_CANCEL] = {"CANCEL", 1, 1, ON_STREAM},
    [FRAME_PING] = {"PING", 8, 8, ON_CONNECTION},
    [FRAME_PONG] = {"PONG", 8, 8, ON_CONNECTION},
    [FRAME_GOAWAY] = {"GOAWAY", 1, 1 + FRAME_MAX_TEXT, ON_CONNECTION},
    [FRAME_WINDOW] = {"WINDOW", 4, 4, ON_CONNECTION | ON_STREAM},
    [FRAME_READY] = {"READY", 0, 0, ON_CONNECTION},
};

static bool is_known(uint8_t type)
{
    return type >= FRAME_HEADERS && type <= FRAME_READY;
}

const char *frame_type_name(uint8_t type)
{
    if (is_known(type))
        return frame_rules[type].name;
    return type >= FRAME_FIRST_OPTIONAL ? "optional" : "unknown";
}

skep_status frame_header_decode(struct frame_header *out,
                                const uint8_t data[static FRAME_HEADER_BYTES],
                                struct skep_error *err)
{
    struct frame_header h = {
        .length = load_u32(data), .type = data[4], .stream = load_u32(data + 5)};
    const char *name = frame_type_name(h.type);

    *out = (struct frame_header){0};
    if (!is_known(h.type) && h.type < FRAME_FIRST_OPTIONAL)
        return error_set(err, SKEP_DATA_LOSS, "frame: unknown type %u", h.type);
    uint32_t min = is_known(h.type) ? frame_rules[h.type].min : 0;
    uint32_t max = is_known(h.type) ? frame_rules[h.type].max : FRAME_MAX_PAYLOAD;
    if (h.length < min || h.length > max)
        return error_set(err, SKEP_DATA_LOSS, "frame: %s of %u bytes, expected %u to %u", name,
                         h.length, min, max);
    if (is_known(h.type) &&
        (frame_rules[h.type].where & (h.stream == 0 ? ON_CONNECTION : ON_STREAM)) == 0)
        return error_set(err, SKEP_DATA_LOSS, "frame: %s on stream %u, expected %s", name, h.stream,
                         h.stream == 0 ? "a call's stream" : "stream 0");
    *out = h;
    return SKEP_OK;
}

static size_t text_encode(uint8_t *out, const char *text)
{
    size_t n = strnlen(text, FRAME_MAX_TEXT);

    memcpy(out, text, n);
    return n;
}

size_t goaway_encode(uint8_t *out, skep_status status, const char *text)
{
    out[0] = (uint8_t)status;
    return 1 + text_encode(out + 1, text);
}

bool goaway_decode(struct goaway *out, const uint8_t *data, size_t len)
{
    if (len < 1 || len > 1 + FRAME_MAX_TEXT)
        return false;
    out->status = status_from_wire(data[0]);
    text_from_wire(out->text, sizeof(out->text), data + 1, len - 1);
    return true;
}

/* Differs in its first byte from HTTP's methods and from TVM's tracker (71 F2 02 00). */
static const uint8_t magic[4] = {'S', 'K', 'E', 'P'};
enum { PREAMBLE_FLAG_PSK = 1 };

static void spoken_encode(uint8_t out[static 4], const struct preamble *preamble)
{
    out[0] = preamble->major;
    out[1] = preamble->minor;
    out[2] = preamble->mode;
    out[3] = preamble->psk ? PREAMBLE_FLAG_PSK : 0;
}

static void spoken_decode(struct preamble *out, const uint8_t data[static 4])
{
    *out = (struct preamble){.major = data[0],
                             .minor = data[1],
                             .mode = data[2],
                             .psk = (data[3] & PREAMBLE_FLAG_PSK) != 0};
}

void preamble_encode(uint8_t out[static PREAMBLE_BYTES], const struct preamble *preamble)
{
    memcpy(out, magic, sizeof(magic));
    spoken_encode(out + sizeof(magic), preamble);
}

bool preamble_may_start(const uint8_t *data, size_t len)
{
    return memcmp(data, magic, len < sizeof(magic) ? len : sizeof(magic)) == 0;
}

bool preamble_decode(struct preamble *out, const uint8_t data[static PREAMBLE_BYTES])
{
    spoken_decode(out, data + sizeof(magic));
    return memcmp(data, magic, sizeof(magic)) == 0;
}

/* [u16 0][major][minor][mode][flags][status][u16 text length][text] */
size_t refusal_encode(uint8_t out[static REFUSAL_MAX_BYTES], const struct preamble *spoken,
                      skep_status status, const char *text)
{
    size_t n = text_encode(out + REFUSAL_HEADER_BYTES, text);

    store_u16(out, 0);
    spoken_encode(out + 2, spoken);
    out[6] = (uint8_t)status;
    store_u16(out + 7, (uint16_t)n);
    return REFUSAL_HEADER_BYTES + n;
}

size_t refusal_decode(struct refusal *out, const uint8_t *data, size_t len)
{
    if (len < REFUSAL_HEADER_BYTES)
        return 0;
    size_t n = load_u16(data + 7);
    if (n > FRAME_MAX_TEXT)
        n = FRAME_MAX_TEXT;
    if (len < REFUSAL_HEADER_BYTES + n)
        return 0;
    spoken_decode(&out->spoken, data + 2);
    out->status = status_from_wire(data[6]);
    if (out->status == SKEP_OK)
        out->status = SKEP_INTERNAL; /* a refusal is never a success */
    text_from_wire(out->text, sizeof(out->text), data + REFUSAL_HEADER_BYTES, n);
    return REFUSAL_HEADER_BYTES + n;
}

skep_status status_from_wire(uint64_t number)
{
    switch (number) {
#define STATUS_CASE(name, value, text)                                                             \
    case value:                                                                                    \
        return SKEP_##name;
        SKEP_STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
    default:
        return SKEP_INTERNAL;
    }
}

void text_from_wire(char *out, size_t cap, const uint8_t *data, size_t len)
{
    size_t used = 0;
    size_t i = 0;

    while (i < len && used + 1 < cap) {
        size_t n = text_utf8_length((const char *)data + i, len - i);
        if (n == 0 || text_is_control((const char *)data + i, n)) {
            out[used++] = '?';
            i += n == 0 ? 1 : n;
            continue;
        }
        if (used + n >= cap)
            break;
        memcpy(out + used, data + i, n);
        used += n;
        i += n;
    }
    out[used] = '\0';
}
