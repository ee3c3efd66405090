/* skep query-tracker: what a tracker has, or one resource of it. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"
#include "tracker/client.h"

enum {
    KEYS_SHOWN = 8,
    KEYS_MS = 1000, /* of the time, a quarter at most: to tell which keys there are instead */
};

static const struct option_spec specs[] = {
    {.name = "host",
     .kind = OPTION_STRING,
     .placeholder = "HOST",
     .default_text = "localhost",
     .help = "tracker's name or address"},
    {.name = "port",
     .kind = OPTION_INT,
     .min = 1,
     .max = 65535,
     .default_text = "9190",
     .help = "tracker's TCP port"},
    {.name = "request",
     .kind = OPTION_STRING,
     .placeholder = "KEY",
     .help = "request a resource of this key; print its address and match key"},
    {.name = "priority",
     .kind = OPTION_INT,
     .min = INT64_MIN,
     .max = INT64_MAX,
     .default_text = "1",
     .help = "priority of --request; higher ones are served first"},
    {.name = "timeout",
     .kind = OPTION_INT,
     .min = 1,
     .max = 3600000,
     .unit = "ms",
     .default_text = "5s",
     .help = "time limit for the whole command, waiting for a resource included"},
    {.name = "json", .kind = OPTION_FLAG, .help = "print JSON for programs"},
};

static const struct option_table table = {
    .command = "query-tracker",
    .summary = "Shows the servers and queues of a tracker, or asks it for a resource.",
    .example = "skep query-tracker --host 192.0.2.10 --port 9190\n"
               "skep query-tracker --host 192.0.2.10 --request ffn --json",
    .specs = specs,
    .count = OPTION_COUNT(specs),
};
const struct option_table *const cmd_query_tracker_options = &table;

static skep_status read_tracker(const struct options *o, struct endpoint *out,
                                struct skep_error *err)
{
    const char *host = options_string(o, "host");
    size_t len = strlen(host);

    *out = (struct endpoint){.port = (uint16_t)options_int(o, "port")};
    if (len > 1 && host[0] == '[' && host[len - 1] == ']') {
        host++;
        len -= 2;
    }
    if (len == 0 || len >= sizeof(out->host))
        return error_set(err, SKEP_INVALID_ARGUMENT, "--host: %zu characters, expected 1 to %zu",
                         len, sizeof(out->host) - 1);
    const char *colon = strchr(host, ':');
    if (colon != NULL && strchr(colon + 1, ':') == NULL) /* no IPv6 address has only one */
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "--host: \"%s\" holds a port, expected \"%.*s\" and --port %s", host,
                         (int)(colon - host), host, colon + 1);
    memcpy(out->host, host, len);
    return SKEP_OK;
}

/* ---- the table ---- */

/* Text from strangers as a terminal may show it, terminated: what is left of NUL is a '?' too. */
static char *showable(const char *text, size_t len)
{
    char *shown = mem_alloc(len + 1);

    if (shown == NULL)
        return NULL;
    for (size_t i = 0; i < len; i++)
        shown[i] = text[i] != '\0' ? text[i] : '?';
    shown[len] = '\0';
    text_tame(shown);
    return shown;
}

