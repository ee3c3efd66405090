/*
 * What a node announces over time: announce.h has the rule, this asks the peers and the system, and
 * tells the parts of the node when something else is announced.
 */
#include "node/lifecycle/node_internal.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"

enum {
    RETRY_MS = 50,    /* while our address is unknown: the first peer may already look */
    UNSURE_MS = 500,  /* while it is a guess, or another rule may come to hold */
    CHECK_MS = 60000, /* whether peers see another one */
    TOLD_MAX = 32,    /* of what peers tell, and of the peers that are tried for a way */
};

/* Asking for our address in one family, with what comes of it beside the address. */
struct question {
    struct skep_node *node;
    bool may_guess; /* no peer has told one of either family that is of use */
    bool guessed;
};

/* As peers see us. Peers on this machine see loopback, which is of no use to others, and what this
 * machine has no longer they have seen in the past. @param told  whether any has told anything. */
static bool find_told(struct skep_node *node, bool v6, struct endpoint *out, bool *told)
{
    struct endpoint seen[TOLD_MAX];
    size_t count = runner_public_addresses(swarm_runner(node->swarm), v6, seen, TOLD_MAX);
    bool loopback = swarm_record(node->swarm)->loopback;

    *told = count > 0;
    for (size_t i = 0; i < count; i++) {
        if ((endpoint_is_loopback(&seen[i]) && !loopback) ||
            own_addresses_lost(&node->own_addresses, &seen[i]))
            continue;
        *out = seen[i];
        return true;
    }
    return false;
}

/* The address by which we reach a peer elsewhere, or else the one that leads out. */
static bool find_own(struct skep_node *node, bool v6, struct endpoint *out)
{
    struct address peers[TOLD_MAX];
    size_t count = runner_known_peers(swarm_runner(node->swarm), peers, TOLD_MAX);

    for (size_t i = 0; i < count; i++) {
        struct endpoint peer;
        endpoint_from_address(&peer, (const struct sockaddr *)&peers[i].sa);
        if (peers[i].sa.ss_family == (v6 ? AF_INET6 : AF_INET) && !endpoint_is_loopback(&peer) &&
            endpoint_towards(&peers[i], out))
            return true;
    }
    *out = (struct endpoint){0};
    endpoint_local_host(out, v6);
    return !endpoint_is_loopback(out);
}

static bool ask(void *arg, bool v6, struct endpoint *out)
{
    struct question *q = arg;
    bool told;

    if (find_told(q->node, v6, out, &told))
        return true;
    if (!q->may_guess || !find_own(q->node, v6, out))
        return false;
    q->guessed = true;
    return true;
}

/*
 * A guess is for those on this machine, and for the time until a peer elsewhere tells: a node that
 * started a swarm and has no other peers would not be found at all. A node that joins others asks
 * them first.
 */
static bool may_guess(struct skep_node *node)
{
    struct endpoint seen;
    bool told4, told6;

    return !find_told(node, false, &seen, &told4) && !find_told(node, true, &seen, &told6) &&
           !swarm_record(node->swarm)->loopback &&
           (told4 || told6 || node->settings.initial_peer_count == 0);
}

static size_t pick(struct skep_node *node, struct endpoint out[static ANNOUNCE_MAX], bool *guessed)
{
    struct question q = {
        .node = node,
        .may_guess = announce_must_ask(&node->announce) && may_guess(node),
    };

    node->announce.loopback_allowed = swarm_record(node->swarm)->loopback;
    size_t count = announce_pick(&node->announce, ask, &q, out);
    *guessed = q.guessed;
    return count;
}

