/* What client.c (calls) and client_connect.c (reaching the tracker) share. */
#ifndef SKEP_TRACKER_CLIENT_INTERNAL_H
#define SKEP_TRACKER_CLIENT_INTERNAL_H

#include "net/loop_lookup.h"
#include "tracker/client.h"

struct tracker_call {
    struct tracker_call *next;
    tracker_reply_fn fn;
    void *arg;
    uint64_t deadline_us;
    struct bytes message; /* owned */
};

/* A socket and its handle, which outlives the client until libuv has closed it. */
struct client_link {
    uv_poll_t poll;
    int fd;
    int watching;
    bool connected;
    struct tracker_client *client; /* NULL: dropped */
};

struct tracker_client {
    struct tracker_client_config config;
    uv_timer_t timer;
    bool greeted;
    bool closing;
    struct skep_error failure; /* also of the addresses tried so far */
    struct tracker_input input;
    struct bytes out;
    size_t out_at;
    struct tracker_call *first, **end;
    size_t call_count;
    bool sent; /* the first call's message */

    struct loop_lookup *lookup; /* under way; NULL: none */
    struct client_link *link;   /* NULL: none */
    struct address addresses[LOOKUP_MAX_ADDRESSES];
    size_t address_count, address_at;
    uint64_t connect_deadline_us; /* for all addresses */
    uint64_t address_deadline_us; /* for the present one */
};

/* client.c. Ends it; what waits is told from the loop. */
void client_fail(struct tracker_client *client, const struct skep_error *why);
void client_fail_with(struct tracker_client *client, skep_status status, const char *what);
void client_arm(struct tracker_client *client);
void client_send(struct tracker_client *client);
/* Reads once; false if nothing was there. */
bool client_receive(struct tracker_client *client);

/* client_connect.c */
void client_connect(struct tracker_client *client);
void client_connect_timed_out(struct tracker_client *client);
/* Another address may yet lead to a tracker. */
void client_is_no_tracker(struct tracker_client *client, const char *why);
void client_watch(struct tracker_client *client, int events);
void client_drop_link(struct tracker_client *client);

#endif
