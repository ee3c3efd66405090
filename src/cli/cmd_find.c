/* skep find: which nodes serve which experts, and which trackers hold what. */
#include <string.h>
#include <time.h>

#include <skep/watch.h>
#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/client_options.h"
#include "cli/command.h"
#include "cli/find_prefix.h"
#include "cli/options.h"
#include "cli/output.h"
#include "dht/record/record.h"
#include "dht/record/uid.h"

enum {
    MAX_PROVIDERS = 16,
    PEER_ID_SHOWN = 12,
    LIST_MS = 1000, /* for finding out whether any node is published */
};

static const struct option_spec specs[] = {
    {.name = "resource",
     .kind = OPTION_STRING,
     .placeholder = "KEY",
     .help = "list what the trackers of the swarm hold under this key, instead of experts"},
    {.name = "watch",
     .kind = OPTION_FLAG,
     .help = "with a prefix: keep running and show what appears, changes and goes, until a "
             "signal arrives or the output is closed; --timeout does not apply"},
    CLIENT_OPTION_SPECS,
};

static const struct option_table table = {
    .command = "find",
    .summary = "Looks up experts by UID, or lists the experts under a prefix, which ends with a "
               "dot, with the nodes that serve them, freshest first. With --resource, lists what"
               " trackers hold under a key. The exit code is 3 if nobody serves an expert, "
               "nothing is under the prefix, or no tracker has the key.",
    .example = "skep find ffn.0.0 ffn.0.1 --initial-peers 192.0.2.10:4222\n"
               "skep find ffn. --watch --initial-peers 192.0.2.10:4222\n"
               "skep find --resource rpi4 --initial-peers tracker://192.0.2.10:9190",
    .specs = specs,
    .count = OPTION_COUNT(specs),
    .positional = "UID...|PREFIX",
    .positional_min = 0,
    .positional_max = -1,
};
const struct option_table *const cmd_find_options = &table;

struct findings {
    const char **uids; /* view of the options or the list */
    size_t count;
    bool listed;                         /* under a prefix, not asked for one by one */
    struct skep_remote_expert **experts; /* owned, and each owned or NULL */
    skep_status *statuses;               /* owned */
};

static json_t *json_of(const struct findings *f, size_t i)
{
    struct skep_provider providers[MAX_PROVIDERS];
    json_t *list = json_array();
    size_t n = f->experts[i] == NULL
                   ? 0
                   : skep_remote_expert_providers(f->experts[i], providers, MAX_PROVIDERS);

    for (size_t k = 0; k < n && k < MAX_PROVIDERS; k++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:I}", "peer_id",
                                              providers[k].peer_id, "endpoint",
                                              providers[k].endpoint, "class", providers[k].cls,
                                              "expires_at", (json_int_t)providers[k].expires_at));
    return json_pack("{s:s, s:s, s:o}", "uid", f->uids[i], "status",
                     skep_status_name(f->statuses[i]), "providers", list);
}

static void print_json(const struct findings *f)
{
    json_t *all = json_array();

    for (size_t i = 0; i < f->count; i++)
        json_array_append_new(all, json_of(f, i));
    json_print(all, stdout);
}

static void print_table(const struct findings *f)
{
    static const char *const headers[] = {"expert", "node", "endpoint", "class", ">expires in"};
    struct table *t = table_new(headers, 5);
    int64_t now = (int64_t)time(NULL);

    for (size_t i = 0; i < f->count; i++) {
        struct skep_provider p[MAX_PROVIDERS];
        size_t n = f->experts[i] == NULL
                       ? 0
                       : skep_remote_expert_providers(f->experts[i], p, MAX_PROVIDERS);
        for (size_t k = 0; k < n && k < MAX_PROVIDERS; k++) {
            table_cell(t, "%s", f->uids[i]);
            table_cell(t, "%.*s", PEER_ID_SHOWN, p[k].peer_id);
            table_cell(t, "%s", p[k].endpoint);
            table_cell(t, "%s", p[k].cls);
            table_cell(t, "%lld s", (long long)(p[k].expires_at - now));
        }
        if (n == 0) {
            table_cell(t, "%s", f->uids[i]);
            table_cell(t, "(%s)", skep_status_text(f->statuses[i]));
            for (int empty = 0; empty < 3; empty++)
                table_cell(t, "%s", "");
        }
    }
    table_print(t, stdout);
    table_free(t);
}

