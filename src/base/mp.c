/* msgpack with bounds: the walk that comes before msgpack-c, and typed accessors behind it. */
#include "base/mp.h"

#include <string.h>

#include "base/error.h"

struct token {
    bool container;
    uint64_t children; /* of a container: elements, or keys and values */
    uint64_t payload;  /* bytes behind the tag and its length field */
};

/* Reads a big-endian length field of 1, 2 or 4 bytes and moves past it. */
static bool read_length(const uint8_t **p, const uint8_t *end, size_t width, uint64_t *out)
{
    uint64_t value = 0;

    if ((size_t)(end - *p) < width)
        return false;
    for (size_t i = 0; i < width; i++)
        value = value << 8 | *(*p)++;
    *out = value;
    return true;
}

/* Tags from 0xc0 to 0xdf, where the tag alone says too little or has a width of its own. */
static bool read_long_tag(uint8_t tag, const uint8_t **p, const uint8_t *end, struct token *t)
{
    switch (tag) {
    case 0xc0: /* nil */
    case 0xc2: /* false */
    case 0xc3: /* true */
        return true;
    case 0xc4: /* bin 8, 16, 32 */
    case 0xc5:
    case 0xc6:
        return read_length(p, end, (size_t)1 << (tag - 0xc4), &t->payload);
    case 0xc7: /* ext 8, 16, 32: one byte more, the type */
    case 0xc8:
    case 0xc9:
        if (!read_length(p, end, (size_t)1 << (tag - 0xc7), &t->payload))
            return false;
        t->payload++;
        return true;
    case 0xca: /* float 32, 64 */
    case 0xcb:
        t->payload = (uint64_t)4 << (tag - 0xca);
        return true;
    case 0xcc: /* uint 8 to 64 */
    case 0xcd:
    case 0xce:
    case 0xcf:
        t->payload = (uint64_t)1 << (tag - 0xcc);
        return true;
    case 0xd0: /* int 8 to 64 */
    case 0xd1:
    case 0xd2:
    case 0xd3:
        t->payload = (uint64_t)1 << (tag - 0xd0);
        return true;
    case 0xd4: /* fixext 1 to 16 */
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8:
        t->payload = ((uint64_t)1 << (tag - 0xd4)) + 1;
        return true;
    case 0xd9: /* str 8, 16, 32 */
    case 0xda:
    case 0xdb:
        return read_length(p, end, (size_t)1 << (tag - 0xd9), &t->payload);
    case 0xdc: /* array 16, 32 */
    case 0xdd:
        t->container = true;
        return read_length(p, end, (size_t)2 << (tag - 0xdc), &t->children);
    case 0xde: /* map 16, 32 */
    case 0xdf:
        t->container = true;
        if (!read_length(p, end, (size_t)2 << (tag - 0xde), &t->children))
            return false;
        t->children *= 2;
        return true;
    default: /* 0xc1 is never used */
        return false;
    }
}

/* Reads one tag with its payload and moves past both. */
static bool read_token(const uint8_t **p, const uint8_t *end, struct token *t)
{
    *t = (struct token){0};
    if (*p == end)
        return false;
    uint8_t tag = *(*p)++;

    if (tag >= 0xc0 && tag < 0xe0) {
        if (!read_long_tag(tag, p, end, t))
            return false;
    } else if (tag >= 0xa0 && tag < 0xc0) { /* fixstr */
        t->payload = tag & 0x1f;
    } else if (tag >= 0x80 && tag < 0xa0) { /* fixmap, fixarray */
        t->container = true;
        t->children = (uint64_t)(tag & 0x0f) * (tag < 0x90 ? 2 : 1);
    } /* others are integers within the tag */
    if (t->payload > (size_t)(end - *p))
        return false;
    *p += t->payload;
    return true;
}

bool mp_check(const uint8_t *data, size_t len)
{
    const uint8_t *p = data;
    const uint8_t *end = len > 0 ? data + len : data;
    uint64_t left[MP_MAX_DEPTH]; /* children not yet read, for each open container */
    int depth = 0;
    uint64_t pending = 1; /* objects announced and not yet read, in all */

    while (pending > 0) {
        struct token t;
        if (!read_token(&p, end, &t))
            return false;
        pending += t.children;
        pending--;
        if (pending > (size_t)(end - p)) /* each of them takes a byte at least */
            return false;
        if (t.container) {
            if (depth == MP_MAX_DEPTH)
                return false;
            left[depth++] = t.children;
        } else if (depth > 0) {
            left[depth - 1]--;
        }
        while (depth > 0 && left[depth - 1] == 0) {
            depth--;
            if (depth > 0)
                left[depth - 1]--;
        }
    }
    return p == end;
}

