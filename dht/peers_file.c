/* Known peers on disk. */
#include "dht/peers_file.h"

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

/* Of a file that is longer, the last line within the limit is not whole: half an address is another
 * one's. */
static void cut(char *text, size_t len)
{
    if (len <= PEERS_FILE_MAX_BYTES)
        return;
    while (len > 0 && text[len - 1] != '\n')
        len--;
    text[len] = '\0';
}

/* The whole file with a NUL behind it, or the lines that fit in PEERS_FILE_MAX_BYTES; NULL if there
 * is none. */
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
        cut(text, len);
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

static bool format_all(struct bytes *out, const struct address *addresses, size_t count)
{
    static const char title[] = "# DHT peers seen last, tried at the next start\n";
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