/* It ends with a dot. */
static bool is_prefix(const char *text)
{
    size_t len = strnlen(text, UID_BYTES);

    return len > 0 && text[len - 1] == '.' && uid_prefix_is_valid(text, len);
}

static bool asks_for_prefix(const struct options *o)
{
    return o->positional_count == 1 && is_prefix(o->positional[0]);
}

/* It may lack but the dot of a prefix. */
static int refuse_uid(const char *text, const char *why)
{
    char prefix[UID_BYTES + 1];
    int len = snprintf(prefix, sizeof(prefix), "%s.", text);

    if (len > 0 && (size_t)len < sizeof(prefix) && is_prefix(prefix))
        return cli_usage_error(table.command, "%s; \"%s\", with the dot, lists what is under it",
                               why, prefix);
    return cli_usage_error(table.command, "%s", why);
}

/* Bad UIDs are the caller's mistake: said before anything is asked. */
static int check_uids(struct options *o)
{
    if (asks_for_prefix(o))
        return CLI_DONE;
    int code = options_idle(o, "watch", "needs a prefix, such as \"ffn.\"");
    if (code != CLI_DONE)
        return code;
    for (size_t i = 0; i < o->positional_count; i++) {
        struct uid parsed;
        struct skep_error err;
        if (is_prefix(o->positional[i]))
            return cli_usage_error(table.command,
                                   "prefix \"%s\": expected to stand alone, or an expert UID",
                                   o->positional[i]);
        if (uid_parse(&parsed, o->positional[i], &err) != SKEP_OK)
            return refuse_uid(o->positional[i], err.message);
    }
    return CLI_DONE;
}

/* A prefix may still list what has just gone. */
static void drop_absent(struct findings *f)
{
    size_t kept = 0;

    for (size_t i = 0; i < f->count; i++) {
        if (f->statuses[i] == SKEP_NOT_FOUND)
            continue;
        const char *uid = f->uids[i]; /* swapped, so that each stays in its list */
        f->uids[i] = f->uids[kept];
        f->uids[kept] = uid;
        f->experts[kept] = f->experts[i];
        f->statuses[kept++] = f->statuses[i];
    }
    f->count = kept;
}

static int worst_code(const struct findings *f)
{
    int code = f->count > 0 ? CLI_DONE : CLI_NOT_FOUND;

    for (size_t i = 0; i < f->count; i++)
        if (f->statuses[i] == SKEP_NOT_FOUND)
            code = CLI_NOT_FOUND;
    return code;
}

/* Where nothing was found: DHT peers that answer may be nodes that publish nothing, which only they
 * say, in their logs. Returns whether it is so. */
static bool hint_at_unpublished(struct skep_client *client, uint64_t deadline_us)
{
    struct skep_peer *peers = NULL;
    size_t count = 0;
    uint32_t left_ms = client_left_ms(deadline_us);
    skep_status rc = skep_client_peers(client, false, left_ms < LIST_MS ? left_ms : LIST_MS, &peers,
                                       &count, NULL);
    unsigned answering = skep_client_peer_count(client);

    skep_peers_free(peers);
    /* Time that is up without one says the same: in a swarm of any size one comes at once. */
    if ((rc != SKEP_NOT_FOUND && rc != SKEP_DEADLINE_EXCEEDED) || answering == 0)
        return false;
    fprintf(
        stderr,
        "skep %s: no node of this swarm is listed, though %u DHT peer%s answer%s: bootstrap peers "
        "(skep dht), nodes that have just started, or nodes that publish nothing, which say why in "
        "their logs (such as a --listen on loopback where peers join by another address)\n",
        table.command, answering, text_plural(answering), answering == 1 ? "s" : "");
    return true;
}

