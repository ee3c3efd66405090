/* See tracker_frame.h. */
#include "wire/tracker_frame.h"

#include <limits.h>
#include <string.h>

#include "base/error.h"

enum { PREFIX_BYTES = 4 }; /* the magic, and each length */

_Static_assert((int)TRACKER_MAGIC_BYTES == (int)PREFIX_BYTES, "the magic is one number");

struct tracker_text tracker_text(const char *text)
{
    return (struct tracker_text){.data = text, .len = text != NULL ? strlen(text) : 0};
}

bool tracker_text_equal(struct tracker_text a, struct tracker_text b)
{
    return a.len == b.len && (a.data == NULL) == (b.data == NULL) &&
           (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* ---- the stream ---- */

bool tracker_input_push(struct tracker_input *in, const uint8_t *data, size_t len)
{
    if (in->kept.len > 0)
        return bytes_append(&in->kept, data, len);
    in->chunk = data;
    in->chunk_len = len;
    return true;
}

static const uint8_t *unused(const struct tracker_input *in, size_t *left)
{
    bool kept = in->kept.len > 0;

    *left = (kept ? in->kept.len : in->chunk_len) - in->used;
    return *left == 0 ? NULL : (kept ? in->kept.data : in->chunk) + in->used;
}

static enum tracker_input_result read_magic(struct tracker_input *in, uint32_t magic,
                                            struct skep_error *err)
{
    if (magic != TRACKER_MAGIC) {
        error_set(err, SKEP_DATA_LOSS, "magic number 0x%x, expected 0x%x: not a tracker's client",
                  (unsigned)magic, (unsigned)TRACKER_MAGIC);
        return TRACKER_INPUT_BAD;
    }
    in->used += PREFIX_BYTES;
    in->greeted = true;
    return TRACKER_INPUT_GREETING;
}

enum tracker_input_result tracker_input_next(struct tracker_input *in, size_t max_bytes,
                                             struct tracker_text *message, struct skep_error *err)
{
    size_t left;
    const uint8_t *at = unused(in, &left);

    if (left < PREFIX_BYTES)
        return TRACKER_INPUT_MORE;
    uint32_t prefix = load_u32(at);
    if (!in->greeted)
        return read_magic(in, prefix, err);
    if (prefix == 0 || prefix > INT32_MAX || prefix > max_bytes) {
        error_set(err, SKEP_DATA_LOSS, "message of %lld bytes, expected 1 to %zu",
                  (long long)(int32_t)prefix, max_bytes);
        return TRACKER_INPUT_BAD;
    }
    if (left - PREFIX_BYTES < prefix)
        return TRACKER_INPUT_MORE;
    *message = (struct tracker_text){.data = (const char *)at + PREFIX_BYTES, .len = prefix};
    in->used += PREFIX_BYTES + (size_t)prefix;
    return TRACKER_INPUT_MESSAGE;
}

bool tracker_input_settle(struct tracker_input *in)
{
    size_t left;
    const uint8_t *at = unused(in, &left);
    bool ok = true;

    if (in->kept.len > 0)
        bytes_consume(&in->kept, in->used);
    else if (left > 0)
        ok = bytes_append(&in->kept, at, left);
    if (in->kept.len == 0)
        bytes_free(&in->kept); /* thousands of idle connections keep nothing */
    in->chunk = NULL;
    in->chunk_len = 0;
    in->used = 0;
    return ok;
}

bool tracker_input_is_partial(const struct tracker_input *in)
{
    size_t left;

    (void)unused(in, &left);
    return left > 0 || !in->greeted;
}

void tracker_input_free(struct tracker_input *in)
{
    if (in == NULL)
        return;
    bytes_free(&in->kept);
    *in = (struct tracker_input){0};
}

/* ---- messages out ---- */

bool tracker_message_begin(struct bytes *out, size_t *start)
{
    static const uint8_t empty[PREFIX_BYTES];

    *start = out->len;
    return bytes_append(out, empty, sizeof(empty));
}

bool tracker_message_end(struct bytes *out, size_t start)
{
    size_t len = out->len - start - PREFIX_BYTES;

    if (len > INT32_MAX)
        return false;
    store_u32(out->data + start, (uint32_t)len);
    return true;
}

bool tracker_message_finish(struct bytes *out, size_t start, bool ok)
{
    ok = ok && tracker_message_end(out, start);
    if (!ok)
        out->len = start;
    return ok;
}

bool tracker_write_magic(struct bytes *out)
{
    uint8_t magic[PREFIX_BYTES];

    store_u32(magic, TRACKER_MAGIC);
    return bytes_append(out, magic, sizeof(magic));
}

bool tracker_write_message(struct bytes *out, const char *json, size_t len)
{
    size_t start;
    bool ok = tracker_message_begin(out, &start) && bytes_append(out, json, len);

    return tracker_message_finish(out, start, ok);
}
