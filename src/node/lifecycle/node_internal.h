/* What the files that make up a node share: node.c (making, adding, waiting), start.c, stop.c and
 * node_info.c. */
#ifndef SKEP_NODE_LIFECYCLE_NODE_INTERNAL_H
#define SKEP_NODE_LIFECYCLE_NODE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <skep/node.h>
#include "base/thread.h"
#include "dht/publish/handler.h"
#include "dht/swarm/swarm.h"
#include "experts/checkpoint_dir.h"
#include "net/presence.h"
#include "net/server.h"
#include "node/reach/announce.h"
#include "node/lifecycle/checkpointer.h"
#include "node/lifecycle/claims.h"
#include "node/reach/dial_back.h"
#include "node/lifecycle/local_expert.h"
#include "node/tracking/lease_server.h"
#include "node/rpc/idempotency.h"
#include "node/reach/own_address.h"
#include "node/reach/reach.h"
#include "node/tracking/tracker_registration.h"
#include "node/lifecycle/roster.h"
#include "node/rpc/service.h"
#include "node/lifecycle/settings.h"
#include "node/tracking/tracking.h"
#include "runtime/task_pool.h"

enum node_state {
    NODE_NEW,
    NODE_STARTING,
    NODE_RUNNING,
    NODE_STOPPED, /* also: start failed */
};

/* Experts to be chosen at start. */
struct uid_reservation {
    struct uid_pattern pattern;
    size_t count;
    struct expert_settings settings;
    struct expert_description description; /* of each */
    struct uid_reservation *next;
};

/* Why a node announces nothing. */
enum announce_gap {
    ANNOUNCE_NO_GAP,
    ANNOUNCE_NOBODY_TOLD, /* behind a wildcard: at which address it is seen */
    ANNOUNCE_NOT_PLACED,  /* whether the swarm is on loopback is not known yet */
    ANNOUNCE_UNFIT,       /* its endpoint is loopback, and the swarm is not */
};

enum { TRACKER_STOP_KEY_BYTES = 256 }; /* as told; a longer one is cut */

struct skep_node {
    struct settings settings;

    /* One thread at a time before start; nothing changes them after. */
    struct roster roster;
    struct uid_reservation *reservations; /* owned, in the order of adding */
    uint64_t chosen_us;                   /* when the UIDs of patterns were last seen to be free */
    unsigned choice_rounds;               /* looks since they were chosen */
    struct claims *claims;                /* lives until skep_node_free(); NULL: no DHT */
    struct checkpoint_dir checkpoints;    /* open from its first use to the stop; see restore.c */
    struct runtime *runtime;              /* these three live until skep_node_free() */
    struct idempotency_cache *idempotency;
    struct service service;
    struct dial_back *dial_back;
    struct lease_server *leases; /* NULL: it is not registered with a tracker */
    struct presence presence;    /* of the thread that starts and stops */
    struct announce_input announce;
    /* These six are of the thread that starts, then of the supervisor: */
    struct own_addresses own_addresses;
    struct endpoint announced[ANNOUNCE_MAX]; /* given to the handler */
    size_t announced_count;
    enum announce_gap announce_gap; /* said last */
    bool is_bound_lost;             /* the machine does not have the listen address any more */
    bool is_stuck;                  /* an expert never came back: what it uses is left behind */

    /* Facts, written by skep_node_start() before it returns. */
    char endpoint[ENDPOINT_TEXT_BYTES];
    char initial_peer[ENDPOINT_TEXT_BYTES];
    char tracker_endpoint[ENDPOINT_TEXT_BYTES];
    char tracker_stop_key[TRACKER_STOP_KEY_BYTES];
    uint16_t port, dht_port;
    uint64_t started_us;

    pthread_mutex_t parts; /* guards the seven pointers, both `last`s, and that they stay alive */
    struct checkpointer *checkpointer;
    struct swarm *swarm;
    struct server *server;
    struct handler *handler;
    struct tracking *tracking;
    struct tracker_registration *registration;
    struct reach *reach;
    struct skep_node_stats last; /* their counters when they ended */
    struct diagnosis last_reach; /* the same of `reach` */

    /* Held while an expert is added or removed, and taken before the locks below; so a stop waits
     * for that. Guards is_closed. */
    pthread_mutex_t changes;
    bool is_closed; /* no expert is added or removed any more */

    pthread_mutex_t lock;   /* guards state and is_ready; taken before `parts` if both */
    pthread_cond_t changed; /* state or is_ready */
    enum node_state state;
    bool is_ready;

    struct thread supervisor;  /* "skep-node": announces, reports, stops */
    pthread_mutex_t joining;   /* guards the joining of supervisor */
    int stop_fd;               /* an eventfd, which wakes the supervisor */
    atomic_bool is_stop_asked; /* for a start under way, too */
};

/* start.c: everything up to serving; on failure nothing is left running. */
skep_status node_bring_up(struct skep_node *node, struct skep_error *err);
/* @param reservation  whose pattern the UID was picked from; NULL: none. */
skep_status node_add_local_expert(struct skep_node *node, const char *uid,
                                  const struct skep_expert_options *options,
                                  const struct uid_reservation *reservation,
                                  struct skep_error *err);
