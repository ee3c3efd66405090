/* What trackers of the swarm publish under a key. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "client/client_internal.h"
#include "dht/directory/directory_list.h"

static void fill_row(const struct record *record, size_t address, struct skep_tracked_resource *out)
{
    const struct record_resource *r = &record->resource;

    if (address < r->address_count) {
        snprintf(out->host, sizeof(out->host), "%s", r->addresses[address].host);
        out->port = r->addresses[address].port;
    }
    if (r->tvm.host[0] != '\0')
        endpoint_format(&r->tvm, out->tracker);
    peer_id_hex(record->peer_id, out->tracker_peer_id);
    endpoint_format(&r->endpoints[0], out->tracker_endpoint);
    out->free = r->free;
    out->pending = r->pending;
    out->expires_at = record->expires_at;
}

static size_t rows_of(const struct record *record)
{
    return record->resource.address_count > 0 ? record->resource.address_count : 1;
}

skep_status skep_client_find_resources(struct skep_client *client, const char *key,
                                       uint32_t timeout_ms, struct skep_tracked_resource **out,
                                       size_t *count, struct skep_error *err)
{
    struct record_list list = {0};
    size_t rows = 0, n = 0;

    *out = NULL;
    *count = 0;
    skep_status rc = error_if_null(key, "key", err);
    if (rc != SKEP_OK)
        return rc;
    if (client->swarm == NULL)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "client: started without the DHT, so nothing can be looked up");
    rc = directory_find_resource(
        swarm_directory(client->swarm), key, false,
        clock_deadline_us(timeout_ms != 0 ? timeout_ms : client->timeout_ms), &list, err);
    if (rc != SKEP_OK) {
        error_prefix(err, "resource %.80s", key);
        return rc;
    }
    for (size_t i = 0; i < list.count; i++)
        rows += rows_of(&list.items[i]);
    *out = mem_calloc(rows, sizeof(**out));
    if (*out == NULL)
        rc = error_no_memory(err, "resources", rows * sizeof(**out));
    for (size_t i = 0; i < list.count && rc == SKEP_OK; i++)
        for (size_t a = 0; a < rows_of(&list.items[i]); a++)
            fill_row(&list.items[i], a, &(*out)[n++]);
    *count = n;
    record_list_free(&list);
    return rc;
}

void skep_tracked_resources_free(struct skep_tracked_resource *resources)
{
    mem_free(resources);
}
