/*
 * Whom a call asks next: its candidates, and the choice among them.
 */
#include "client/call_internal.h"

#include <string.h>

#include "base/alloc.h"
#include "client/random.h"

bool call_add_candidates(struct skep_call *call, const struct provider *items, size_t count)
{
    size_t total = call->candidates.count + count;

    if (count == 0)
        return true;
    struct provider *list = mem_realloc(call->candidates.items, total * sizeof(*list));
    if (list == NULL)
        return false;
    call->candidates.items = list;
    uint8_t *states = mem_realloc(call->states, total * sizeof(*states));
    if (states == NULL)
        return false;
    call->states = states;
    for (size_t i = 0; i < count; i++) {
        bool known = items[i].endpoint_count == 0;
        for (size_t k = 0; k < call->candidates.count && !known; k++)
            known = memcmp(list[k].peer_id, items[i].peer_id, PEER_ID_BYTES) == 0 &&
                    endpoint_equal(&list[k].endpoints[0], &items[i].endpoints[0]);
        if (known)
            continue;
        list[call->candidates.count] = items[i];
        states[call->candidates.count] = CANDIDATE_NEW;
        call->candidates.count++;
        call->fruitless_lookups = 0;
    }
    return true;
}

bool call_has_directory(const struct skep_call *call)
{
    return !call->expert->fixed && call->client->swarm != NULL;
}

/* More claim to serve it than an answer of the directory has room for. */
bool call_has_overflow(const struct skep_call *call)
{
    return call->candidates.count >= DIRECTORY_MAX_PROVIDERS && call_has_directory(call);
}

/* Whether the same node is known at a place that it has published later. */
static bool is_outdated(const struct skep_call *call, size_t i)
{
    const struct provider *items = call->candidates.items;

    for (size_t k = 0; k < call->candidates.count; k++)
        if (k != i && call->states[k] == CANDIDATE_NEW && items[k].seq > items[i].seq &&
            memcmp(items[k].peer_id, items[i].peer_id, PEER_ID_BYTES) == 0)
            return true;
    return false;
}

/* Whether an attempt is under way at this node, at whatever endpoint of its. */
static bool is_being_asked(const struct skep_call *call, const uint8_t *peer_id)
{
    for (size_t i = 0; i < CALL_ATTEMPTS; i++) {
        const struct call_attempt *attempt = &call->attempts[i];
        if (attempt->open &&
            memcmp(call->candidates.items[attempt->candidate].peer_id, peer_id, PEER_ID_BYTES) == 0)
            return true;
    }
    return false;
}

static bool may_ask(const struct skep_call *call, enum candidate_state state, size_t i)
{
    return call->states[i] == state && !is_outdated(call, i) &&
           !is_being_asked(call, call->candidates.items[i].peer_id);
}

/* In an overflow, the untried one that is most likely to answer, as far as this client remembers.
 */
static bool pick_from_overflow(const struct skep_call *call, size_t *out)
{
    struct directory *directory = swarm_directory(call->client->swarm);
    uint64_t lowest = UINT64_MAX;

    for (size_t i = 0; i < call->candidates.count; i++) {
        if (!may_ask(call, CANDIDATE_NEW, i))
            continue;
        uint64_t place = directory_peer_rank(directory, call->candidates.items[i].peer_id);
        if (place > lowest)
            continue;
        lowest = place;
        *out = i;
    }
    return lowest != UINT64_MAX;
}

/* Two of those that may be asked, at random; the second is the first if there is only one. With the
 * client's lock held. Returns how many there are. */
static size_t draw_two(struct skep_call *call, enum candidate_state state, bool backed_off_too,
                       size_t two[static 2])
{
    struct skep_client *client = call->client;
    size_t seen = 0;

    for (size_t i = 0; i < call->candidates.count; i++) {
        const uint8_t *peer_id = call->candidates.items[i].peer_id;
        if (!may_ask(call, state, i) ||
            (!backed_off_too && backoff_is_active(&client->backoff, peer_id, call->expert->uid)))
            continue;
        if (call->has_preferred && memcmp(peer_id, call->preferred, PEER_ID_BYTES) == 0) {
            two[0] = two[1] = i;
            return 1;
        }
        /* Reservoir sampling of two (Vitter 1985, algorithm R). */
        size_t place =
            seen < 2 ? seen : (size_t)(random_uniform(&client->random) * (double)(seen + 1));
        if (place < 2)
            two[place] = i;
        if (seen == 0)
            two[1] = i;
        seen++;
    }
    return seen;
}

uint64_t call_latency_key(const struct skep_call *call, const uint8_t *peer_id)
{
    return latency_key(peer_id, call->headers->method, call->expert->uid);
}

/* The better of two, by published load and by what was measured. With the client's lock held. */
static size_t better_of(struct skep_call *call, const size_t two[static 2],
                        const uint64_t round_trips_us[static 2])
{
    struct latency_cost costs[2];

    for (size_t n = 0; n < 2; n++) {
        const struct provider *p = &call->candidates.items[two[n]];
        costs[n] = latency_cost(&call->client->latencies, call_latency_key(call, p->peer_id),
                                p->load.queued_tasks);
        costs[n].round_trip_us = (double)round_trips_us[n];
    }
    int order = latency_compare(&costs[0], &costs[1]);
    if (order == 0)
        order = random_uniform(&call->client->random) < 0.5 ? -1 : 1;
    return two[order < 0 ? 0 : 1];
}

/*
 * A candidate: of two drawn at random the better one (the power of two choices,
 * Mitzenmacher 2001: nearly as good as the best of all, without all callers running to the same
 * one). Those that failed lately come last. With the lock held; the pool or the directory is asked
 * meanwhile.
 */
bool call_pick(struct skep_call *call, enum pick_from from, size_t *out, bool *backed_off)
{
    struct skep_client *client = call->client;
    enum candidate_state state = from == PICK_AGAIN ? CANDIDATE_GIVEN_UP : CANDIDATE_NEW;
    uint64_t round_trips_us[2];
    size_t two[2] = {0, 0};

    *backed_off = false;
    if (call_has_overflow(call) && from != PICK_AGAIN)
        return pick_from_overflow(call, out);
    pthread_mutex_lock(&client->lock);
    size_t count = draw_two(call, state, false, two);
    *backed_off = count == 0;
    if (count == 0 && from != PICK_GOOD)
        count = draw_two(call, state, true, two);
    pthread_mutex_unlock(&client->lock);
    *out = two[0];
    if (count < 2)
        return count == 1;
    for (size_t n = 0; n < 2; n++)
        round_trips_us[n] = pool_peer_rtt_us(client->pool, call->candidates.items[two[n]].peer_id);
    pthread_mutex_lock(&client->lock);
    *out = better_of(call, two, round_trips_us);
    pthread_mutex_unlock(&client->lock);
    return true;
}
