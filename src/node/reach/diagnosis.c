/* See diagnosis.h. */
#include "node/reach/diagnosis.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/number.h"

bool diagnosis_is_private(const struct endpoint *e)
{
    struct address a;

    if (!endpoint_to_address(e, &a))
        return false;
    if (a.sa.ss_family == AF_INET6) {
        const uint8_t *b = ((const struct sockaddr_in6 *)&a.sa)->sin6_addr.s6_addr;
        return (b[0] & 0xfe) == 0xfc || (b[0] == 0xfe && (b[1] & 0xc0) == 0x80);
    }
    const uint8_t *b = (const uint8_t *)&((const struct sockaddr_in *)&a.sa)->sin_addr;
    return b[0] == 10 || b[0] == 127 || (b[0] == 172 && (b[1] & 0xf0) == 16) ||
           (b[0] == 192 && b[1] == 168) || (b[0] == 169 && b[1] == 254) ||
           (b[0] == 100 && (b[1] & 0xc0) == 64);
}

__attribute__((format(printf, 2, 3))) static void say(struct diagnosis *v, const char *format, ...)
{
    size_t len = strlen(v->message);
    va_list args;

    va_start(args, format);
    number_vprint(v->message + len, sizeof(v->message) - len, format, args);
    va_end(args);
}

/* The answers that count: of those who see us at the announced address if there are any, as they
 * have tried the very endpoint; else all. A success before a failure. */
static const struct diagnosis_answer *most_telling(const struct diagnosis_answer *answers,
                                                   size_t count)
{
    const struct diagnosis_answer *best = &answers[0];

    for (size_t i = 1; i < count; i++) {
        const struct diagnosis_answer *a = &answers[i];
        if (a->is_announced != best->is_announced ? a->is_announced : a->tcp && !best->tcp)
            best = a;
    }
    return best;
}

static void judge_tcp(const struct diagnosis_evidence *f, const struct diagnosis_answer *a,
                      struct diagnosis *v)
{
    unsigned port = a->dialled.port;
    unsigned bound = f->bound.port;

    if (a->tried_bound && a->bound_tcp) {
        v->state = SKEP_REACH_WRONG_ADDRESS;
        say(v,
            "port %u is announced, where peer %s gets no connection (%s), but it gets one at port "
            "%u: give --announce with that port, or forward TCP port %u to %u",
            port, a->peer, a->why, bound, port, bound);
        return;
    }
    v->state = SKEP_REACH_TCP_BLOCKED;
    say(v,
        "peer %s sees this node at %s, but gets no connection to TCP port %u (%s): open that port "
        "for inbound TCP in the firewall and forward it in the router",
        a->peer, a->dialled.host, port, a->why);
    if (bound != port)
        say(v, " to port %u here", bound);
    say(v, ", or choose one that is open with --listen%s", f->by_hand ? " and --announce" : "");
}

/* No peer sees us at what is announced. */
static void judge_other(const struct diagnosis_evidence *f, const struct diagnosis_answer *a,
                        struct diagnosis *v)
{
    char announced[ENDPOINT_TEXT_BYTES];
    const char *origin = f->by_hand ? "--announce" : "--listen";

    endpoint_format(&f->announced, announced);
    if (f->resolves && a->tcp && ((f->is_local && a->is_local) || (f->leads_here && !f->is_local)))
        return; /* two addresses of one machine, or one that is led back here */
    if (f->resolves && !f->is_private && a->is_private) {
        v->state = SKEP_REACH_UNCHECKED;
        say(v,
            "could not check: peer %s is on the same private network, sees this node at %s and "
            "cannot tell whether %s is reachable from elsewhere",
            a->peer, a->dialled.host, announced);
        return;
    }
    if (f->resolves && f->is_local && a->is_local) {
        v->state = SKEP_REACH_UNCHECKED;
        say(v,
            "could not check: peer %s sees this node at %s, and not at %s, where it listens "
            "(--listen)",
            a->peer, a->dialled.host, announced);
        return;
    }
    v->state = SKEP_REACH_WRONG_ADDRESS;
    say(v, "the announced address is wrong: %s of %s %s, but peer %s sees this node at %s",
        announced, origin, f->resolves ? "does not lead here" : "is a name without an address",
        a->peer, a->dialled.host);
    if (a->tcp)
        say(v, ", where it is reachable");
    else
        say(v, ", where TCP port %u gives no connection either (%s)", (unsigned)a->dialled.port,
            a->why);
    say(v, ": give --announce %s%s%s:%u", strchr(a->dialled.host, ':') != NULL ? "[" : "",
        a->dialled.host, strchr(a->dialled.host, ':') != NULL ? "]" : "",
        (unsigned)a->dialled.port);
    say(v, f->by_hand ? ", or leave it out" : ", or --listen on all addresses (0.0.0.0)");
}

/* What is wrong with the DHT's port is said after what is wrong with the other. */
static void judge_dht(const struct diagnosis_answer *answers, size_t count, struct diagnosis *v)
{
    const struct diagnosis_answer *silent = NULL;

    for (size_t i = 0; i < count; i++) {
        if (answers[i].dht == DIAGNOSIS_DHT_ANSWERS)
            return;
        if (answers[i].dht == DIAGNOSIS_DHT_SILENT)
            silent = &answers[i];
    }
    if (silent == NULL)
        return;
    if (v->message[0] != '\0')
        say(v, "; and ");
    say(v,
        "the DHT cannot be reached: peer %s gets no answer from UDP port %u of %s: open that port "
        "for inbound UDP in the firewall and forward it in the router, or choose one that is open "
        "with --dht-listen",
        silent->peer, (unsigned)silent->dht_port, silent->dialled.host);
    if (v->state == SKEP_REACH_REACHABLE)
        v->state = SKEP_REACH_UDP_BLOCKED;
}

void diagnosis_reach(const struct diagnosis_evidence *evidence,
                     const struct diagnosis_answer *answers, size_t count, struct diagnosis *out)
{
    const struct diagnosis_answer *a = most_telling(answers, count);
    char announced[ENDPOINT_TEXT_BYTES];

    *out = (struct diagnosis){.state = SKEP_REACH_REACHABLE};
    if (!a->is_announced)
        judge_other(evidence, a, out);
    else if (!a->tcp)
        judge_tcp(evidence, a, out);
    judge_dht(answers, count, out);
    if (out->state == SKEP_REACH_REACHABLE)
        say(out, "peer %s has reached %s%s", a->peer,
            endpoint_format(a->is_announced ? &a->dialled : &evidence->announced, announced),
            a->dht == DIAGNOSIS_DHT_ANSWERS ? ", and the DHT's port" : "");
}
