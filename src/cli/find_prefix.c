/* What is served under a prefix. */
#include "cli/find_prefix.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <skep/watch.h>
#include "base/text.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "dht/record/uid.h"

enum { PEER_ID_SHOWN = 12, LOOK_MS = 250, ROWS_SHOWN = 200 };

/* ---- lists */

static int by_coordinates(const void *a, const void *b)
{
    struct uid x, y;
    const char *s = *(char *const *)a, *t = *(char *const *)b;

    if (uid_parse(&x, s, NULL) != SKEP_OK || uid_parse(&y, t, NULL) != SKEP_OK)
        return strcmp(s, t);
    for (size_t i = 0; i < x.coord_count && i < y.coord_count; i++)
        if (x.coords[i] != y.coords[i])
            return x.coords[i] < y.coords[i] ? -1 : 1;
    return x.coord_count < y.coord_count ? -1 : x.coord_count > y.coord_count;
}

struct collecting {
    struct uid_list *list;
    bool failed;
};

static void on_uid(void *arg, const char *uid, const struct skep_provider *providers, size_t count)
{
    struct collecting *c = arg;
    struct uid_list *list = c->list;

    (void)providers;
    (void)count;
    if (list->count == list->cap) {
        size_t cap = list->cap > 0 ? 2 * list->cap : 64;
        char **uids = mem_realloc(list->uids, cap * sizeof(*uids));
        if (uids == NULL) {
            c->failed = true;
            return;
        }
        list->uids = uids;
        list->cap = cap;
    }
    list->uids[list->count] = mem_strdup(uid);
    if (list->uids[list->count] == NULL)
        c->failed = true;
    else
        list->count++;
}

skep_status uid_list_read(struct uid_list *list, struct skep_client *client, const char *prefix,
                          uint32_t timeout_ms, struct skep_error *err)
{
    struct collecting c = {.list = list};
    struct skep_watch *watch;

    *list = (struct uid_list){0};
    skep_status rc = skep_watch_new(client, prefix, NULL, NULL, &watch, err);
    if (rc != SKEP_OK)
        return rc;
    rc = skep_watch_wait_ready(watch, timeout_ms, err);
    if (rc == SKEP_OK)
        skep_watch_each(watch, on_uid, &c);
    skep_watch_free(watch);
    if (c.failed)
        rc = error_no_memory(err, "list of experts", list->count * sizeof(*list->uids));
    if (list->count > 1)
        qsort(list->uids, list->count, sizeof(*list->uids), by_coordinates);
    return rc;
}

void uid_list_free(struct uid_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        mem_free(list->uids[i]);
    mem_free(list->uids);
    *list = (struct uid_list){0};
}

/* ---- events, for programs and logs */

struct live {
    bool json, table;
    atomic_bool changed; /* the table is to be drawn anew */
};

static const char *const event_names[] = {"appeared", "changed", "gone"};

static void print_event_json(enum skep_watch_event event, const char *uid,
                             const struct skep_provider *providers, size_t count)
{
    json_t *list = json_array();

    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:I}", "peer_id", providers[i].peer_id,
                                              "endpoint", providers[i].endpoint, "expires_at",
                                              (json_int_t)providers[i].expires_at));
    json_t *line =
        json_pack("{s:s, s:s, s:o}", "event", event_names[event], "uid", uid, "providers", list);
    if (line != NULL && json_dumpf(line, stdout, JSON_COMPACT) == 0)
        putchar('\n');
    json_decref(line);
}

static void on_event(void *arg, enum skep_watch_event event, const char *uid,
                     const struct skep_provider *providers, size_t count)
{
    struct live *live = arg;

    if (live->table) {
        atomic_store(&live->changed, true);
        return;
    }
    if (live->json) {
        print_event_json(event, uid, providers, count);
    } else {
        char shown[UID_BYTES];
        snprintf(shown, sizeof(shown), "%s", uid);
        text_tame(shown); /* somebody else's text, on a terminal */
        printf("%-8s  %s", event_names[event], shown);
        for (size_t i = 0; i < count; i++)
            printf("%s %.*s at %s", i > 0 ? "," : " ", PEER_ID_SHOWN, providers[i].peer_id,
                   providers[i].endpoint);
        putchar('\n');
    }
    output_flush(); /* remembered for output_is_gone() */
}

