/* Key files: reading with the checks that keep a secret secret, and writing whole or not at all. */
#include "crypto/key_file.h"

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEX_DIGITS = 2 * KEY_FILE_SECRET_BYTES,
    /* A key file has 64 to 76 bytes. A little more is read, to name what is there instead. */
    READ_LIMIT = 1024,
};

static const struct {
    const char *word; /* in the file */
    const char *text; /* in messages */
    const char *remedy;
} kinds[] = {
    [KEY_FILE_IDENTITY] = {"identity", "the identity of a node", "--identity"},
    [KEY_FILE_SWARM_KEY] = {"swarm-key", "the key of a private swarm", "--swarm-key"},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), KIND_WORD_MAX = 9 };

/* ---- parsing ---- */

static size_t count_hex(const char *text, size_t len)
{
    size_t n = 0;

    while (n < len && ((text[n] >= '0' && text[n] <= '9') || (text[n] >= 'a' && text[n] <= 'f') ||
                       (text[n] >= 'A' && text[n] <= 'F')))
        n++;
    return n;
}

static bool is_text(const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)data[i];
        if (c >= 0x7f || (c < 0x20 && c != '\n' && c != '\r' && c != '\t'))
            return false;
    }
    return true;
}

/* Says in words what a file that is no key file looks like. */
static skep_status refuse(const char *data, size_t len, const char *name, struct skep_error *err)
{
    static const char pem[] = "-----BEGIN ";
    static const char expected[] = "expected 64 hex digits on one line, as skep keygen writes";
    size_t hex = count_hex(data, len);

    if (len == 0)
        return error_set(err, SKEP_DATA_LOSS, "%s: empty file, %s", name, expected);
    if (len >= sizeof(pem) - 1 && memcmp(data, pem, sizeof(pem) - 1) == 0)
        return error_set(err, SKEP_DATA_LOSS, "%s: a PEM file (another kind of key), %s", name,
                         expected);
    if (!is_text(data, len))
        return error_set(err, SKEP_DATA_LOSS, "%s: %s%zu bytes of binary data, %s", name,
                         len == READ_LIMIT ? "at least " : "", len, expected);
    if (hex == len || data[hex] == '\n' || data[hex] == '\r' || hex == HEX_DIGITS)
        return error_set(err, SKEP_DATA_LOSS, "%s: %zu hex digits%s, %s", name, hex,
                         hex == HEX_DIGITS ? " and more behind them" : "", expected);
    return error_set(err, SKEP_DATA_LOSS, "%s: character %zu is not a hex digit, %s", name, hex + 1,
                     expected);
}

/* What stands behind the digits: nothing, or a space and a word. KINDS for anything else. */
static size_t parse_kind(const char *text, size_t len, size_t kind)
{
    if (len == 0)
        return kind;
    for (size_t i = 0; i < KINDS; i++)
        if (text[0] == ' ' && len - 1 == strlen(kinds[i].word) &&
            memcmp(text + 1, kinds[i].word, len - 1) == 0)
            return i;
    return KINDS;
}

skep_status key_file_parse(uint8_t secret[static KEY_FILE_SECRET_BYTES], enum key_file_kind kind,
                           const void *content, size_t len, const char *name,
                           struct skep_error *err)
{
    const char *data = content;
    char digits[HEX_DIGITS + 1];
    size_t end = len; /* without the end of the line */

    memset(secret, 0, KEY_FILE_SECRET_BYTES);
    if (end > 0 && data[end - 1] == '\n')
        end--;
    if (end > 0 && data[end - 1] == '\r')
        end--;
    if (end < HEX_DIGITS || count_hex(data, end) != HEX_DIGITS)
        return refuse(data, len, name, err);
    size_t found = parse_kind(data + HEX_DIGITS, end - HEX_DIGITS, kind);
    if (found == KINDS)
        return refuse(data, len, name, err);
    if (found != kind)
        return error_set(err, SKEP_DATA_LOSS,
                         "%s: is %s, expected %s, as skep keygen %s PATH writes it", name,
                         kinds[found].text, kinds[kind].text, kinds[kind].remedy);
    memcpy(digits, data, HEX_DIGITS);
    digits[HEX_DIGITS] = '\0';
    bool good = hex_decode(secret, KEY_FILE_SECRET_BYTES, digits);
    sodium_memzero(digits, sizeof(digits));
    return good ? SKEP_OK : refuse(data, len, name, err);
}

