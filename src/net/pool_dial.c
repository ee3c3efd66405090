/*
 * Connecting to a peer: its endpoints in order, of each all addresses, one after the other, until
 * one of them has answered as a Skep peer with the right identity. What failed is gathered into one
 * sentence for the calls that wait.
 */
#include "net/pool_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "net/presence.h"

/* Adds one attempt's failure. The gravest status wins: a wrong identity says more than a refusal.
 */
static void add_failure(struct dial *dial, const struct skep_error *why)
{
    struct skep_error *all = &dial->failure;
    size_t len = strlen(all->message);

    if (len == 0) {
        *all = *why;
        return;
    }
    snprintf(all->message + len, sizeof(all->message) - len, "; %s", why->message);
    if (why->status == SKEP_UNAUTHENTICATED)
        all->status = SKEP_UNAUTHENTICATED;
}

static void give_up(struct peer *peer)
{
    struct skep_error why = peer->dial.failure;

    peer->dial.active = false;
    pool_peer_fail_waiting(peer, &why);
}

static void fail_endpoint(struct dial *dial, const char *why)
{
    char text[ENDPOINT_TEXT_BYTES];
    struct skep_error err;

    error_set(&err, SKEP_UNAVAILABLE, "%s: %s", endpoint_format(&dial->endpoint, text), why);
    add_failure(dial, &err);
}

static void dial_on(struct peer *peer);

static void leave_lookup(struct peer *peer)
{
    struct dial *dial = &peer->dial;

    loop_lookup_end(dial->lookup);
    dial->lookup = NULL;
    deadline_heap_remove(&peer->pool->lookups, &dial->lookup_due);
}

/* Whether the address may be connected to: where a name leads is known only now. */
static bool is_allowed(const struct dial *dial, const struct sockaddr *sa)
{
    struct endpoint e;

    if (!dial->target.no_loopback)
        return true;
    endpoint_from_address(&e, sa);
    return !endpoint_is_loopback(&e) && !endpoint_is_unspecified(&e);
}

static const char not_allowed[] = "an address of this machine, which a peer elsewhere cannot have";

static void take_addresses(struct dial *dial, const struct lookup_answer *answer)
{
    char why[128];

    for (size_t i = 0; i < answer->count && dial->address_count < POOL_MAX_ADDRESSES; i++)
        if (is_allowed(dial, (const struct sockaddr *)&answer->addresses[i].sa))
            dial->addresses[dial->address_count++] = answer->addresses[i];
    if (answer->status != SKEP_OK) {
        fail_endpoint(dial, answer->err.message);
    } else if (dial->address_count == 0) {
        snprintf(why, sizeof(why), "the name leads to %s", not_allowed);
        fail_endpoint(dial, why);
    }
}

static void on_looked_up(void *arg, const struct lookup_answer *answer)
{
    struct peer *peer = arg;

    peer->dial.lookup = NULL;
    leave_lookup(peer);
    take_addresses(&peer->dial, answer);
    dial_on(peer);
}

void pool_dial_name_late(struct peer *peer)
{
    char why[96];

    snprintf(why, sizeof(why), "the name cannot be resolved: no answer in %u ms",
             (unsigned)peer->pool->config.connect_timeout_ms);
    leave_lookup(peer);
    fail_endpoint(&peer->dial, why);
    dial_on(peer);
}

static bool start_lookup(struct peer *peer)
{
    struct dial *dial = &peer->dial;
    struct pool *pool = peer->pool;
    struct skep_error err;

    dial->lookup_due.deadline_us = clock_deadline_us(pool->config.connect_timeout_ms);
    if (!deadline_heap_add(&pool->lookups, &dial->lookup_due)) {
        fail_endpoint(dial, "out of memory");
        return false;
    }
    if (loop_lookup_start(pool->loop, &dial->endpoint, dial->target.no_loopback, on_looked_up, peer,
                          &dial->lookup, &err) != SKEP_OK) {
        leave_lookup(peer);
        fail_endpoint(dial, err.message);
        return false;
    }
    pool_arm_deadlines(pool);
    return true;
}

/* Takes up the next endpoint. Returns whether a look-up is under way. */
static bool next_endpoint(struct peer *peer)
{
    struct dial *dial = &peer->dial;

    dial->endpoint = dial->target.endpoints[dial->next_endpoint++];
    dial->address_count = 0;
    dial->next_address = 0;
    if (!endpoint_is_usable(&dial->endpoint)) {
        fail_endpoint(dial, "not an address to connect to");
        return false;
    }
    if (endpoint_to_address(&dial->endpoint, &dial->addresses[0])) {
        if (is_allowed(dial, (const struct sockaddr *)&dial->addresses[0].sa))
            dial->address_count = 1;
        else
            fail_endpoint(dial, not_allowed);
        return false;
    }
    return start_lookup(peer);
}

static bool try_address(struct peer *peer)
{
    struct dial *dial = &peer->dial;
    struct skep_error err;

    skep_status rc = pool_link_open(peer, &dial->target, &dial->endpoint,
                                    &dial->addresses[dial->next_address++], &peer->link, &err);
    if (rc != SKEP_OK)
        add_failure(dial, &err);
    if (rc == SKEP_RESOURCE_EXHAUSTED) { /* the next one would fare no better */
        dial->next_address = dial->address_count;
        dial->next_endpoint = dial->target.endpoint_count;
    }
    return rc == SKEP_OK;
}

/* Goes on until something is under way or nothing is left to try. */
static void dial_on(struct peer *peer)
{
    struct dial *dial = &peer->dial;

    for (;;) {
        if (dial->next_address < dial->address_count) {
            if (try_address(peer))
                return;
        } else if (dial->next_endpoint < dial->target.endpoint_count) {
            if (next_endpoint(peer))
                return;
        } else {
            give_up(peer);
            return;
        }
    }
}

/* Sets the peer's place on this machine, if it has one, as the first address. */
static void try_here_first(struct dial *dial)
{
    const struct pool_target *target = &dial->target;
    struct endpoint here;

    if (!target->maybe_here || !target->has_peer_id ||
        endpoint_is_loopback(&target->endpoints[0]) || !presence_find(target->peer_id, &here) ||
        !endpoint_to_address(&here, &dial->addresses[0]))
        return;
    dial->endpoint = here;
    dial->address_count = 1;
}

void pool_dial_start(struct peer *peer, const struct pool_target *target)
{
    struct dial *dial = &peer->dial;

    memset(dial, 0, sizeof(*dial));
    memcpy(&dial->target, target,
           offsetof(struct pool_target, endpoints) +
               target->endpoint_count * sizeof(target->endpoints[0]));
    dial->active = true;
    try_here_first(dial);
    dial_on(peer);
}

void pool_dial_failed(struct peer *peer, const struct skep_error *why)
{
    add_failure(&peer->dial, why);
    dial_on(peer);
}

void pool_dial_succeeded(struct peer *peer)
{
    peer->dial.active = false;
}

void pool_dial_abandon(struct peer *peer)
{
    struct dial *dial = &peer->dial;

    leave_lookup(peer);
    dial->active = false;
}
