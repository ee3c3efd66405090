/* Bodies of records: what may stand in them. record_pack.c and record_parse.c turn them into
 * msgpack maps and back. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "dht/record/record_internal.h"

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

bool body_may_dial(const struct endpoint *e, const struct record_swarm *swarm)
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

static bool are_below(const struct record_prefix *prefix)
{
    size_t at = 0;

    if (prefix->below_len == 0)
        return true;
    if (prefix->depth < 2 || prefix->below_len > RECORD_MAX_BELOW)
        return false;
    for (size_t i = 0; i < prefix->coord_count; i++) {
        if (at == prefix->below_len || prefix->below[at] < 1 ||
            (uint64_t)prefix->below[at] >= prefix->below_len - at)
            return false;
        size_t end = at + 1 + (size_t)prefix->below[at];
        for (size_t k = at + 1; k < end; k++)
            if (prefix->below[k] < 0 || (k > at + 1 && prefix->below[k] <= prefix->below[k - 1]))
                return false;
        at = end;
    }
    return at == prefix->below_len;
}

static bool is_resource_key(const char *key)
{
    return key[0] != '\0' && text_is_utf8(key, strlen(key));
}

const char *body_fault(const struct record *record)
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
        if (!are_coords(&record->prefix))
            return "coords: not ascending, negative, or not of a part below the number of parts";
        if (!are_below(&record->prefix))
            return "below: not as many ascending lists as coords, too long, or of no depth";
        return is_load(&record->prefix.load) ? NULL : "load: not a finite rate of at least 0";
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

    if (tvm != NULL && tvm->host[0] != '\0' && !body_may_dial(tvm, swarm))
        return error_set(err, SKEP_INVALID_ARGUMENT, "record tvm %s: others cannot dial it",
                         endpoint_format(tvm, text));
    if (record->kind != RECORD_RESOURCE)
        return SKEP_OK;
    if (r->address_count > RECORD_MAX_ADDRESSES)
        return error_set(err, SKEP_INVALID_ARGUMENT, "record addresses: %zu, expected at most %d",
                         r->address_count, RECORD_MAX_ADDRESSES);
    for (size_t i = 0; i < r->address_count; i++)
        if (!body_may_dial(&r->addresses[i], swarm))
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
    const char *wrong = body_fault(record);

    if (wrong != NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT, "record %s", wrong);
    if (count == 0 || count > RECORD_MAX_ENDPOINTS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "record endpoints: %zu, expected 1 to %d",
                         count, RECORD_MAX_ENDPOINTS);
    for (size_t i = 0; i < count; i++)
        if (!body_may_dial(&endpoints[i], swarm))
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "record endpoint %s: others cannot dial it, expected an address of "
                             "this machine that they reach, with its port",
                             endpoint_format(&endpoints[i], text));
    return check_optional_endpoints(record, swarm, err);
}