skep_status mp_parse(struct mp *out, const uint8_t *data, size_t len, const char *what,
                     struct skep_error *err)
{
    size_t offset = 0;

    *out = (struct mp){0};
    if (!mp_check(data, len))
        return error_set(err, SKEP_DATA_LOSS,
                         "%s: %zu bytes that are not one whole msgpack object of at most %d levels",
                         what, len, MP_MAX_DEPTH);
    msgpack_unpacked_init(&out->unpacked);
    msgpack_unpack_return result =
        msgpack_unpack_next(&out->unpacked, (const char *)data, len, &offset);
    if (result == MSGPACK_UNPACK_SUCCESS && offset == len) {
        out->root = &out->unpacked.data;
        return SKEP_OK;
    }
    mp_free(out);
    if (result == MSGPACK_UNPACK_NOMEM_ERROR)
        return error_no_memory(err, what, len);
    return error_set(err, SKEP_DATA_LOSS, "%s: not well-formed msgpack at byte %zu of %zu", what,
                     offset, len);
}

void mp_free(struct mp *mp)
{
    if (mp == NULL)
        return;
    msgpack_unpacked_destroy(&mp->unpacked);
    *mp = (struct mp){0};
}

const msgpack_object *mp_get(const msgpack_object *map, const char *key)
{
    size_t len = strlen(key);

    if (map == NULL || map->type != MSGPACK_OBJECT_MAP)
        return NULL;
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object_kv *kv = &map->via.map.ptr[i];
        if (kv->key.type == MSGPACK_OBJECT_STR && kv->key.via.str.size == len &&
            (len == 0 || memcmp(kv->key.via.str.ptr, key, len) == 0))
            return &kv->val;
    }
    return NULL;
}

bool mp_u64(const msgpack_object *o, uint64_t *out)
{
    if (o == NULL || o->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return false;
    *out = o->via.u64;
    return true;
}

bool mp_i64(const msgpack_object *o, int64_t *out)
{
    if (o == NULL)
        return false;
    if (o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER) {
        *out = o->via.i64;
        return true;
    }
    if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER || o->via.u64 > INT64_MAX)
        return false;
    *out = (int64_t)o->via.u64;
    return true;
}

bool mp_f64(const msgpack_object *o, double *out)
{
    if (o == NULL)
        return false;
    switch (o->type) {
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        *out = o->via.f64;
        return true;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        *out = (double)o->via.u64;
        return true;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        *out = (double)o->via.i64;
        return true;
    default:
        return false;
    }
}

bool mp_bool(const msgpack_object *o, bool *out)
{
    if (o == NULL || o->type != MSGPACK_OBJECT_BOOLEAN)
        return false;
    *out = o->via.boolean;
    return true;
}

bool mp_str(const msgpack_object *o, char *out, size_t cap)
{
    if (o == NULL || o->type != MSGPACK_OBJECT_STR)
        return false;
    size_t len = o->via.str.size;
    if (len >= cap || (len > 0 && memchr(o->via.str.ptr, 0, len) != NULL))
        return false;
    if (len > 0) /* msgpack-c gives NULL for an empty string */
        memcpy(out, o->via.str.ptr, len);
    out[len] = '\0';
    return true;
}

bool mp_bin(const msgpack_object *o, const uint8_t **data, size_t *len)
{
    if (o == NULL || o->type != MSGPACK_OBJECT_BIN)
        return false;
    /* msgpack-c gives NULL for an empty one, which memcpy and its kind must not see. */
    *data = (const uint8_t *)(o->via.bin.size > 0 ? o->via.bin.ptr : "");
    *len = o->via.bin.size;
    return true;
}

bool mp_bin_exact(const msgpack_object *o, uint8_t *out, size_t len)
{
    const uint8_t *data;
    size_t seen;

    if (!mp_bin(o, &data, &seen) || seen != len)
        return false;
    memcpy(out, data, len);
    return true;
}

bool mp_array(const msgpack_object *o, const msgpack_object **items, size_t *count)
{
    if (o == NULL || o->type != MSGPACK_OBJECT_ARRAY)
        return false;
    *items = o->via.array.ptr;
    *count = o->via.array.size;
    return true;
}

int mp_pack_str(msgpack_packer *pk, const char *text)
{
    size_t len = strlen(text);

    return msgpack_pack_str(pk, len) != 0 ? -1 : msgpack_pack_str_body(pk, text, len);
}

int mp_pack_bin(msgpack_packer *pk, const void *data, size_t len)
{
    return msgpack_pack_bin(pk, len) != 0 ? -1 : msgpack_pack_bin_body(pk, data, len);
}