static int characters(const char *text)
{
    int count = 0;

    for (; *text != '\0'; text++)
        count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

struct row {
    char *text;      /* owned */
    const char *key; /* view of the answer; not terminated */
    size_t key_len;
    long long total, free, pending;
};

static int by_text(const void *a, const void *b)
{
    return strcmp(((const struct row *)a)->text, ((const struct row *)b)->text);
}

static void free_rows(struct row *rows, size_t count)
{
    for (size_t i = 0; rows != NULL && i < count; i++)
        mem_free(rows[i].text);
    mem_free(rows);
}

static void print_line(int width)
{
    for (int i = 0; i < width; i++)
        putchar('-');
    putchar('\n');
}

/* The address as other tools show it: the parts with a colon between. */
static void format_address(const json_t *info, char *out, size_t cap)
{
    const json_t *address = json_object_get(info, "addr");
    const json_t *port = json_array_get(address, 1);
    const char *host = json_string_value(json_array_get(address, 0));

    if (json_is_string(port))
        snprintf(out, cap, "%s:%s", host != NULL ? host : "?", json_string_value(port));
    else
        snprintf(out, cap, "%s:%lld", host != NULL ? host : "?",
                 (long long)json_integer_value(port));
}

static bool print_servers(const json_t *servers)
{
    size_t count = json_array_size(servers);
    struct row *rows = mem_calloc(count, sizeof(*rows));
    bool ok = rows != NULL;

    for (size_t i = 0; ok && i < count; i++) {
        const json_t *info = json_array_get(servers, i);
        const json_t *key = json_object_get(info, "key");
        char address[ENDPOINT_TEXT_BYTES];
        char line[ENDPOINT_TEXT_BYTES + 1200];
        format_address(info, address, sizeof(address));
        snprintf(line, sizeof(line), "%21s    %.*s", address,
                 (int)(json_string_length(key) < 1024 ? json_string_length(key) : 1024),
                 key != NULL ? json_string_value(key) : "");
        rows[i].text = showable(line, strlen(line));
        ok = rows[i].text != NULL;
    }
    if (ok)
        qsort(rows, count, sizeof(*rows), by_text);
    puts("Server List");
    print_line(30);
    puts("server-address           key");
    print_line(30);
    for (size_t i = 0; ok && i < count; i++)
        puts(rows[i].text);
    print_line(30);
    free_rows(rows, count);
    return ok;
}

/* Servers whose info key is "server:" and then this key. */
static long long count_servers(const json_t *servers, const char *key, size_t len)
{
    static const char prefix[] = "server:";
    const size_t cut = sizeof(prefix) - 1;
    long long total = 0;
    size_t i;
    json_t *info;

    json_array_foreach(servers, i, info)
    {
        const json_t *text = json_object_get(info, "key");
        if (json_string_length(text) == cut + len &&
            memcmp(json_string_value(text), prefix, cut) == 0 &&
            memcmp(json_string_value(text) + cut, key, len) == 0)
            total++;
    }
    return total;
}

static void print_queue_rows(const struct row *rows, size_t count)
{
    int width = 0;

    for (size_t i = 0; i < count; i++)
        if (characters(rows[i].text) > width)
            width = characters(rows[i].text);
    int line = (width > 3 ? width : 3) + (int)strlen("   total  free  pending\n");
    puts("Queue Status");
    print_line(line);
    printf("%-*s   total  free  pending\n", width, "key");
    print_line(line);
    for (size_t i = 0; i < count; i++)
        printf("%s%*s   %-5lld  %-4lld  %-7lld\n", rows[i].text, width - characters(rows[i].text),
               "", rows[i].total, rows[i].free, rows[i].pending);
    print_line(line);
}

static bool print_queues(json_t *queues, const json_t *servers)
{
    size_t count = 0;
    struct row *rows = mem_calloc(json_object_size(queues), sizeof(*rows));
    const char *key;
    json_t *queue;
    bool ok = rows != NULL;

    json_object_foreach(queues, key, queue)
    {
        struct row row = {
            .total = count_servers(servers, key, strlen(key)),
            .free = json_integer_value(json_object_get(queue, "free")),
            .pending = json_integer_value(json_object_get(queue, "pending")),
        };
        if (!ok || (row.total == 0 && row.free == 0 && row.pending == 0))
            continue;
        row.text = showable(key, strlen(key));
        ok = row.text != NULL;
        rows[count++] = row;
    }
    if (ok) {
        qsort(rows, count, sizeof(*rows), by_text);
        print_queue_rows(rows, count);
    }
    free_rows(rows, count);
    return ok;
}

/* ---- asking ---- */

static skep_status ask(const struct endpoint *tracker, struct bytes *message, bool written,
                       uint64_t deadline_us, json_t **value, struct skep_error *err)
{
    json_t *reply = NULL;
    char name[ENDPOINT_TEXT_BYTES];
    skep_status rc = SKEP_OK;

    *value = NULL;
    if (!written)
        rc = error_no_memory(err, "question", 0);
    if (rc == SKEP_OK)
        rc = tracker_ask(tracker, message, deadline_us, &reply, err);
    if (rc == SKEP_OK && json_array_size(reply) == 2 &&
        json_integer_value(json_array_get(reply, 0)) == TRACKER_SUCCESS &&
        json_is_integer(json_array_get(reply, 0)))
        *value = json_incref(json_array_get(reply, 1));
    else if (rc == SKEP_OK) {
        const char *why = json_string_value(json_array_get(reply, 1));
        rc = error_set(err, SKEP_FAILED_PRECONDITION, "%s: the tracker refuses%s%s",
                       endpoint_format(tracker, name), why != NULL ? ": " : "",
                       why != NULL ? why : "");
    }
    json_decref(reply);
    bytes_free(message);
    return rc;
}

static skep_status ask_summary(const struct endpoint *tracker, uint64_t deadline_us, json_t **value,
                               struct skep_error *err)
{
    struct bytes message = {0};
    bool written = tracker_write_plain(&message, TRACKER_SUMMARY);
    skep_status rc = ask(tracker, &message, written, deadline_us, value, err);

    if (rc == SKEP_OK && (!json_is_object(json_object_get(*value, "queue_info")) ||
                          !json_is_array(json_object_get(*value, "server_info")))) {
        json_decref(*value);
        *value = NULL;
        rc = error_set(err, SKEP_DATA_LOSS,
                       "the answer to SUMMARY has no queue_info and server_info");
    }
    return rc;
}

static int show_summary(const struct options *o, const struct endpoint *tracker,
                        uint64_t deadline_us)
{
    struct skep_error err = {0};
    json_t *summary;
    bool ok;

    if (ask_summary(tracker, deadline_us, &summary, &err) != SKEP_OK)
        return cli_fail(table.command, &err);
    if (options_flag(o, "json"))
        return json_print_exact(summary, stdout) ? CLI_DONE : CLI_FAILED;
    printf("Tracker address %s:%u\n\n", options_string(o, "host"), (unsigned)tracker->port);
    ok = print_servers(json_object_get(summary, "server_info"));
    putchar('\n');
    ok = ok && print_queues(json_object_get(summary, "queue_info"),
                            json_object_get(summary, "server_info"));
    json_decref(summary);
    return ok ? CLI_DONE : CLI_FAILED;
}

/* Whether somebody offers something under a key, now or when it comes back; a key that was only
 * ever asked for, as a misspelt one, is no help. */
static bool is_offered(const json_t *summary, const char *key, const json_t *queue)
{
    return json_integer_value(json_object_get(queue, "free")) > 0 ||
           count_servers(json_object_get(summary, "server_info"), key, strlen(key)) > 0;
}

/* Nothing came: a name that is spelled otherwise looks like an endless wait, so the names are told.
 */
static void add_keys(const struct endpoint *tracker, const char *wanted, uint64_t deadline_us,
                     struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES];
    char all[400] = "";
    json_t *summary, *queue;
    const char *key;
    size_t shown = 0, offered = 0, len = 0;

    if (ask_summary(tracker, deadline_us, &summary, NULL) != SKEP_OK)
        return;
    json_object_foreach(json_object_get(summary, "queue_info"), key, queue)
    {
        if (strcmp(key, wanted) == 0 || !is_offered(summary, key, queue))
            continue;
        offered++;
        if (shown == KEYS_SHOWN || len + TEXT_QUOTE_BYTES > sizeof(all))
            continue;
        len += (size_t)snprintf(all + len, sizeof(all) - len, "%s%s", shown > 0 ? ", " : "",
                                text_quote(key, strlen(key), quoted));
        shown++;
    }
    error_set(err, SKEP_DEADLINE_EXCEEDED, "no resource of key %s came free in time; %s%s%s",
              text_quote(wanted, strlen(wanted), quoted),
              shown > 0 ? "other keys there: " : "no server there offers another key", all,
              offered > shown ? ", ..." : "");
    json_decref(summary);
}

