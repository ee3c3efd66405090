/* Bodies of records: structures <-> msgpack maps, and what may stand in them. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "dht/record_internal.h"

static const char *const node_states[] = {"joining", "online", "draining", "offline"};

const struct endpoint *record_endpoints(const struct record *record, size_t *count)
{
    switch (record->kind) {
    case RECORD_EXPERT:
        *count = record->expert.endpoint_count;
        return record->expert.endpoints;
    case RECORD_PREFIX:
        *count = record->prefix.endpoint_count;
        return record->prefix.endpoints;
    case RECORD_NODE:
        *count = record->node.endpoint_count;
        return record->node.endpoints;
    case RECORD_TRACKER:
        *count = record->tracker.endpoint_count;
        return record->tracker.endpoints;
    case RECORD_RESOURCE:
        *count = record->resource.endpoint_count;
        return record->resource.endpoints;
    default:
        *count = 0;
        return NULL;
    }
}

void record_free(struct record *record)
{
    if (record == NULL)
        return;
    if (record->kind == RECORD_PREFIX)
        mem_free(record->prefix.coords);
    if (record->kind == RECORD_RESOURCE)
        mem_free(record->resource.addresses);
    memset(record, 0, sizeof(*record));
}

/* Names and versions end up on terminals: no control characters, no bytes above ASCII. */
static bool is_plain_text(const char *text)
{
    for (; *text != '\0'; text++)
        if (*text < 0x21 || *text > 0x7e)
            return false;
    return true;
}

static bool is_dialable(const struct endpoint *e, const struct record_swarm *swarm)
{
    return endpoint_is_usable(e) && is_plain_text(e->host) &&
           (swarm->loopback || !endpoint_is_loopback(e));
}

static bool is_node_state(const char *state)
{
    for (size_t i = 0; i < sizeof(node_states) / sizeof(node_states[0]); i++)
        if (strcmp(node_states[i], state) == 0)
            return true;
    return false;
}

static bool is_load(const struct record_load *load)
{
    return isfinite(load->examples_per_s) && load->examples_per_s >= 0;
}

static bool are_coords(const struct record_prefix *prefix)
{
    if (prefix->parts == 0 || prefix->parts > RECORD_MAX_PARTS || prefix->part >= prefix->parts ||
        prefix->coord_count > RECORD_MAX_PREFIX_BYTES)
        return false;
    for (size_t i = 0; i < prefix->coord_count; i++)
        if (prefix->coords[i] < 0 || (i > 0 && prefix->coords[i] <= prefix->coords[i - 1]))
            return false;
    return true;
}

static bool is_resource_key(const char *key)
{
    return key[0] != '\0' && text_is_utf8(key, strlen(key));
}

/* Everything but the endpoints; the sentence says what was expected. NULL if all is well. */
static const char *what_is_wrong(const struct record *record)
{
    switch (record->kind) {
    case RECORD_EXPERT:
        if (!uid_is_valid(record->expert.uid, strlen(record->expert.uid)))
            return "uid: not an expert UID";
        if (record->expert.cls[0] == '\0' || !is_plain_text(record->expert.cls))
            return "class: not 1 to 31 printable characters";
        return is_load(&record->expert.load) ? NULL : "load: not a finite rate of at least 0";
    case RECORD_PREFIX:
        if (!uid_prefix_is_valid(record->prefix.prefix, strlen(record->prefix.prefix)))
            return "prefix: not a prefix of expert UIDs";
        return are_coords(&record->prefix)
                   ? NULL
                   : "coords: not ascending, negative, or not of a part below the number of parts";
    case RECORD_NODE:
        if (!is_node_state(record->node.state))
            return "state: not joining, online, draining or offline";
        if (!is_plain_text(record->node.version))
            return "version: not printable characters";
        return is_load(&record->node.load) ? NULL : "load: not a finite rate of at least 0";
    case RECORD_TRACKER:
        return is_plain_text(record->tracker.version) ? NULL : "version: not printable characters";
    case RECORD_RESOURCE:
        return is_resource_key(record->resource.key) ? NULL : "key: not 1 to 255 bytes of UTF-8";
    default:
        return "kind: not expert, prefix, node, tracker or resource";
    }
}

/* What a tracker and a resource name besides the endpoints of their node. */
static skep_status check_optional_endpoints(const struct record *record,
                                            const struct record_swarm *swarm,
                                            struct skep_error *err)
{
    const struct record_resource *r = &record->resource;
    const struct endpoint *tvm = record->kind == RECORD_TRACKER    ? &record->tracker.tvm
                                 : record->kind == RECORD_RESOURCE ? &r->tvm
                                                                   : NULL;
    char text[ENDPOINT_TEXT_BYTES];

