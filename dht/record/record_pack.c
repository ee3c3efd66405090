/* Bodies of records as msgpack maps: docs/records.md. */
#include "dht/record/record_internal.h"

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
    const struct record_claim *claim = &expert->claim;
    size_t fields =
        6u + expert->offline + (claim->level > 0) + claim->random + (claim->since_s > 0);
    int failed = msgpack_pack_map(pk, fields);

    failed |= pack_text(pk, "uid", expert->uid);
    failed |= pack_endpoints(pk, expert->endpoints, expert->endpoint_count);
    failed |= pack_text(pk, "class", expert->cls);
    failed |= mp_pack_str(pk, "schema");
    failed |= mp_pack_bin(pk, expert->schema_digest, sizeof(expert->schema_digest));
    failed |= pack_number(pk, "features", expert->features);
    failed |= pack_load(pk, &expert->load);
    if (expert->offline)
        failed |= mp_pack_str(pk, "offline") | msgpack_pack_true(pk);
    if (claim->level > 0)
        failed |= pack_number(pk, "claim", claim->level);
    if (claim->random)
        failed |= mp_pack_str(pk, "random") | msgpack_pack_true(pk);
    if (claim->since_s > 0)
        failed |= pack_number(pk, "since", (uint64_t)claim->since_s);
    return failed;
}

static bool says_load(const struct record_load *load)
{
    return load->examples_per_s > 0 || load->queued_tasks > 0;
}

/* Coordinates travel as differences: a full row of 256 costs 256 bytes. */
/* As are_below() has found them; each list like coords. */
static int pack_below(msgpack_packer *pk, const struct record_prefix *prefix)
{
    if (prefix->below_len == 0)
        return 0;
    int failed = mp_pack_str(pk, "below") | msgpack_pack_array(pk, prefix->below_len);
    for (size_t at = 0, end; at < prefix->below_len; at = end) {
        end = at + 1 + (size_t)prefix->below[at];
        failed |= msgpack_pack_uint64(pk, (uint64_t)prefix->below[at]);
        for (size_t i = at + 1; i < end; i++) {
            int64_t before = i > at + 1 ? prefix->below[i - 1] : 0;
            failed |= msgpack_pack_uint64(pk, (uint64_t)(prefix->below[i] - before));
        }
    }
    return failed;
}

static int pack_prefix(msgpack_packer *pk, const struct record_prefix *prefix)
{
    size_t fields = 6u + (prefix->depth > 0) + (prefix->below_len > 0) + says_load(&prefix->load);
    int failed = msgpack_pack_map(pk, fields);

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
    failed |= pack_below(pk, prefix);
    /* There are many of these records, and most nodes idle: no load is not said. */
    return says_load(&prefix->load) ? failed | pack_load(pk, &prefix->load) : failed;
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