/*
 * Why the first of those that are served by nobody is not found, as the client says: there may be
 * records that were refused. And who expects a group of experts under a name misses a dot: a prefix
 * is not looked up as a UID.
 */
static void explain_absence(struct findings *f, struct skep_client *client, uint64_t deadline_us)
{
    struct skep_remote_expert *expert = NULL;
    struct skep_error err = {0};
    size_t i = 0;

    while (i < f->count && f->statuses[i] != SKEP_NOT_FOUND)
        i++;
    if (i == f->count)
        return;
    if (skep_client_find(client, f->uids[i], client_left_ms(deadline_us), &expert, &err) ==
        SKEP_NOT_FOUND)
        fprintf(stderr,
                "skep %s: %s; to list what is served under a prefix, end it with a dot: \"%s.\" or "
                "\"%.*s.\"\n",
                table.command, err.message, f->uids[i], (int)strcspn(f->uids[i], "."), f->uids[i]);
    skep_remote_expert_free(expert);
}

static int find_all(const struct options *o, struct skep_client *client, uint64_t deadline_us,
                    struct findings *f)
{
    struct skep_error err = {0};

    f->experts = mem_calloc(f->count + 1, sizeof(struct skep_remote_expert *));
    f->statuses = mem_calloc(f->count + 1, sizeof(skep_status));
    if (f->experts == NULL || f->statuses == NULL) {
        error_no_memory(&err, "look-up", f->count * sizeof(*f->experts));
        return cli_fail(table.command, &err);
    }
    skep_status rc = skep_client_find_many(client, f->uids, f->count, client_left_ms(deadline_us),
                                           f->experts, f->statuses, &err);
    if (f->listed)
        drop_absent(f);
    if (options_flag(o, "json"))
        print_json(f);
    else
        print_table(f);
    int code = rc == SKEP_OK ? worst_code(f) : cli_fail(table.command, &err);
    if (code == CLI_NOT_FOUND && !f->listed && !options_flag(o, "json")) {
        fflush(stdout); /* the answer comes before what is said about it */
        if (!hint_at_unpublished(client, deadline_us))
            explain_absence(f, client, deadline_us);
    }
    for (size_t i = 0; i < f->count; i++)
        skep_remote_expert_free(f->experts[i]);
    mem_free(f->experts);
    mem_free(f->statuses);
    return code;
}

/* Lists a prefix, and looks up what it lists: so the class is known, and that each is there. */
static int list_prefix(const struct options *o, struct skep_client *client, uint64_t deadline_us)
{
    struct uid_list list;
    struct skep_error err = {0};
    const char *prefix = o->positional[0];
    int code = CLI_NOT_FOUND;
    skep_status rc = uid_list_read(&list, client, prefix, client_left_ms(deadline_us), &err);

    if (rc != SKEP_OK) {
        code = cli_fail(table.command, &err);
    } else if (list.count > 0) {
        struct findings f = {.uids = (const char **)list.uids, .count = list.count, .listed = true};
        code = find_all(o, client, deadline_us, &f);
    } else if (options_flag(o, "json")) {
        json_print(json_array(), stdout);
    } else {
        error_set(&err, SKEP_NOT_FOUND, "nothing is served under %s", prefix);
        code = cli_fail(table.command, &err);
        (void)hint_at_unpublished(client, deadline_us);
    }
    uid_list_free(&list);
    return code;
}

static int find_experts(const struct options *o)
{
    struct skep_client *client;
    uint64_t deadline_us;
    struct findings f = {.uids = (const char **)o->positional, .count = o->positional_count};
    bool watch = options_flag(o, "watch");

    int code = client_from_options(table.command, o, false, &client, &deadline_us);
    if (code == CLI_DONE && watch)
        code = find_prefix_watch(table.command, o, client, o->positional[0]);
    else if (code == CLI_DONE && asks_for_prefix(o))
        code = list_prefix(o, client, deadline_us);
    else if (code == CLI_DONE)
        code = find_all(o, client, deadline_us, &f);
    skep_client_free(client);
    return code;
}

/* ---- resources ---- */