/* Takes an expert that was made, on success only. */
skep_status node_keep_local_expert(struct skep_node *node, struct local_expert *local,
                                   struct skep_error *err);
/* changes.c: the same for a node that runs, with all that the start does for its experts. */
skep_status node_add_while_running(struct skep_node *node, const char *uid,
                                   const struct skep_expert_options *options,
                                   struct skep_error *err);
/* Starts saving, if there is a folder that is open for it. */
skep_status node_open_checkpointer(struct skep_node *node, struct skep_error *err);
/* Makes the pools of an expert that was made. */
skep_status node_open_local_expert(struct skep_node *node, struct local_expert *local,
                                   struct skep_error *err);
/* SKEP_CANCELLED once a stop was asked for: a start under way then ends. */
/* A start with many experts takes long: logs how far it has come, every few seconds.
 * @param next_us  when the next line is due; moved on. */
enum { PROGRESS_LOG_MS = 3000 };
void node_log_progress(const char *what, size_t done, size_t total, uint64_t *next_us);
skep_status node_check_stop(const struct skep_node *node, struct skep_error *err);
/* SKEP_FAILED_PRECONDITION, saying what came too late, once it was started. */
skep_status node_check_new(struct skep_node *node, const char *what, struct skep_error *err);

/* reservations.c: chooses the experts of patterns and adds them. */
skep_status node_add_reservations(struct skep_node *node, struct skep_error *err);
/* Before the node opens: if making the experts took a while, looks again whether others have taken
 * their UIDs, and puts others in their place, which are to be made. */
skep_status node_check_choice(struct skep_node *node, bool *changed, struct skep_error *err);

/* restore.c */
/* Opens the folder, if there is to be one and it is not open: also for writing, or for reading. One
 * that is open for reading is opened for writing, too, when that is wanted later. */
skep_status node_open_checkpoints(struct skep_node *node, bool for_writing, struct skep_error *err);
/* The same as what is hosted needs it: nothing is saved of experts that do not learn and have a
 * checkpoint, so several nodes may serve them from one folder, and from a read-only one. */
skep_status node_open_checkpoints_as_needed(struct skep_node *node, struct skep_error *err);
/*
 * The UIDs of a reservation's pattern that the folder holds experts of: of its class and size, not
 * added yet. What does not fit is named in a warning.
 * @param uids   room for reservation->count, which are filled in the order of their names.
 * @param count  how many there are, which may be more than were wished.
 */
skep_status node_find_saved(struct skep_node *node, const struct uid_reservation *reservation,
                            char (*uids)[UID_BYTES], size_t *count, struct skep_error *err);
/* Puts its newest checkpoint into an expert that was made, if it has one. */
skep_status node_restore_expert(struct skep_node *node, struct local_expert *local,
                                struct skep_error *err);
/* Puts the newest checkpoints into the experts that have some. */
skep_status node_restore_experts(struct skep_node *node, struct skep_error *err);

/* announcing.c: what to announce at the start. Returns how many endpoints were written. */
size_t node_announce_first(struct skep_node *node, struct endpoint out[static ANNOUNCE_MAX]);
/* Asks again, and tells the handler and others what has changed. Returns when to do so next. */
uint64_t node_announce(struct skep_node *node);
/* Whether the machine has other addresses than before. Does not block. */
bool node_addresses_changed(struct skep_node *node);

/* Whether what was added, and `more` (may be NULL), will fit; before any of it is made. */
SKEP_MUST_CHECK skep_status node_check_memory(struct skep_node *node,
                                              const struct local_expert *more,
                                              struct skep_error *err);

/* node_tracker.c: the tracker beside the node, and its own registration with one. */
skep_status node_open_leases(struct skep_node *node, struct skep_error *err);
/* Whether the tracker's port is free, if one was asked for. */
SKEP_MUST_CHECK skep_status node_check_tracker_port(const struct skep_node *node,
                                                    struct skep_error *err);
skep_status node_open_tracking(struct skep_node *node, uint32_t features, struct skep_error *err);
skep_status node_open_registration(struct skep_node *node, struct skep_error *err);
/* The endpoints of the node are known, or have changed. */
void node_announce_tracker(struct skep_node *node, const struct endpoint *endpoints, size_t count);
/* Leaves the tracker and ends the lease: before calls are waited for. */
void node_close_registration(struct skep_node *node);
void node_close_tracking(struct skep_node *node, uint64_t deadline_us);
/* Once the server has stopped. */
void node_free_tracking(struct skep_node *node);

/* stop.c */
void node_shut_down(struct skep_node *node);

/* node_info.c */
void node_log_info(struct skep_node *node);
void node_log_stats(struct skep_node *node);
/* The counters of what ends before the node does. `parts` is held. */
void node_collect_parts(struct skep_node *node, struct skep_node_stats *out);

#endif