/* Why nothing is announced, whenever that changes. */
static void say_why_nothing(struct skep_node *node)
{
    bool must_ask = announce_must_ask(&node->announce);
    enum announce_gap gap = must_ask                        ? ANNOUNCE_NOBODY_TOLD
                            : !swarm_is_placed(node->swarm) ? ANNOUNCE_NOT_PLACED
                                                            : ANNOUNCE_UNFIT;

    if (gap == node->announce_gap)
        return;
    node->announce_gap = gap;
    if (gap == ANNOUNCE_NOBODY_TOLD)
        log_info("node: publishes its experts as soon as the first peer has told at which address "
                 "it sees us (or give it with --announce)");
    else if (gap == ANNOUNCE_NOT_PLACED)
        log_info("node: publishes its experts as soon as the name of an initial peer is resolved");
    else
        log_warn("node: %s loopback in a swarm that is not: nothing is published; use another "
                 "--%s",
                 node->announce.preset != NULL ? "announces" : "listens on",
                 node->announce.preset != NULL ? "announce" : "listen, or --announce");
}

static bool is_same(const struct skep_node *node, const struct endpoint *endpoints, size_t count)
{
    bool same = count == node->announced_count;

    for (size_t i = 0; same && i < count; i++)
        same = endpoint_equal(&endpoints[i], &node->announced[i]);
    return same;
}

static void keep(struct skep_node *node, const struct endpoint *endpoints, size_t count)
{
    memcpy(node->announced, endpoints, count * sizeof(*endpoints));
    node->announced_count = count;
}

/* Says what is announced in place of what was; only what may change by itself is worth a line. */
static void say_new(const struct skep_node *node, const struct endpoint *endpoints, bool guessed)
{
    char now[ENDPOINT_TEXT_BYTES], before[ENDPOINT_TEXT_BYTES];

    endpoint_format(&endpoints[0], now);
    if (node->announced_count > 0)
        log_info("node: announces %s instead of %s: %s", now,
                 endpoint_format(&node->announced[0], before),
                 own_addresses_lost(&node->own_addresses, &node->announced[0])
                     ? "the addresses of this machine have changed"
                     : "peers see us there");
    else if (guessed)
        log_info("node: announces %s, an address of this machine, until a peer elsewhere tells at "
                 "which address it sees us (or give it with --announce)",
                 now);
    else if (announce_must_ask(&node->announce))
        log_info("node: other peers see us at %s", now);
    else
        log_info("node: announces %s", now);
}

static void look_at_bound(struct skep_node *node)
{
    bool lost = own_addresses_lost(&node->own_addresses, &node->announce.bound);

    if (lost && !node->is_bound_lost)
        log_warn("node: %s, where calls are served, is no longer an address of this machine; give "
                 "--listen another, or 0.0.0.0 for all",
                 node->endpoint);
    else if (!lost && node->is_bound_lost)
        log_info("node: %s is an address of this machine again", node->endpoint);
    node->is_bound_lost = lost;
}

bool node_addresses_changed(struct skep_node *node)
{
    bool changed = own_addresses_changed(&node->own_addresses);

    if (changed)
        look_at_bound(node);
    return changed;
}

size_t node_announce_first(struct skep_node *node, struct endpoint out[static ANNOUNCE_MAX])
{
    bool guessed;
    size_t count = pick(node, out, &guessed);

    if (count == 0)
        say_why_nothing(node);
    else if (announce_must_ask(&node->announce))
        say_new(node, out, guessed);
    keep(node, out, count);
    return count;
}

uint64_t node_announce(struct skep_node *node)
{
    struct endpoint endpoints[ANNOUNCE_MAX];
    bool guessed;
    size_t count = pick(node, endpoints, &guessed);

    if (count == 0 && announce_must_ask(&node->announce)) {
        /* What was announced stays: all addresses may be gone for a moment. */
        if (node->announced_count == 0)
            say_why_nothing(node);
        return clock_deadline_us(RETRY_MS);
    }
    if (!is_same(node, endpoints, count)) {
        if (count == 0)
            say_why_nothing(node);
        else
            say_new(node, endpoints, guessed);
        keep(node, endpoints, count);
        handler_set_endpoints(node->handler, endpoints, count);
        if (node->reach != NULL)
            reach_announce(node->reach, endpoints, count);
        node_announce_tracker(node, endpoints, count);
    }
    if (!swarm_is_placed(node->swarm))
        return clock_deadline_us(RETRY_MS);
    return clock_deadline_us(guessed || count == 0 ? UNSURE_MS : CHECK_MS);
}
