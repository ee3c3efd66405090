/* Names of peers on this machine. */
#include "net/presence.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"

enum { ID_BYTES = 16, NAME_BYTES = sizeof(((struct sockaddr_un *)NULL)->sun_path) };

/* The name without the zero byte in front. @param where NULL: of the first socket. */
static void make_name(char name[static NAME_BYTES], const uint8_t *peer_id, const char *where)
{
    char hex[PEER_ID_HEX_BYTES];

    peer_id_hex(peer_id, hex);
    snprintf(name, NAME_BYTES, "skep-node/%.*s%s%s", 2 * ID_BYTES, hex, where != NULL ? "/" : "",
             where != NULL ? where : "");
}

static socklen_t make_address(struct sockaddr_un *address, const char *name)
{
    size_t len = strnlen(name, NAME_BYTES - 1);

    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, name, len);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
}

/* -1 if the name is taken, or sockets are short. */
static int bind_name(const char *name)
{
    struct sockaddr_un address;
    socklen_t len = make_address(&address, name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    fd = fd_move_high(fd);
    /* Nobody is to fill its buffer: it is there for its name. */
    if (bind(fd, (struct sockaddr *)&address, len) == 0 && shutdown(fd, SHUT_RD) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

void presence_show(struct presence *p, const uint8_t peer_id[static PEER_ID_BYTES],
                   const struct endpoint *bound)
{
    struct endpoint here = *bound;
    char name[NAME_BYTES], where[ENDPOINT_TEXT_BYTES];

    *p = (struct presence){0};
    if (endpoint_is_unspecified(&here))
        snprintf(here.host, sizeof(here.host), "%s",
                 strchr(here.host, ':') != NULL ? "::1" : "127.0.0.1");
    endpoint_format(&here, where);
    make_name(name, peer_id, where);
    if (strlen(where) + strlen("skep-node//") + 2 * (size_t)ID_BYTES >= NAME_BYTES - 1)
        return;
    p->fds[1] = bind_name(name); /* first: who sees the other looks for this one */
    make_name(name, peer_id, NULL);
    p->fds[0] = p->fds[1] >= 0 ? bind_name(name) : -1;
    p->shown = p->fds[0] >= 0;
    if (p->shown)
        return;
    log_debug("%s: peers on this machine will not find it by name: %s", where, strerror(errno));
    if (p->fds[1] >= 0)
        close(p->fds[1]);
}

void presence_end(struct presence *p)
{
    if (p == NULL || !p->shown)
        return;
    close(p->fds[0]);
    close(p->fds[1]);
    p->shown = false;
}

static bool is_here(const char *name)
{
    struct sockaddr_un address;
    socklen_t len = make_address(&address, name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return false;
    bool here = connect(fd, (struct sockaddr *)&address, len) == 0;
    close(fd);
    return here;
}

/* The rest of a line of /proc/net/unix that names a socket beginning with `name` and a slash. The
 * kernel writes an abstract name with @ in place of its zero byte. */
static bool read_line(const char *line, const char *name, struct endpoint *out)
{
    char where[ENDPOINT_TEXT_BYTES];
    const char *at = strchr(line, '@');
    size_t len = strlen(name);

    if (at == NULL || strncmp(at + 1, name, len) != 0 || at[1 + len] != '/')
        return false;
    snprintf(where, sizeof(where), "%.*s", (int)strcspn(at + 2 + len, "\n@"), at + 2 + len);
    return endpoint_parse(out, where, false, NULL) == SKEP_OK && endpoint_is_usable(out);
}

bool presence_find(const uint8_t peer_id[static PEER_ID_BYTES], struct endpoint *out)
{
    char name[NAME_BYTES], line[256];
    bool found = false;

    make_name(name, peer_id, NULL);
    if (!is_here(name))
        return false;
    FILE *f = fopen("/proc/net/unix", "re");
    if (f == NULL)
        return false;
    while (!found && fgets(line, sizeof(line), f) != NULL)
        found = read_line(line, name, out);
    fclose(f);
    return found;
}
