/* Bodies of records from msgpack maps, as strangers may have written them. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "dht/record/record_internal.h"

static skep_status bad_field(struct skep_error *err, const char *name)
{
    return error_set(err, SKEP_DATA_LOSS,
                     "record %s: missing, of another type or out of range, see docs/records.md",
                     name);
}

/* A number that may be absent (0) but not of another type or over the limit. */
static bool parse_u32(const msgpack_object *map, const char *name, uint32_t limit, uint32_t *out)
{
    const msgpack_object *o = mp_get(map, name);
    uint64_t value = 0;

    if (o != NULL && (!mp_u64(o, &value) || value > limit))
        return false;
    *out = (uint32_t)value;
    return true;
}

static bool parse_load(const msgpack_object *map, struct record_load *out)
{
    const msgpack_object *o = mp_get(map, "load");
    const msgpack_object *items;
    size_t count;
    uint64_t queued;

    *out = (struct record_load){0};
    if (o == NULL)
        return true;
    if (!mp_array(o, &items, &count) || count < 2 || !mp_f64(&items[0], &out->examples_per_s) ||
        !mp_u64(&items[1], &queued) || queued > UINT32_MAX)
        return false;
    out->queued_tasks = (uint32_t)queued;
    return true;
}

/* Keeps the endpoints that may be dialled; at least one must be left. */
static skep_status parse_endpoints(const msgpack_object *map, const struct record_swarm *swarm,
                                   struct endpoint out[static RECORD_MAX_ENDPOINTS],
                                   size_t *out_count, struct skep_error *err)
{
    const msgpack_object *items;
    size_t count;

    *out_count = 0;
    if (!mp_array(mp_get(map, "endpoints"), &items, &count))
        return bad_field(err, "endpoints");
    if (count > RECORD_MAX_ENDPOINTS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "record endpoints: %zu, expected 1 to %d",
                         count, RECORD_MAX_ENDPOINTS);
    for (size_t i = 0; i < count; i++) {
        char text[ENDPOINT_TEXT_BYTES];
        struct endpoint e;
        if (!mp_str(&items[i], text, sizeof(text)))
            return bad_field(err, "endpoints");
        if (endpoint_parse(&e, text, true, NULL) == SKEP_OK && body_may_dial(&e, swarm))
            out[(*out_count)++] = e;
    }
    if (*out_count == 0)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "record endpoints: none of %zu may be dialled (empty, unspecified, port "
                         "0, or loopback in a swarm that is not), expected one at least",
                         count);
    return SKEP_OK;
}

/* All of it is optional. A level above those known is the weakest known. */
static const char *parse_claim(const msgpack_object *map, struct record_claim *out)
{
    const msgpack_object *random = mp_get(map, "random");
    const msgpack_object *since = mp_get(map, "since");
    uint32_t level = 0;

    if (!parse_u32(map, "claim", UINT32_MAX, &level))
        return "claim";
    if (random != NULL && !mp_bool(random, &out->random))
        return "random";
    if (since != NULL && (!mp_i64(since, &out->since_s) || out->since_s < 0))
        return "since";
    out->level = level < RECORD_CLAIM_NEW ? (enum record_claim_level)level : RECORD_CLAIM_NEW;
    return NULL;
}

static skep_status parse_expert(struct record_expert *out, const msgpack_object *map,
                                const struct record_swarm *swarm, struct skep_error *err)
{
    const msgpack_object *offline = mp_get(map, "offline");

    if (!mp_str(mp_get(map, "uid"), out->uid, sizeof(out->uid)))
        return bad_field(err, "uid");
    if (!mp_str(mp_get(map, "class"), out->cls, sizeof(out->cls)))
        return bad_field(err, "class");
    if (!mp_bin_exact(mp_get(map, "schema"), out->schema_digest, sizeof(out->schema_digest)))
        return bad_field(err, "schema");
    if (!parse_u32(map, "features", UINT32_MAX, &out->features))
        return bad_field(err, "features");
    if (!parse_load(map, &out->load))
        return bad_field(err, "load");
    if (offline != NULL && !mp_bool(offline, &out->offline))
        return bad_field(err, "offline");
    const char *wrong = parse_claim(map, &out->claim);
    if (wrong != NULL)
        return bad_field(err, wrong);
    return parse_endpoints(map, swarm, out->endpoints, &out->endpoint_count, err);
}

