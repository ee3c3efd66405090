/* Known peers on disk. */
#include "dht/bootstrap/peers_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

static const char title[] = "# DHT peers seen last, tried at the next start\n";

/* Of a file that is longer, the last line within the limit is not whole: half an address is another
 * one's. */
static size_t cut(char *text, size_t len)
{
    if (len > PEERS_FILE_MAX_BYTES)
        while (len > 0 && text[len - 1] != '\n')
            len--;
    text[len] = '\0';
    return len;
}

/* The whole file with a NUL behind it, or the lines that fit in PEERS_FILE_MAX_BYTES; NULL if there
 * is none. */
static char *read_file(const char *path, size_t *out)
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
        text = mem_calloc(1, PEERS_FILE_MAX_BYTES + 2);
    else
        log_warn("known peers: %s: not a regular file, left alone", path);
    while (text != NULL && len <= PEERS_FILE_MAX_BYTES) {
        ssize_t n = read(fd, text + len, PEERS_FILE_MAX_BYTES + 1 - len);
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    close(fd);
    if (text != NULL)
        *out = cut(text, len);
    return text;
}

static bool parse_line(const char *line, struct address *out)
{
    struct endpoint e;

    return endpoint_parse(&e, line, false, NULL) == SKEP_OK && !endpoint_is_unspecified(&e) &&
           endpoint_to_address(&e, out);
}

/* Whether a line that ends with the file is one that a whole file would go on with: what is saved
 * ends in a newline, while people may leave that out. */
static bool is_cut_off(const char *text, const char *end)
{
    return *end == '\0' && strncmp(text, title, sizeof(title) - 1) == 0;
}

size_t peers_file_load(const char *path, struct address *out, size_t cap)
{
    size_t len = 0;
    char *text = read_file(path, &len);
    size_t count = 0, bad = 0, number = 0, first_bad = 0;
    char quoted[TEXT_QUOTE_BYTES] = "";

    for (size_t at = 0; at < len && count < cap;) {
        char *line = text + at;
        char *end = memchr(line, '\n', len - at);
        size_t own = end != NULL ? (size_t)(end - line) : len - at;

        at += own + 1;
        number++;
        if (own == 0 || line[0] == '#')
            continue;
        bool is_whole = memchr(line, '\0', own) == NULL && !is_cut_off(text, line + own);
        line[own] = '\0';
        if (is_whole && parse_line(line, &out[count])) {
            count++;
        } else if (bad++ == 0) {
            first_bad = number;
            text_quote(line, own, quoted);
        }
    }
    if (text != NULL && len == 0)
        log_warn("known peers: %s: is empty, expected a line address:port for each peer", path);
    mem_free(text);
    if (bad > 0)
        log_warn("known peers: %s: is damaged: %zu line%s ignored, the first is line %zu: %s, "
                 "expected address:port",
                 path, bad, text_plural(bad), first_bad, quoted);
    return count;
}

static bool format_all(struct bytes *out, const struct address *addresses, size_t count)
{
    bool ok = bytes_append(out, title, sizeof(title) - 1);

    for (size_t i = 0; i < count && ok; i++) {
        struct endpoint e;
        char text[ENDPOINT_TEXT_BYTES];
        endpoint_from_address(&e, (const struct sockaddr *)&addresses[i].sa);
        endpoint_format(&e, text);
        ok = bytes_append(out, text, strlen(text)) && bytes_append(out, "\n", 1);
    }
    return ok;
}

skep_status peers_file_save(const char *path, const struct address *addresses, size_t count,
                            struct skep_error *err)
{
    struct file_writer writer = {.fd = -1};
    struct bytes text = {0};
    skep_status rc;

    if (!format_all(&text, addresses, count)) {
        rc = error_no_memory(err, path, count * ENDPOINT_TEXT_BYTES);
        goto out;
    }
    rc = file_writer_open(&writer, path, 0600, err);
    if (rc == SKEP_OK)
        rc = file_writer_write(&writer, text.data, text.len, err);
    if (rc == SKEP_OK)
        rc = file_writer_commit(&writer, err);

out:
    file_writer_abort(&writer);
    bytes_free(&text);
    if (rc != SKEP_OK)
        error_prefix(err, "known peers");
    return rc;
}
