/* skep stats: what a running node counts. */
#include <inttypes.h>
#include <string.h>

#include "base/mp.h"
#include "base/text.h"
#include "cli/client_options.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"
#include "client/node_stats.h"

enum { TEXT_BYTES = 256, NAME_BYTES = 256 }; /* longer than any that a node sends */

static const struct option_spec specs[] = {
    {.name = "endpoint",
     .kind = OPTION_ENDPOINT,
     .help = "ask the node at this address, without the DHT"},
    CLIENT_OPTION_SPECS,
};

static const struct option_table table = {
    .command = "stats",
    .summary = "Shows what a running node counts: calls, batches, records, checkpoints, its "
               "tracker. NODE is its peer id or the first digits of it, as skep peers lists them. "
               "docs/methods.md explains each name. The exit code is 3 if no such node is "
               "published.",
    .example = "skep stats 4f1b9c02a7de --initial-peers 192.0.2.10:4222\n"
               "skep stats --endpoint 127.0.0.1:8000 --json",
    .positional = "NODE",
    .positional_min = 0,
    .positional_max = 1,
    .specs = specs,
    .count = OPTION_COUNT(specs),
};
const struct option_table *const cmd_stats_options = &table;

static json_t *json_of(const msgpack_object *o);

static json_t *json_of_map(const msgpack_object *o)
{
    json_t *map = json_object();
    char name[NAME_BYTES];

    for (uint32_t i = 0; i < o->via.map.size; i++) {
        const msgpack_object_kv *field = &o->via.map.ptr[i];
        if (mp_str(&field->key, name, sizeof(name))) { /* other keys are none of `stats` */
            text_tame(name);
            json_object_set_new(map, name, json_of(&field->val));
        }
    }
    return map;
}

static json_t *json_of_array(const msgpack_object *o)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < o->via.array.size; i++)
        json_array_append_new(list, json_of(&o->via.array.ptr[i]));
    return list;
}

/* A peer id, for one. */
static json_t *json_of_bin(const msgpack_object *o)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *data;
    size_t len;
    char text[TEXT_BYTES];

    if (!mp_bin(o, &data, &len) || len > (sizeof(text) - 1) / 2)
        return json_null();
    for (size_t i = 0; i < len; i++) {
        text[2 * i] = digits[data[i] >> 4];
        text[2 * i + 1] = digits[data[i] & 15];
    }
    text[2 * len] = '\0';
    return json_string(text);
}

/* A node chose the bytes: texts are tamed, and what JSON cannot hold is null. mp_parse() has
 * bounded the depth. */
static json_t *json_of(const msgpack_object *o)
{
    char text[TEXT_BYTES];
    int64_t number;
    double real;
    bool flag;

    if (o->type == MSGPACK_OBJECT_MAP)
        return json_of_map(o);
    if (o->type == MSGPACK_OBJECT_ARRAY)
        return json_of_array(o);
    if (o->type == MSGPACK_OBJECT_BIN)
        return json_of_bin(o);
    if (mp_bool(o, &flag))
        return json_boolean(flag);
    if (mp_i64(o, &number))
        return json_integer((json_int_t)number);
    if (mp_str(o, text, sizeof(text))) {
        text_tame(text);
        return json_string(text);
    }
    json_t *value = mp_f64(o, &real) ? json_real(real) : NULL; /* NaN has no JSON */
    return value != NULL ? value : json_null();
}

static void cell_of(struct table *t, const json_t *value)
{
    if (json_is_integer(value))
        table_cell(t, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        table_cell(t, "%g", json_real_value(value));
    else if (json_is_boolean(value))
        table_cell(t, "%s", json_is_true(value) ? "yes" : "no");
    else
        table_cell(t, "%s", json_is_string(value) ? json_string_value(value) : "-");
}

/* One row a value, named by the way to it: tracker.waits.0. */
static void add_rows(struct table *t, const char *parent, json_t *value)
{
    const char *key;
    json_t *item;
    size_t i;
    char name[NAME_BYTES];
    const char *dot = parent[0] != '\0' ? "." : "";

    if (json_is_object(value)) {
        json_object_foreach(value, key, item)
        {
            snprintf(name, sizeof(name), "%s%s%s", parent, dot, key);
            add_rows(t, name, item);
        }
    } else if (json_is_array(value)) {
        json_array_foreach(value, i, item)
        {
            snprintf(name, sizeof(name), "%s%s%zu", parent, dot, i);
            add_rows(t, name, item);
        }
    } else {
        table_cell(t, "%s", parent);
        cell_of(t, value);
    }
}

static bool print_table(json_t *stats)
{
    static const char *const headers[] = {"counter", ">value"};
    struct table *t = table_new(headers, OPTION_COUNT(headers));

    add_rows(t, "", stats);
    bool ok = table_print(t, stdout);
    table_free(t);
    return ok;
}

static int print_stats(const struct bytes *result, bool json)
{
    struct skep_error err = {0};
    struct mp mp = {0};
    int code = CLI_FAILED;

    if (mp_parse(&mp, result->data, result->len, "the node's answer to stats", &err) != SKEP_OK) {
        code = cli_fail(table.command, &err);
    } else {
        json_t *stats = json_of(mp.root);
        if (json)
            code = json_print(stats, stdout) ? CLI_DONE : CLI_FAILED;
        else {
            code = print_table(stats) ? CLI_DONE : CLI_FAILED;
            json_decref(stats);
        }
    }
    mp_free(&mp);
    return code;
}

static int ask(const struct options *o)
{
    const struct endpoint *endpoint = options_endpoint(o, "endpoint");
    struct skep_client *client;
    uint64_t deadline_us;
    struct bytes result = {0};
    struct skep_error err = {0};
    int code = client_from_options(table.command, o, endpoint != NULL, &client, &deadline_us);

    if (code != CLI_DONE)
        return code;
    skep_status rc =
        endpoint != NULL
            ? client_stats_at(client, endpoint, client_left_ms(deadline_us), &result, &err)
            : client_stats_of(client, o->positional[0], client_left_ms(deadline_us), &result, &err);
    code = rc == SKEP_OK ? print_stats(&result, options_flag(o, "json"))
                         : cli_fail(table.command, &err);
    bytes_free(&result);
    skep_client_free(client);
    return code;
}

/* NODE or --endpoint, one of them. */
static int check_usage(struct options *o)
{
    const char *node = o->positional_count > 0 ? o->positional[0] : NULL;
    bool direct = options_endpoint(o, "endpoint") != NULL;

    if (node == NULL && !direct)
        return cli_usage_error(table.command,
                               "NODE or --endpoint is needed: the node to ask; skep peers lists "
                               "those of a swarm");
    if (node != NULL && direct)
        return cli_usage_error(
            table.command, "%s contradicts --endpoint, which names a node by its address", node);
    if (node != NULL && (node[0] == '\0' || strspn(node, "0123456789abcdef") != strlen(node)))
        return cli_usage_error(table.command,
                               "NODE %s, expected a peer id or its first digits (0-9, a-f); "
                               "use --endpoint for an address",
                               node);
    return client_options_check_direct(o);
}

int cmd_stats(int argc, char **argv)
{
    struct options o;
    int code;

    if (!options_begin(&o, &table, argc, argv, &code))
        return code;
    code = check_usage(&o);
    if (code == CLI_DONE)
        code = ask(&o);
    options_free(&o);
    return code;
}
