/* Known peers on disk. */
#include "dht/peers_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

enum { MAX_PATH_BYTES = 4096 };

/* The whole file with a NUL behind it, or its first PEERS_FILE_MAX_BYTES; NULL if there is none. */
static char *read_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *text = NULL;
    size_t len = 0;
    struct stat st;

    if (fd < 0) {
        if (errno != ENOENT)
            log_warn("known peers: %s: cannot open: %s", path, strerror(errno));
        return NULL;
    }
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        text = mem_calloc(1, PEERS_FILE_MAX_BYTES + 1);
    else
        log_warn("known peers: %s: not a regular file, left alone", path);
    while (text != NULL && len < PEERS_FILE_MAX_BYTES) {
        ssize_t n = read(fd, text + len, PEERS_FILE_MAX_BYTES - len);
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    close(fd);
    return text;
}

static bool parse_line(const char *line, struct address *out)
{
    struct endpoint e;

    return endpoint_parse(&e, line, false, NULL) == SKEP_OK && !endpoint_is_unspecified(&e) &&
           endpoint_to_address(&e, out);
}

size_t peers_file_load(const char *path, struct address *out, size_t cap)
{
    char *text = read_file(path);
    char *rest = text;
    char *line;
    size_t count = 0, bad = 0, number = 0, first_bad = 0;
    char quoted[TEXT_QUOTE_BYTES] = "";

    while (rest != NULL && count < cap && (line = strsep(&rest, "\n")) != NULL) {
        number++;
        if (line[0] == '\0' || line[0] == '#')
            continue;
        if (parse_line(line, &out[count])) {
            count++;
        } else if (bad++ == 0) {
            first_bad = number;
            text_quote(line, strlen(line), quoted);
        }
    }
    mem_free(text);
    if (bad > 0)
        log_warn("known peers: %s: %zu lines ignored, the first is line %zu: %s, expected "
                 "address:port",
                 path, bad, first_bad, quoted);
    return count;
}

static bool write_all(FILE *f, const struct address *addresses, size_t count)
{
    bool ok = fputs("# DHT peers seen last, tried at the next start\n", f) >= 0;

    for (size_t i = 0; i < count && ok; i++) {
        struct endpoint e;
        char text[ENDPOINT_TEXT_BYTES];
        endpoint_from_address(&e, (const struct sockaddr *)&addresses[i].sa);
        ok = fprintf(f, "%s\n", endpoint_format(&e, text)) > 0;
    }
    return ok && fflush(f) == 0 && fsync(fileno(f)) == 0;
}

static skep_status file_error(struct skep_error *err, const char *path, const char *what,
                              int error_number)
{
    return error_set(err, status_from_errno(error_number), "known peers: %s: cannot %s: %s", path,
                     what, strerror(error_number));
}

skep_status peers_file_save(const char *path, const struct address *addresses, size_t count,
                            struct skep_error *err)
{
    char temporary[MAX_PATH_BYTES];
    int n = snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path);

    if (n < 0 || (size_t)n >= sizeof(temporary))
        return error_set(err, SKEP_INVALID_ARGUMENT, "known peers: path of %zu characters is long",
                         strlen(path));
    int fd = mkostemp(temporary, O_CLOEXEC); /* mode 0600 */
    if (fd < 0)
        return file_error(err, path, "make a file beside it", errno);
    FILE *f = fdopen(fd, "w");
    if (f == NULL)
        close(fd);
    bool ok = f != NULL && write_all(f, addresses, count);
    int failure = errno;
    if (f != NULL && fclose(f) != 0 && ok) {
        ok = false;
        failure = errno;
    }
    if (ok && rename(temporary, path) == 0)
        return SKEP_OK;
    if (ok)
        failure = errno;
    unlink(temporary);
    return file_error(err, path, "write", failure);
}
