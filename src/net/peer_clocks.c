#include "net/peer_clocks.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

enum { LOG_MS = 60 * 1000 };

static bool is_off(int64_t ahead_ms)
{
    return ahead_ms > PEER_CLOCKS_OFF_MS || ahead_ms < -PEER_CLOCKS_OFF_MS;
}

static int by_time(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

static int64_t median(const struct peer_clocks *clocks)
{
    int64_t sorted[PEER_CLOCKS_KEPT];

    for (size_t i = 0; i < clocks->count; i++)
        sorted[i] = clocks->kept[i].ahead_ms;
    qsort(sorted, clocks->count, sizeof(sorted[0]), by_time);
    return sorted[clocks->count / 2];
}

/* A peer that speaks often counts once. */
static struct peer_clock *place_of(struct peer_clocks *clocks, const uint8_t *peer_id)
{
    for (size_t i = 0; i < clocks->count; i++)
        if (memcmp(clocks->kept[i].peer_id, peer_id, PEER_ID_BYTES) == 0)
            return &clocks->kept[i];
    if (clocks->count < PEER_CLOCKS_KEPT)
        return &clocks->kept[clocks->count++];
    struct peer_clock *oldest = &clocks->kept[clocks->next];
    clocks->next = (clocks->next + 1) % PEER_CLOCKS_KEPT;
    return oldest;
}

enum peer_clocks_result peer_clocks_saw(struct peer_clocks *clocks,
                                        const uint8_t peer_id[static PEER_ID_BYTES],
                                        int64_t *ahead_ms)
{
    struct peer_clock *c = place_of(clocks, peer_id);

    memcpy(c->peer_id, peer_id, PEER_ID_BYTES);
    c->ahead_ms = *ahead_ms;
    if (clocks->count >= PEER_CLOCKS_JURY && is_off(median(clocks))) {
        *ahead_ms = median(clocks);
        return PEER_CLOCKS_WE_ARE;
    }
    return is_off(*ahead_ms) ? PEER_CLOCKS_PEER_OFF : PEER_CLOCKS_FINE;
}

static const char *direction(int64_t ahead_ms)
{
    return ahead_ms < 0 ? "behind" : "ahead of";
}

void peer_clocks_note(const uint8_t peer_id[static PEER_ID_BYTES], uint64_t peer_ms)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct peer_clocks clocks; /* guarded by it */
    static struct log_limit gate;
    unsigned long suppressed;
    char peer[PEER_ID_SHORT_BYTES];

    if (peer_ms > INT64_MAX / 2)
        return;
    int64_t ahead_ms = (int64_t)peer_ms - clock_wall_ms();
    pthread_mutex_lock(&lock);
    enum peer_clocks_result result = peer_clocks_saw(&clocks, peer_id, &ahead_ms);
    size_t count = clocks.count;
    pthread_mutex_unlock(&lock);
    if (result == PEER_CLOCKS_FINE || !log_limit_passes(&gate, LOG_MS, &suppressed))
        return;
    long long by_s = (ahead_ms < 0 ? -ahead_ms : ahead_ms) / 1000;
    peer_id_short(peer_id, peer);
    if (result == PEER_CLOCKS_WE_ARE)
        log_warn("net: this machine's clock is wrong: those of most of %zu peers are %lld s %s it; "
                 "set it, or others refuse what this program publishes",
                 count, by_s, direction(ahead_ms));
    else
        log_warn("net: the clock of peer %s is %lld s %s ours: check the clocks of both machines; "
                 "if ours is wrong, others may refuse what this program publishes",
                 peer, by_s, direction(ahead_ms));
}