/* Lists of coordinates in a row, as many as there are. body_fault() asks whether that is right. */
static bool read_below(int64_t *out, const msgpack_object *items, size_t count)
{
    for (size_t at = 0, end; at < count; at = end) {
        int64_t n, coord = 0;
        if (!mp_i64(&items[at], &n) || n < 1 || (uint64_t)n >= count - at)
            return false;
        out[at] = n;
        end = at + 1 + (size_t)n;
        for (size_t i = at + 1; i < end; i++) {
            int64_t step;
            if (!mp_i64(&items[i], &step) || __builtin_add_overflow(coord, step, &coord))
                return false;
            out[i] = coord;
        }
    }
    return true;
}

static skep_status parse_coords(struct record_prefix *out, const msgpack_object *map,
                                struct skep_error *err)
{
    const msgpack_object *items, *below_items = NULL;
    const msgpack_object *below = mp_get(map, "below");
    size_t count, below_len = 0;
    int64_t coord = 0;

    if (!mp_array(mp_get(map, "coords"), &items, &count))
        return bad_field(err, "coords");
    if (below != NULL && (!mp_array(below, &below_items, &below_len) ||
                          below_len > RECORD_MAX_BELOW || (below_len > 0 && count == 0)))
        return bad_field(err, "below");
    if (count == 0)
        return SKEP_OK; /* nothing alive under the prefix: a withdrawal */
    out->coords = mem_calloc(count + below_len, sizeof(*out->coords));
    if (out->coords == NULL)
        return error_no_memory(err, "record coords", count * sizeof(*out->coords));
    for (size_t i = 0; i < count; i++) {
        int64_t step;
        if (!mp_i64(&items[i], &step) || step < (i > 0) ||
            __builtin_add_overflow(coord, step, &coord))
            return bad_field(err, "coords");
        out->coords[i] = coord;
    }
    out->coord_count = count;
    out->below_len = below_len;
    out->below = below_len > 0 ? out->coords + count : NULL;
    if (below_len > 0 && !read_below(out->coords + count, below_items, below_len))
        return bad_field(err, "below");
    return SKEP_OK;
}

static skep_status parse_prefix(struct record_prefix *out, const msgpack_object *map,
                                const struct record_swarm *swarm, struct skep_error *err)
{
    if (!mp_str(mp_get(map, "prefix"), out->prefix, sizeof(out->prefix)))
        return bad_field(err, "prefix");
    if (!parse_u32(map, "features", UINT32_MAX, &out->features))
        return bad_field(err, "features");
    if (!parse_u32(map, "part", RECORD_MAX_PARTS, &out->part))
        return bad_field(err, "part");
    if (!parse_u32(map, "parts", RECORD_MAX_PARTS, &out->parts))
        return bad_field(err, "parts");
    if (!parse_u32(map, "depth", UID_MAX_COORDS, &out->depth))
        return bad_field(err, "depth");
    if (!parse_load(map, &out->load))
        return bad_field(err, "load");
    skep_status rc = parse_endpoints(map, swarm, out->endpoints, &out->endpoint_count, err);
    return rc == SKEP_OK ? parse_coords(out, map, err) : rc;
}

static skep_status parse_node(struct record_node *out, const msgpack_object *map,
                              const struct record_swarm *swarm, struct skep_error *err)
{
    if (!parse_u32(map, "features", UINT32_MAX, &out->features))
        return bad_field(err, "features");
    if (!mp_str(mp_get(map, "state"), out->state, sizeof(out->state)))
        return bad_field(err, "state");
    if (!mp_str(mp_get(map, "version"), out->version, sizeof(out->version)))
        return bad_field(err, "version");
    if (!parse_u32(map, "experts", UINT32_MAX, &out->expert_count))
        return bad_field(err, "experts");
    if (!parse_load(map, &out->load))
        return bad_field(err, "load");
    return parse_endpoints(map, swarm, out->endpoints, &out->endpoint_count, err);
}

/* An endpoint that may be missing; one that nobody may dial counts as missing. */
static bool parse_tvm(const msgpack_object *map, const struct record_swarm *swarm,
                      struct endpoint *out)
{
    const msgpack_object *o = mp_get(map, "tvm");
    char text[ENDPOINT_TEXT_BYTES];

    *out = (struct endpoint){0};
    if (o == NULL)
        return true;
    if (!mp_str(o, text, sizeof(text)))
        return false;
    if (endpoint_parse(out, text, true, NULL) != SKEP_OK || !body_may_dial(out, swarm))
        *out = (struct endpoint){0};
    return true;
}