    if (tvm != NULL && tvm->host[0] != '\0' && !is_dialable(tvm, swarm))
        return error_set(err, SKEP_INVALID_ARGUMENT, "record tvm %s: others cannot dial it",
                         endpoint_format(tvm, text));
    if (record->kind != RECORD_RESOURCE)
        return SKEP_OK;
    if (r->address_count > RECORD_MAX_ADDRESSES)
        return error_set(err, SKEP_INVALID_ARGUMENT, "record addresses: %zu, expected at most %d",
                         r->address_count, RECORD_MAX_ADDRESSES);
    for (size_t i = 0; i < r->address_count; i++)
        if (!is_dialable(&r->addresses[i], swarm))
            return error_set(err, SKEP_INVALID_ARGUMENT, "record address %s: others cannot dial it",
                             endpoint_format(&r->addresses[i], text));
    return SKEP_OK;
}

skep_status body_check(const struct record *record, const struct record_swarm *swarm,
                       struct skep_error *err)
{
    char text[ENDPOINT_TEXT_BYTES];
    size_t count;
    const struct endpoint *endpoints = record_endpoints(record, &count);
    const char *wrong = what_is_wrong(record);

    if (wrong != NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT, "record %s", wrong);
    if (count == 0 || count > RECORD_MAX_ENDPOINTS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "record endpoints: %zu, expected 1 to %d",
                         count, RECORD_MAX_ENDPOINTS);
    for (size_t i = 0; i < count; i++)
        if (!is_dialable(&endpoints[i], swarm))
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "record endpoint %s: others cannot dial it, expected an address of "
                             "this machine that they reach, with its port",
                             endpoint_format(&endpoints[i], text));
    return check_optional_endpoints(record, swarm, err);
}

static int write_bytes(void *out, const char *data, size_t len)
{
    return bytes_append(out, data, len) ? 0 : -1;
}

void record_packer_init(msgpack_packer *pk, struct bytes *out)
{
    msgpack_packer_init(pk, out, write_bytes);
}

static int pack_endpoints(msgpack_packer *pk, const struct endpoint *endpoints, size_t count)
{
    char text[ENDPOINT_TEXT_BYTES];
    int failed = mp_pack_str(pk, "endpoints") | msgpack_pack_array(pk, count);

    for (size_t i = 0; i < count; i++)
        failed |= mp_pack_str(pk, endpoint_format(&endpoints[i], text));
    return failed;
}

static int pack_text(msgpack_packer *pk, const char *name, const char *text)
{
    return mp_pack_str(pk, name) | mp_pack_str(pk, text);
}

static int pack_number(msgpack_packer *pk, const char *name, uint64_t value)
{
    return mp_pack_str(pk, name) | msgpack_pack_uint64(pk, value);
}

static int pack_load(msgpack_packer *pk, const struct record_load *load)
{
    return mp_pack_str(pk, "load") | msgpack_pack_array(pk, 2) |
           msgpack_pack_double(pk, load->examples_per_s) |
           msgpack_pack_uint32(pk, load->queued_tasks);
}

static int pack_expert(msgpack_packer *pk, const struct record_expert *expert)
{
    int failed = msgpack_pack_map(pk, expert->offline ? 7 : 6);

    failed |= pack_text(pk, "uid", expert->uid);
    failed |= pack_endpoints(pk, expert->endpoints, expert->endpoint_count);
    failed |= pack_text(pk, "class", expert->cls);
    failed |= mp_pack_str(pk, "schema");
    failed |= mp_pack_bin(pk, expert->schema_digest, sizeof(expert->schema_digest));
    failed |= pack_number(pk, "features", expert->features);
    failed |= pack_load(pk, &expert->load);
    if (expert->offline)
        failed |= mp_pack_str(pk, "offline") | msgpack_pack_true(pk);
    return failed;
}

/* Coordinates travel as differences: a full row of 256 costs 256 bytes. */
static int pack_prefix(msgpack_packer *pk, const struct record_prefix *prefix)
{
    int failed = msgpack_pack_map(pk, prefix->depth > 0 ? 7 : 6);

    failed |= pack_text(pk, "prefix", prefix->prefix);
    failed |= pack_endpoints(pk, prefix->endpoints, prefix->endpoint_count);
    failed |= pack_number(pk, "features", prefix->features);
    failed |= pack_number(pk, "part", prefix->part);
    failed |= pack_number(pk, "parts", prefix->parts);
    if (prefix->depth > 0)
        failed |= pack_number(pk, "depth", prefix->depth);
    failed |= mp_pack_str(pk, "coords") | msgpack_pack_array(pk, prefix->coord_count);
    for (size_t i = 0; i < prefix->coord_count; i++) {
        int64_t before = i > 0 ? prefix->coords[i - 1] : 0;
        failed |= msgpack_pack_uint64(pk, (uint64_t)(prefix->coords[i] - before));
    }
    return failed;
}

