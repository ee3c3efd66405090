/* Why a bootstrap peer does not answer: join_check.c for several of them, and the words for it. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "dht/bootstrap/bootstrap_internal.h"

enum {
    CHECKS_AT_ONCE = 8,  /* peers that are looked into */
    CHECK_ADDRESSES = 2, /* of each: a name has one for each family */
};

bool peer_check_begin(struct bootstrap *b, struct peer *p)
{
    if (p->checks != NULL)
        return true;
    if (p->address_count == 0 || b->checking == CHECKS_AT_ONCE)
        return false;
    p->checks = mem_calloc(CHECK_ADDRESSES, sizeof(*p->checks));
    if (p->checks == NULL)
        return false;
    b->checking++;
    p->check_count = p->address_count < CHECK_ADDRESSES ? p->address_count : CHECK_ADDRESSES;
    for (size_t i = 0; i < p->check_count; i++)
        join_check_begin(&p->checks[i], &p->addresses[i], b->networks);
    return true;
}

void peer_check_end(struct bootstrap *b, struct peer *p)
{
    if (p->checks == NULL)
        return;
    for (size_t i = 0; i < p->check_count; i++)
        join_check_end(&p->checks[i]);
    mem_free(p->checks);
    p->checks = NULL;
    b->checking--;
}

void peer_complain(struct peer *p)
{
    p->complain = false;
    log_warn("bootstrap peer %s: %s%s%s; trying again", p->text,
             p->initial.is_tracker ? "the peers that it named do not answer"
                                   : "does not answer on UDP",
             p->why[0] != '\0' ? ": " : "", p->why);
}

/* The most telling of what was found at its addresses. */
static void conclude(struct bootstrap *b, struct peer *p)
{
    const struct join_check *best = &p->checks[0];
    char text[JOIN_CHECK_TEXT_BYTES];

    for (size_t i = 1; i < p->check_count; i++)
        if (join_check_finding(&p->checks[i]) < join_check_finding(best))
            best = &p->checks[i];
    snprintf(p->why, sizeof(p->why), "%s", join_check_say(best, text));
    peer_check_end(b, p);
    if (p->complain)
        peer_complain(p);
}

static void look_at_checks(struct bootstrap *b)
{
    for (size_t i = 0; i < b->peer_count && b->checking > 0; i++) {
        struct peer *p = &b->peers[i];
        bool is_over = true;
        for (size_t k = 0; p->checks != NULL && k < p->check_count; k++)
            is_over = join_check_look(&p->checks[k]) && is_over;
        if (p->checks != NULL && is_over)
            conclude(b, p);
    }
}

static const char *why_silent(const struct peer *p)
{
    if (p->why[0] != '\0')
        return p->why;
    if (p->address_count > 0)
        return "does not answer on UDP";
    return p->initial.is_tracker ? "no answer yet, neither to its name nor from the tracker"
                                 : "its name is still being looked up";
}

/* About each that was configured, as far as there is room. */
static void write_explanation(struct bootstrap *b, char out[static EXPLANATION_BYTES])
{
    size_t used = 0, more = 0;

    out[0] = '\0';
    for (size_t i = 0; i < b->peer_count; i++) {
        const struct peer *p = &b->peers[i];
        char one[INITIAL_PEER_TEXT_BYTES + SKEP_ERROR_MESSAGE_BYTES + 8];

        if (p->saved || p->self || p->present)
            continue;
        int len =
            snprintf(one, sizeof(one), "%s%s: %s", used > 0 ? "; " : "", p->text, why_silent(p));
        if (len < 0 || (size_t)len >= EXPLANATION_BYTES - used) {
            more++;
            continue;
        }
        memcpy(out + used, one, (size_t)len + 1);
        used += (size_t)len;
    }
    if (more > 0)
        snprintf(out + used, EXPLANATION_BYTES - used, "; and %zu more", more);
}

/* Begins what was asked for, and hands out what came of it. */
void peer_checks_look(struct bootstrap *b)
{
    char text[EXPLANATION_BYTES];

    pthread_mutex_lock(&b->lock);
    bool wanted = b->explain_asked != b->explain_done;
    bool begins = wanted && !b->is_explaining;
    if (begins)
        b->explain_begun = b->explain_asked;
    pthread_mutex_unlock(&b->lock);
    for (size_t i = 0; begins && i < b->peer_count; i++)
        if (!b->peers[i].saved && !b->peers[i].self && !b->peers[i].present)
            (void)peer_check_begin(b, &b->peers[i]);
    b->is_explaining = wanted;
    look_at_checks(b);
    if (!wanted || b->checking > 0)
        return;
    write_explanation(b, text);
    b->is_explaining = false;
    pthread_mutex_lock(&b->lock);
    memcpy(b->explanation, text, sizeof(text));
    b->explain_done = b->explain_begun;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

/* The names of peers about which nothing was found out. They never change. */
static void list_tried(const struct bootstrap *b, char *out, size_t cap)
{
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < b->peer_count && used < cap; i++) {
        if (b->peers[i].saved)
            continue;
        int len =
            snprintf(out + used, cap - used, "%s%s", used == 0 ? "tried " : ", ", b->peers[i].text);
        used += len > 0 ? (size_t)len : 0;
    }
}

bool bootstrap_explain(struct bootstrap *b, uint64_t deadline_us, char *out, size_t cap)
{
    pthread_mutex_lock(&b->lock);
    unsigned mine = ++b->explain_asked;
    b->woken = true;
    pthread_cond_broadcast(&b->changed);
    /* Counters wrap together. */
    while (b->expects_peers && b->good == 0 && (int)(b->explain_done - mine) < 0)
        if (!cond_wait_until(&b->changed, &b->lock, deadline_us))
            break;
    bool joined = !b->expects_peers || b->good > 0;
    bool is_done = (int)(b->explain_done - mine) >= 0;
    snprintf(out, cap, "%s", is_done ? b->explanation : "");
    pthread_mutex_unlock(&b->lock);
    if (!joined && !is_done)
        list_tried(b, out, cap);
    return joined;
}
