/* See announce.h; the rule is DESIGN 4.4. */
#include "node/reach/announce.h"

bool announce_must_ask(const struct announce_input *input)
{
    return input->preset == NULL && endpoint_is_unspecified(&input->bound);
}

static bool is_fit(const struct announce_input *input, const struct endpoint *e)
{
    return endpoint_is_usable(e) && (input->loopback_allowed || !endpoint_is_loopback(e));
}

static bool is_v6_wildcard(const struct endpoint *e)
{
    for (const char *p = e->host; *p != '\0'; p++)
        if (*p == ':')
            return true;
    return false;
}

size_t announce_pick(const struct announce_input *input, announce_ask_fn ask, void *arg,
                     struct endpoint out[static ANNOUNCE_MAX])
{
    size_t count = 0;

    if (!announce_must_ask(input)) {
        out[0] = input->preset != NULL ? *input->preset : input->bound;
        if (out[0].port == 0)
            out[0].port = input->bound.port;
        /* What a person wrote wins over what we think of it, if others can dial it at all. */
        return is_fit(input, &out[0]) ? 1 : 0;
    }
    /* A socket on :: takes IPv4 too, so both addresses reach it. */
    for (int v6 = 0; v6 <= (is_v6_wildcard(&input->bound) ? 1 : 0); v6++) {
        struct endpoint seen;

        if (!ask(arg, v6 == 1, &seen))
            continue;
        seen.port = input->bound.port; /* theirs is the UDP port */
        if (is_fit(input, &seen))
            out[count++] = seen;
    }
    return count;
}