static int request(const struct options *o, const struct endpoint *tracker, uint64_t deadline_us)
{
    const char *key = options_string(o, "request");
    struct bytes message = {0};
    struct skep_error err = {0};
    json_t *resource;
    bool written = tracker_write_request(&message, tracker_text(key), tracker_text(""),
                                         options_int(o, "priority"));
    uint64_t all_ms = (uint64_t)options_int(o, "timeout");
    uint64_t keys_ms = all_ms / 4 < KEYS_MS ? all_ms / 4 : KEYS_MS;
    skep_status rc = ask(tracker, &message, written, deadline_us - keys_ms * 1000, &resource, &err);

    if (rc == SKEP_DEADLINE_EXCEEDED)
        add_keys(tracker, key, deadline_us, &err);
    if (rc != SKEP_OK)
        return cli_fail(table.command, &err);
    json_t *host = json_array_get(resource, 0);
    json_t *match_key = json_array_get(resource, 2);
    long long port = json_integer_value(json_array_get(resource, 1));
    bool ok = json_is_string(host) && json_is_string(match_key);
    if (ok && options_flag(o, "json")) {
        ok = json_print(json_pack("{s:O, s:I, s:O}", "host", host, "port", (json_int_t)port,
                                  "match_key", match_key),
                        stdout);
    } else if (ok) {
        char *at = showable(json_string_value(host), json_string_length(host));
        char *shown = showable(json_string_value(match_key), json_string_length(match_key));
        printf("%s:%lld %s\n", at != NULL ? at : "", port, shown != NULL ? shown : "");
        mem_free(at);
        mem_free(shown);
    } else {
        fprintf(stderr, "skep %s: the answer is no resource\n", table.command);
    }
    json_decref(resource);
    return ok ? CLI_DONE : CLI_FAILED;
}

int cmd_query_tracker(int argc, char **argv)
{
    struct options o;
    struct endpoint tracker;
    struct skep_error err = {0};
    int code;

    if (!options_begin(&o, &table, argc, argv, &code))
        return code;
    uint64_t deadline_us = clock_deadline_us((uint64_t)options_int(&o, "timeout"));
    code = options_needs(&o, "priority", "request");
    if (code != CLI_DONE)
        ; /* said */
    else if (read_tracker(&o, &tracker, &err) != SKEP_OK)
        code = cli_usage_error(table.command, "%s", err.message);
    else if (options_string(&o, "request") != NULL)
        code = request(&o, &tracker, deadline_us);
    else
        code = show_summary(&o, &tracker, deadline_us);
    options_free(&o);
    return code;
}
