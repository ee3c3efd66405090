/* See environment.h. */
#include "cli/environment.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/number.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/options_internal.h"

static const char prefix[] = "SKEP_";

enum { MOST_NAMES = 512, PREFIX_LEN = sizeof(prefix) - 1 };

void environment_name(const char *option, char out[static ENVIRONMENT_NAME_BYTES])
{
    size_t used = (size_t)snprintf(out, ENVIRONMENT_NAME_BYTES, "%s", prefix);

    for (; *option != '\0' && used + 1 < ENVIRONMENT_NAME_BYTES; option++)
        out[used++] = (char)(*option == '-' ? '_' : ascii_upper(*option));
    out[used] = '\0';
}

/* What an option would have to be called for this variable; empty if none could be. */
static void option_name(const char *variable, size_t len, char out[static OPTION_NAME_BYTES])
{
    size_t used = 0;

    if (len - PREFIX_LEN < OPTION_NAME_BYTES)
        for (size_t i = PREFIX_LEN; i < len; i++)
            out[used++] = (char)(variable[i] == '_' ? '-' : ascii_lower(variable[i]));
    out[used] = '\0';
}

/* The names of all options, some more than once. */
static size_t list_names(const char *names[static MOST_NAMES])
{
    const struct option_table *table;
    size_t count = 0;

    for (size_t t = 0; (table = cli_option_table(t)) != NULL; t++)
        for (size_t i = 0; i < option_total(table) && count < MOST_NAMES; i++)
            names[count++] = option_at(table, i)->name;
    return count;
}

static bool is_listed(const char *variable, size_t len, const char *const *names, size_t count)
{
    char name[ENVIRONMENT_NAME_BYTES];

    for (size_t i = 0; i < count; i++) {
        environment_name(names[i], name);
        if (strlen(name) == len && memcmp(name, variable, len) == 0)
            return true;
    }
    return false;
}

static bool ends_in(const char *text, size_t len, const char *end)
{
    size_t n = strlen(end);

    return len >= n && memcmp(text + len - n, end, n) == 0;
}

/* Whether the text up to `len` ends in _PORT_<digits>_TCP, _UDP or _SCTP. */
static bool ends_in_port_of_service(const char *text, size_t len)
{
    static const char *const protocols[] = {"_TCP", "_UDP", "_SCTP"};

    for (size_t i = 0; i < sizeof(protocols) / sizeof(protocols[0]); i++) {
        if (!ends_in(text, len, protocols[i]))
            continue;
        size_t end = len - strlen(protocols[i]);
        size_t digits = 0;
        while (digits < end && ascii_is_digit(text[end - digits - 1]))
            digits++;
        if (digits > 0 && ends_in(text, end - digits, "_PORT_"))
            return true;
    }
    return false;
}

bool environment_is_service_link(const char *variable, const char *value)
{
    static const char *const parts[] = {"_PROTO", "_PORT", "_ADDR"};
    static const char *const urls[] = {"tcp://", "udp://", "sctp://"};
    size_t len = strlen(variable);
    const char *name = variable + PREFIX_LEN - 1; /* from the underscore on */

    if (strncmp(variable, prefix, PREFIX_LEN) != 0)
        return false;
    if (ends_in(name, strlen(name), "_PORT"))
        for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++)
            if (strncmp(value, urls[i], strlen(urls[i])) == 0)
                return true;
    if (ends_in(name, strlen(name), "_SERVICE_HOST") || strstr(name, "_SERVICE_PORT") != NULL)
        return true;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (ends_in(variable, len, parts[i]) &&
            ends_in_port_of_service(variable, len - strlen(parts[i])))
            return true;
    return ends_in_port_of_service(variable, len);
}

/* A variable of Kubernetes, by its entry in the environment. */
static bool is_service_link(const char *entry, size_t name_len)
{
    char name[ENVIRONMENT_NAME_BYTES];

    if (name_len >= sizeof(name))
        return false;
    memcpy(name, entry, name_len);
    name[name_len] = '\0';
    return environment_is_service_link(name, entry + name_len + 1);
}

void environment_warn(void)
{
    size_t links = 0;
    const char *names[MOST_NAMES];
    size_t count = list_names(names);
    char wanted[OPTION_NAME_BYTES], near[ENVIRONMENT_NAME_BYTES], quoted[TEXT_QUOTE_BYTES];

    for (char **p = environ; p != NULL && *p != NULL; p++) {
        size_t len = strcspn(*p, "=");
        if (strncmp(*p, prefix, PREFIX_LEN) != 0 || (*p)[len] == '\0' || (*p)[len + 1] == '\0')
            continue;
        if (is_service_link(*p, len)) {
            links++;
            continue;
        }
        if (is_listed(*p, len, names, count))
            continue;
        option_name(*p, len, wanted);
        const char *nearest = options_nearest(wanted, names, count);
        near[0] = '\0';
        if (nearest != NULL)
            environment_name(nearest, near);
        log_warn("environment: %s is no option of any command, it does nothing%s%s%s",
                 text_quote(*p, len, quoted), nearest != NULL ? "; did you mean " : "", near,
                 nearest != NULL ? "?" : "");
    }
    if (links > 0)
        log_info("environment: %zu variable%s of a Kubernetes Service whose name begins with "
                 "\"skep\": ignored",
                 links, text_plural(links));
}

char **environment_of_others(void)
{
    size_t count = 0;

    while (environ != NULL && environ[count] != NULL)
        count++;
    char **others = mem_calloc(count + 1, sizeof(*others));
    for (size_t i = 0, kept = 0; others != NULL && i < count; i++)
        if (strncmp(environ[i], prefix, PREFIX_LEN) != 0)
            others[kept++] = environ[i];
    return others;
}