static void print_resources_json(const struct skep_tracked_resource *list, size_t count)
{
    json_t *all = json_array();

    for (size_t i = 0; i < count; i++) {
        const struct skep_tracked_resource *r = &list[i];
        bool named = r->host[0] != '\0';
        json_array_append_new(all, json_pack("{s:s?, s:o, s:s?, s:s, s:s, s:I, s:I, s:I}", "host",
                                             named ? r->host : NULL, "port",
                                             named ? json_integer(r->port) : json_null(), "tracker",
                                             r->tracker[0] != '\0' ? r->tracker : NULL,
                                             "tracker_peer_id", r->tracker_peer_id,
                                             "tracker_endpoint", r->tracker_endpoint, "free",
                                             (json_int_t)r->free, "pending", (json_int_t)r->pending,
                                             "expires_at", (json_int_t)r->expires_at));
    }
    json_print(all, stdout);
}

static void print_resources(const struct skep_tracked_resource *list, size_t count)
{
    static const char *const headers[] = {"address", ">port", "tracker",
                                          "peer",    ">free", ">pending"};
    struct table *t = table_new(headers, OPTION_COUNT(headers));

    for (size_t i = 0; i < count; i++) {
        const struct skep_tracked_resource *r = &list[i];
        if (r->host[0] != '\0') {
            table_cell(t, "%s", r->host);
            table_cell(t, "%u", (unsigned)r->port);
        } else {
            table_cell(t, "(%s)", r->free > 0 ? "not for others" : "none free");
            table_cell(t, "%s", "");
        }
        table_cell(t, "%s", r->tracker[0] != '\0' ? r->tracker : r->tracker_endpoint);
        table_cell(t, "%.*s", PEER_ID_SHOWN, r->tracker_peer_id);
        table_cell(t, "%lu", (unsigned long)r->free);
        table_cell(t, "%lu", (unsigned long)r->pending);
    }
    table_print(t, stdout);
    table_free(t);
}

static int find_resources(const struct options *o)
{
    struct skep_tracked_resource *list = NULL;
    struct skep_client *client;
    uint64_t deadline_us;
    struct skep_error err = {0};
    size_t count = 0;
    int code = client_from_options(table.command, o, false, &client, &deadline_us);

    if (code != CLI_DONE)
        return code;
    skep_status rc = skep_client_find_resources(client, options_string(o, "resource"),
                                                client_left_ms(deadline_us), &list, &count, &err);
    bool json = options_flag(o, "json");
    if (json && (rc == SKEP_OK || rc == SKEP_NOT_FOUND))
        print_resources_json(list, count);
    else if (rc == SKEP_OK)
        print_resources(list, count);
    if (rc != SKEP_OK && !(json && rc == SKEP_NOT_FOUND))
        code = cli_fail(table.command, &err);
    else if (rc != SKEP_OK)
        code = CLI_NOT_FOUND;
    skep_tracked_resources_free(list);
    skep_client_free(client);
    return code;
}

static int check_usage(struct options *o)
{
    int code = o->positional_count > 0
                   ? options_idle(o, "resource", "does not go together with UIDs")
                   : CLI_DONE;
    if (code != CLI_DONE)
        return code;
    const char *key = options_string(o, "resource");

    if (key == NULL && o->positional_count == 0)
        return cli_usage_error(table.command,
                               "expected a UID, a prefix such as \"ffn.\", or --resource "
                               "KEY");
    if (key != NULL && (key[0] == '\0' || strlen(key) >= RECORD_RESOURCE_KEY_BYTES))
        return cli_usage_error(table.command, "--resource: %zu bytes, expected 1 to %d",
                               strlen(key), RECORD_RESOURCE_KEY_BYTES - 1);
    return check_uids(o);
}

int cmd_find(int argc, char **argv)
{
    struct options o;
    int code;

    if (!options_begin(&o, &table, argc, argv, &code))
        return code;
    code = check_usage(&o);
    if (code == CLI_DONE && options_string(&o, "resource") != NULL)
        code = find_resources(&o);
    else if (code == CLI_DONE)
        code = find_experts(&o);
    options_free(&o);
    return code;
}