/* ---- the live table */

struct rows {
    struct row {
        char *uid; /* owned */
        struct skep_provider provider;
        size_t others;
    } * list;
    size_t count, cap;
};

static void on_row(void *arg, const char *uid, const struct skep_provider *providers, size_t count)
{
    struct rows *rows = arg;

    if (rows->count == rows->cap) {
        size_t cap = rows->cap > 0 ? 2 * rows->cap : 64;
        struct row *list = mem_realloc(rows->list, cap * sizeof(*list));
        if (list == NULL)
            return;
        rows->list = list;
        rows->cap = cap;
    }
    struct row row = {mem_strdup(uid), providers[0], count - 1};
    if (row.uid != NULL)
        rows->list[rows->count++] = row;
}

static int by_uid(const void *a, const void *b)
{
    const char *x = ((const struct row *)a)->uid, *y = ((const struct row *)b)->uid;

    return by_coordinates(&x, &y);
}

static void draw(struct skep_watch *watch, const char *prefix)
{
    static const char *const headers[] = {"expert", "node", "endpoint", ">others", ">expires in"};
    struct table *t = table_new(headers, 5);
    struct rows rows = {0};
    int64_t now = (int64_t)time(NULL);

    skep_watch_each(watch, on_row, &rows);
    if (rows.count > 1)
        qsort(rows.list, rows.count, sizeof(*rows.list), by_uid);
    for (size_t i = 0; i < rows.count; i++) {
        const struct row *r = &rows.list[i];
        if (i < ROWS_SHOWN) {
            table_cell(t, "%s", r->uid);
            table_cell(t, "%.*s", PEER_ID_SHOWN, r->provider.peer_id);
            table_cell(t, "%s", r->provider.endpoint);
            table_cell(t, "%zu", r->others);
            table_cell(t, "%" PRId64 " s", r->provider.expires_at - now);
        }
        mem_free(r->uid);
    }
    fputs("\033[H\033[J", stdout); /* home, and clear what is below */
    printf("%zu expert%s under %s%s   (Ctrl-C ends)\n\n", rows.count, rows.count == 1 ? "" : "s",
           prefix, skep_watch_in_step(watch) ? "" : ", out of step with the DHT");
    table_print(t, stdout);
    if (rows.count > ROWS_SHOWN)
        printf("... and %zu more\n", rows.count - ROWS_SHOWN);
    output_flush();
    table_free(t);
    mem_free(rows.list);
}

int find_prefix_watch(const char *command, const struct options *o, struct skep_client *client,
                      const char *prefix)
{
    struct live live = {.json = options_flag(o, "json")};
    struct skep_watch *watch;
    struct skep_error err = {0};

    /* Not before: until the swarm has been joined a signal ends the program, which has nothing to
     * take back then. */
    signals_begin(NULL, NULL);
    live.table = !live.json && output_is_terminal(stdout);
    atomic_init(&live.changed, true);
    if (skep_watch_new(client, prefix, on_event, &live, &watch, &err) != SKEP_OK) {
        signals_end();
        return cli_fail(command, &err);
    }
    uint64_t draw_us = 0; /* at least once a second, for the last column */
    int code = CLI_DONE;
    while (!signals_wait(clock_deadline_us(LOOK_MS))) {
        if (output_is_gone()) { /* nobody sees what comes; output_end() says why */
            code = CLI_FAILED;
            break;
        }
        if (live.table && (atomic_exchange(&live.changed, false) || clock_mono_us() >= draw_us)) {
            draw(watch, prefix);
            draw_us = clock_deadline_us(1000);
        }
    }
    skep_watch_free(watch);
    signals_end();
    return code;
}
