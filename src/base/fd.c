/* Descriptors kept out of the way of select(2). */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

int fd_move_high(int fd)
{
    static struct log_limit gate;
    unsigned long suppressed;

    if (fd < 0)
        return fd;
    if (fd >= FD_LOW_LIMIT) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        return fd;
    }
    int high = fcntl(fd, F_DUPFD_CLOEXEC, FD_LOW_LIMIT);
    if (high >= 0) {
        close(fd);
        return high;
    }
    int why = errno;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (!log_limit_passes(&gate, 60000, &suppressed))
        return fd;
    if (why == EINVAL)
        log_warn("open files: the limit is %lu, expected more than %d, so few connections are "
                 "possible; raise it with ulimit -n or LimitNOFILE=",
                 fd_raise_limit(), FD_LOW_LIMIT);
    else
        log_warn("descriptor %d stays below %d: %s", fd, FD_LOW_LIMIT, strerror(why));
    return fd;
}

unsigned long fd_raise_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 0;
    if (limit.rlim_cur < limit.rlim_max) {
        struct rlimit raised = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
            return (unsigned long)raised.rlim_cur;
    }
    return (unsigned long)limit.rlim_cur;
}

skep_status fd_check_low_free(int needed, struct skep_error *err)
{
    struct rlimit limit;
    int usable = FD_LOW_LIMIT;
    int found = 0;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < FD_LOW_LIMIT)
        usable = (int)limit.rlim_cur;
    for (int fd = 0; fd < usable && found < needed; fd++)
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF)
            found++;
    if (found >= needed)
        return SKEP_OK;
    if (usable < FD_LOW_LIMIT)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED,
                         "open files: %d of the limit of %d are free, expected at least %d; raise "
                         "the limit with ulimit -n or LimitNOFILE=",
                         found, usable, needed);
    return error_set(err, SKEP_RESOURCE_EXHAUSTED,
                     "file descriptors: %d free below %d, expected at least %d (the DHT waits in "
                     "select and needs low numbers)",
                     found, usable, needed);
}