static int pack_node(msgpack_packer *pk, const struct record_node *node)
{
    int failed = msgpack_pack_map(pk, 6);

    failed |= pack_endpoints(pk, node->endpoints, node->endpoint_count);
    failed |= pack_number(pk, "features", node->features);
    failed |= pack_text(pk, "state", node->state);
    failed |= pack_text(pk, "version", node->version);
    failed |= pack_number(pk, "experts", node->expert_count);
    failed |= pack_load(pk, &node->load);
    return failed;
}

static int pack_offline(msgpack_packer *pk, bool offline)
{
    return offline ? mp_pack_str(pk, "offline") | msgpack_pack_true(pk) : 0;
}

static int pack_tvm(msgpack_packer *pk, const struct endpoint *tvm)
{
    char text[ENDPOINT_TEXT_BYTES];

    return tvm->host[0] != '\0' ? pack_text(pk, "tvm", endpoint_format(tvm, text)) : 0;
}

static int pack_tracker(msgpack_packer *pk, const struct record_tracker *t)
{
    size_t fields = 4u + (t->tvm.host[0] != '\0' ? 1 : 0) + (t->offline ? 1 : 0);
    int failed = msgpack_pack_map(pk, fields);

    failed |= pack_endpoints(pk, t->endpoints, t->endpoint_count);
    failed |= pack_number(pk, "features", t->features);
    failed |= pack_text(pk, "version", t->version);
    failed |= pack_number(pk, "keys", t->key_count);
    failed |= pack_tvm(pk, &t->tvm);
    return failed | pack_offline(pk, t->offline);
}

static int pack_resource(msgpack_packer *pk, const struct record_resource *r)
{
    size_t fields = 6u + (r->tvm.host[0] != '\0' ? 1 : 0) + (r->offline ? 1 : 0);
    char text[ENDPOINT_TEXT_BYTES];
    int failed = msgpack_pack_map(pk, fields);

    failed |= pack_text(pk, "key", r->key);
    failed |= pack_endpoints(pk, r->endpoints, r->endpoint_count);
    failed |= pack_number(pk, "features", r->features);
    failed |= pack_number(pk, "free", r->free);
    failed |= pack_number(pk, "pending", r->pending);
    failed |= mp_pack_str(pk, "addresses") | msgpack_pack_array(pk, r->address_count);
    for (size_t i = 0; i < r->address_count; i++)
        failed |= mp_pack_str(pk, endpoint_format(&r->addresses[i], text));
    failed |= pack_tvm(pk, &r->tvm);
    return failed | pack_offline(pk, r->offline);
}

bool body_pack(const struct record *record, struct bytes *out)
{
    msgpack_packer pk;

    record_packer_init(&pk, out);
    switch (record->kind) {
    case RECORD_EXPERT:
        return pack_expert(&pk, &record->expert) == 0;
    case RECORD_PREFIX:
        return pack_prefix(&pk, &record->prefix) == 0;
    case RECORD_NODE:
        return pack_node(&pk, &record->node) == 0;
    case RECORD_TRACKER:
        return pack_tracker(&pk, &record->tracker) == 0;
    case RECORD_RESOURCE:
        return pack_resource(&pk, &record->resource) == 0;
    default:
        return false;
    }
}

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
        if (endpoint_parse(&e, text, true, NULL) == SKEP_OK && is_dialable(&e, swarm))
            out[(*out_count)++] = e;
    }
    if (*out_count == 0)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "record endpoints: none of %zu may be dialled (empty, unspecified, port "
                         "0, or loopback in a swarm that is not), expected one at least",
                         count);
    return SKEP_OK;
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
    return parse_endpoints(map, swarm, out->endpoints, &out->endpoint_count, err);
}

static skep_status parse_coords(struct record_prefix *out, const msgpack_object *map,
                                struct skep_error *err)
{
    const msgpack_object *items;
    size_t count;
    int64_t coord = 0;

    if (!mp_array(mp_get(map, "coords"), &items, &count))
        return bad_field(err, "coords");
    if (count == 0)
        return SKEP_OK; /* nothing alive under the prefix: a withdrawal */
    out->coords = mem_calloc(count, sizeof(*out->coords));
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
    if (endpoint_parse(out, text, true, NULL) != SKEP_OK || !is_dialable(out, swarm))
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
        if (endpoint_parse(e, text, true, NULL) == SKEP_OK && is_dialable(e, swarm))
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
    const char *wrong = rc == SKEP_OK ? what_is_wrong(out) : NULL;
    if (wrong != NULL)
        rc = error_set(err, SKEP_DATA_LOSS, "record %s", wrong);
    if (rc != SKEP_OK)
        record_free(out);
    return rc;
}