/* ---- reading ---- */

static skep_status check_mode(int fd, const char *path, struct skep_error *err)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return error_set(err, status_from_errno(errno), "%s: cannot stat: %s", path,
                         strerror(errno));
    if (!S_ISREG(st.st_mode))
        return error_set(err, SKEP_DATA_LOSS, "%s: %s, expected a regular file", path,
                         S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
    if ((st.st_mode & 077) != 0)
        return error_set(err, SKEP_PERMISSION_DENIED,
                         "%s: mode %04o lets other users at the key, expected 0600; "
                         "fix it with: chmod 600 '%s'",
                         path, (unsigned)(st.st_mode & 07777), path);
    return SKEP_OK;
}

static skep_status read_all(int fd, char *data, size_t cap, size_t *len, const char *path,
                            struct skep_error *err)
{
    *len = 0;
    while (*len < cap) {
        ssize_t n = read(fd, data + *len, cap - *len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_set(err, status_from_errno(errno), "%s: cannot read: %s", path,
                             strerror(errno));
        if (n == 0)
            break;
        *len += (size_t)n;
    }
    return SKEP_OK;
}

skep_status key_file_read(uint8_t secret[static KEY_FILE_SECRET_BYTES], enum key_file_kind kind,
                          const char *path, struct skep_error *err)
{
    char data[READ_LIMIT] = {0};
    size_t len = 0;

    memset(secret, 0, KEY_FILE_SECRET_BYTES);
    /* Not blocking, so that a FIFO in the file's place is refused rather than waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return error_set(err, status_from_errno(errno), "%s: cannot open: %s", path,
                         strerror(errno));
    skep_status rc = check_mode(fd, path, err);
    if (rc == SKEP_OK)
        rc = read_all(fd, data, sizeof(data), &len, path, err);
    if (rc == SKEP_OK)
        rc = key_file_parse(secret, kind, data, len, path, err);
    close(fd);
    sodium_memzero(data, sizeof(data));
    return rc;
}

/* ---- writing ---- */

skep_status key_file_make_parents(const char *path, struct skep_error *err)
{
    char folder[PATH_MAX];
    size_t len = strlen(path);

    if (len == 0 || len >= sizeof(folder))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "key file: path of %zu characters, "
                         "expected 1 to %zu",
                         len, sizeof(folder) - 1);
    memcpy(folder, path, len + 1);
    for (char *slash = strchr(folder + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(folder, 0700) != 0 && errno != EEXIST)
            return error_set(err, status_from_errno(errno), "%s: cannot make the folder: %s",
                             folder, strerror(errno));
        *slash = '/';
    }
    return SKEP_OK;
}

skep_status key_file_write(const uint8_t secret[static KEY_FILE_SECRET_BYTES],
                           enum key_file_kind kind, const char *path, struct skep_error *err)
{
    struct file_writer writer;
    char line[HEX_DIGITS + 1 + KIND_WORD_MAX + 2];
    skep_status rc = key_file_make_parents(path, err);

    if (rc != SKEP_OK)
        return rc;
    rc = file_writer_open(&writer, path, 0600, err);
    if (rc != SKEP_OK)
        return rc;
    hex_encode(line, secret, KEY_FILE_SECRET_BYTES);
    int len = HEX_DIGITS +
              snprintf(line + HEX_DIGITS, sizeof(line) - HEX_DIGITS, " %s\n", kinds[kind].word);
    rc = file_writer_write(&writer, line, (size_t)len, err);
    sodium_memzero(line, sizeof(line));
    if (rc == SKEP_OK)
        rc = file_writer_commit_new(&writer, err);
    file_writer_abort(&writer);
    return rc;
}