static bool parse_offline(const msgpack_object *map, bool *out)
{
    const msgpack_object *o = mp_get(map, "offline");

    *out = false;
    return o == NULL || mp_bool(o, out);
}

static skep_status parse_tracker(struct record_tracker *out, const msgpack_object *map,
                                 const struct record_swarm *swarm, struct skep_error *err)
{
    if (!parse_u32(map, "features", UINT32_MAX, &out->features))
        return bad_field(err, "features");
    if (!mp_str(mp_get(map, "version"), out->version, sizeof(out->version)))
        return bad_field(err, "version");
    if (!parse_u32(map, "keys", UINT32_MAX, &out->key_count))
        return bad_field(err, "keys");
    if (!parse_tvm(map, swarm, &out->tvm))
        return bad_field(err, "tvm");
    if (!parse_offline(map, &out->offline))
        return bad_field(err, "offline");
    return parse_endpoints(map, swarm, out->endpoints, &out->endpoint_count, err);
}

/* Addresses of resources: those that may not be dialled are left out, possibly all. */
static skep_status parse_addresses(struct record_resource *out, const msgpack_object *map,
                                   const struct record_swarm *swarm, struct skep_error *err)
{
    const msgpack_object *items;
    size_t count;

    if (!mp_array(mp_get(map, "addresses"), &items, &count))
        return bad_field(err, "addresses");
    if (count > RECORD_MAX_ADDRESSES)
        return error_set(err, SKEP_INVALID_ARGUMENT, "record addresses: %zu, expected at most %d",
                         count, RECORD_MAX_ADDRESSES);
    if (count == 0)
        return SKEP_OK;
    out->addresses = mem_calloc(count, sizeof(*out->addresses));
    if (out->addresses == NULL)
        return error_no_memory(err, "record addresses", count * sizeof(*out->addresses));
    for (size_t i = 0; i < count; i++) {
        struct endpoint *e = &out->addresses[out->address_count];
        char text[ENDPOINT_TEXT_BYTES];
        if (!mp_str(&items[i], text, sizeof(text)))
            return bad_field(err, "addresses");
        if (endpoint_parse(e, text, true, NULL) == SKEP_OK && body_may_dial(e, swarm))
            out->address_count++;
    }
    return SKEP_OK;
}

static skep_status parse_resource(struct record_resource *out, const msgpack_object *map,
                                  const struct record_swarm *swarm, struct skep_error *err)
{
    if (!mp_str(mp_get(map, "key"), out->key, sizeof(out->key)))
        return bad_field(err, "key");
    if (!parse_u32(map, "features", UINT32_MAX, &out->features))
        return bad_field(err, "features");
    if (!parse_u32(map, "free", UINT32_MAX, &out->free))
        return bad_field(err, "free");
    if (!parse_u32(map, "pending", UINT32_MAX, &out->pending))
        return bad_field(err, "pending");
    if (!parse_tvm(map, swarm, &out->tvm))
        return bad_field(err, "tvm");
    if (!parse_offline(map, &out->offline))
        return bad_field(err, "offline");
    skep_status rc = parse_endpoints(map, swarm, out->endpoints, &out->endpoint_count, err);
    return rc == SKEP_OK ? parse_addresses(out, map, swarm, err) : rc;
}

skep_status body_parse(struct record *out, const msgpack_object *map,
                       const struct record_swarm *swarm, struct skep_error *err)
{
    skep_status rc;

    if (map->type != MSGPACK_OBJECT_MAP)
        return error_set(err, SKEP_DATA_LOSS, "record body: not a map");
    switch (out->kind) {
    case RECORD_EXPERT:
        rc = parse_expert(&out->expert, map, swarm, err);
        break;
    case RECORD_PREFIX:
        rc = parse_prefix(&out->prefix, map, swarm, err);
        break;
    case RECORD_NODE:
        rc = parse_node(&out->node, map, swarm, err);
        break;
    case RECORD_TRACKER:
        rc = parse_tracker(&out->tracker, map, swarm, err);
        break;
    case RECORD_RESOURCE:
        rc = parse_resource(&out->resource, map, swarm, err);
        break;
    default:
        return error_set(err, SKEP_DATA_LOSS, "record kind: %d, expected %d to %d", (int)out->kind,
                         RECORD_EXPERT, RECORD_RESOURCE);
    }
    const char *wrong = rc == SKEP_OK ? body_fault(out) : NULL;
    if (wrong != NULL)
        rc = error_set(err, SKEP_DATA_LOSS, "record %s", wrong);
    if (rc != SKEP_OK)
        record_free(out);
    return rc;
}
