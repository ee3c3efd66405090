/* What requests mean. Writing is in protocol_write.c. */
#include "tracker/protocol.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "tracker/protocol_numbers.h"

/* ---- JSON ---- */

static json_t *load(struct tracker_text message, size_t max_depth, enum json_error_code *code,
                    struct skep_error *err)
{
    json_error_t why;
    char quoted[TEXT_QUOTE_BYTES];

    *code = json_error_unknown;
    if (text_count_brackets(message.data, message.len).depth > max_depth) {
        error_set(err, SKEP_DATA_LOSS, "JSON nested deeper than %zu", max_depth);
        return NULL;
    }
    json_t *root = json_loadb(message.data, message.len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    if (root != NULL)
        return root;
    *code = json_error_code(&why);
    if (*code == json_error_out_of_memory)
        error_set(err, SKEP_RESOURCE_EXHAUSTED, "JSON: out of memory");
    else
        error_set(err, SKEP_DATA_LOSS, "not JSON: %s: %s", why.text,
                  text_quote(message.data, message.len, quoted));
    return NULL;
}

/* Writes U+FFFD for each U+0000, which JSON can only have as an escape of the same length. */
static void replace_nul(char *json, size_t len)
{
    static const char nul[] = "\\u0000";
    const size_t n = sizeof(nul) - 1;

    for (size_t i = 0; i + 1 < len; i++) {
        if (json[i] != '\\')
            continue;
        if (len - i >= n && memcmp(json + i, nul, n) == 0)
            memcpy(json + i, "\\ufffd", n);
        i++; /* what stands behind a backslash begins no escape */
    }
}

json_t *tracker_json_parse(struct tracker_text message, struct skep_error *err)
{
    enum json_error_code code;
    struct bytes soft = {0};
    json_t *root = load(message, TRACKER_MAX_REPLY_DEPTH, &code, err);

    if (root != NULL || code == json_error_out_of_memory)
        return root;
    /* Stock trackers pass numbers on that jansson has not. Nor has it names of members with NUL,
     * and SUMMARY has keys that clients chose as such: one must not keep us from reading of all
     * others.
     */
    skep_status rc = tracker_numbers_soften(message, &soft, err);
    const struct tracker_text softened = {.data = (const char *)soft.data, .len = soft.len};
    if (rc == SKEP_OK)
        root = load(softened, TRACKER_MAX_REPLY_DEPTH, &code, err);
    if (rc == SKEP_OK && root == NULL && code == json_error_null_byte_in_key) {
        replace_nul((char *)soft.data, soft.len);
        root = load(softened, TRACKER_MAX_REPLY_DEPTH, &code, err);
    }
    bytes_free(&soft);
    return root;
}

struct tracker_text tracker_json_text(const json_t *string)
{
    return (struct tracker_text){.data = json_string_value(string),
                                 .len = json_string_length(string)};
}

/* ---- priorities ---- */

struct tracker_priority tracker_priority(int64_t value)
{
    return (struct tracker_priority){.value = (double)value, .exact = value};
}

static struct tracker_priority real_priority(double value)
{
    static const double beyond = 9223372036854775808.0; /* 2^63 */
    struct tracker_priority p = {.value = value};

    if (value >= beyond)
        p.exact = INT64_MAX;
    else if (value < -beyond)
        p.exact = INT64_MIN;
    else
        p.exact = (int64_t)value;
    return p;
}

int tracker_priority_compare(struct tracker_priority a, struct tracker_priority b)
{
    if (a.value != b.value)
        return a.value < b.value ? -1 : 1;
    return (a.exact > b.exact) - (a.exact < b.exact);
}

/* ---- fields ---- */

static skep_status malformed(struct skep_error *err, const char *what)
{
    return error_set(err, SKEP_DATA_LOSS, "%s", what);
}

/* @param what  "PUT: key", for the sentence. */
static skep_status read_key(const json_t *value, const char *what, struct tracker_text *out,
                            struct skep_error *err)
{
    *out = tracker_marked_text(value);
    if (out->data == NULL)
        return error_set(err, SKEP_DATA_LOSS, "%s is no string", what);
    if (out->len > TRACKER_MAX_KEY_BYTES)
        return error_set(err, SKEP_DATA_LOSS, "%s has %zu bytes, expected at most %d", what,
                         out->len, TRACKER_MAX_KEY_BYTES);
    return SKEP_OK;
}

static skep_status port_text(struct tracker_text text, uint16_t *out, struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES];
    unsigned long port = 0;

    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9')
            return error_set(err, SKEP_DATA_LOSS, "port %s is no number",
                             text_quote(text.data, text.len, quoted));
        if (port <= UINT16_MAX)
            port = port * 10 + (unsigned long)(text.data[i] - '0');
    }
    if (port < 1 || port > UINT16_MAX)
        return error_set(err, SKEP_INVALID_ARGUMENT, "port %s, expected 1 to 65535",
                         text_quote(text.data, text.len, quoted));
    *out = (uint16_t)port;
    return SKEP_OK;
}

/* A number or, from TVM's C++ server, a string of digits. */
static skep_status read_port(const json_t *value, uint16_t *out, struct skep_error *err)
{
    struct tracker_text number;
    char quoted[TEXT_QUOTE_BYTES];

    if (tracker_number(value, &number))
        return error_set(err, SKEP_INVALID_ARGUMENT, "port %s, expected 1 to 65535",
                         text_quote(number.data, number.len, quoted));
    if (json_is_string(value))
        return port_text(tracker_marked_text(value), out, err);
    if (!json_is_integer(value))
        return malformed(err, "port is no number");
    json_int_t port = json_integer_value(value);
    if (port < 1 || port > UINT16_MAX)
        return error_set(err, SKEP_INVALID_ARGUMENT, "port %lld, expected 1 to 65535",
                         (long long)port);
    *out = (uint16_t)port;
    return SKEP_OK;
}

/* null, absent and "" all are the peer's own address. */
static skep_status read_address(const json_t *value, struct tracker_text *out,
                                struct skep_error *err)
{
    if (value == NULL || json_is_null(value))
        return SKEP_OK;
    struct tracker_text text = tracker_marked_text(value);
    if (text.data == NULL)
        return malformed(err, "address is neither a string nor null");
    if (text.len > TRACKER_MAX_HOST_BYTES)
        return error_set(err, SKEP_INVALID_ARGUMENT, "address has %zu bytes, expected at most %d",
                         text.len, TRACKER_MAX_HOST_BYTES);
    for (size_t i = 0; i < text.len; i++)
        if ((unsigned char)text.data[i] <= ' ' || text.data[i] == 0x7f)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "address has a space or control character");
    if (text.len > 0)
        *out = text;
    return SKEP_OK;
}

/* ---- requests ---- */

static skep_status read_put(struct tracker_request *r, struct skep_error *err)
{
    const json_t *value = json_array_get(r->root, 2);
    skep_status rc = read_key(json_array_get(r->root, 1), "PUT: key", &r->key, err);

    if (rc == SKEP_OK && json_array_size(value) < 2)
        rc = malformed(err, "PUT: third element is not [port, match key]");
    if (rc == SKEP_OK)
        rc = read_key(json_array_get(value, 1), "PUT: match key", &r->match_key, err);
    if (rc == SKEP_OK)
        rc = read_port(json_array_get(value, 0), &r->port, err);
    if (rc == SKEP_OK)
        rc = read_address(json_array_get(r->root, 3), &r->address, err);
    return rc;
}

/* What Python compares as a number: true is 1, false is 0, and any number does. */
static bool read_priority(const json_t *value, struct tracker_priority *out)
{
    struct tracker_text number;
    char text[24];
    char *end;

    if (json_is_integer(value) || json_is_boolean(value)) {
        *out = tracker_priority(json_is_integer(value) ? json_integer_value(value)
                                                       : json_is_true(value));
        return true;
    }
    if (!tracker_number(value, &number))
        return false;
    double real = tracker_number_value(number);
    /* There is no place for NaN in an order: last. */
    *out = real_priority(isnan(real) ? -INFINITY : real);
    if (number.len < sizeof(text)) { /* a whole number of 19 digits may fit 64 bits */
        memcpy(text, number.data, number.len);
        text[number.len] = '\0';
        errno = 0;
        long long whole = strtoll(text, &end, 10);
        if (*end == '\0' && errno == 0)
            *out = tracker_priority(whole);
    }
    return true;
}

static skep_status read_request(struct tracker_request *r, struct skep_error *err)
{
    const json_t *user = json_array_get(r->root, 2);
    const json_t *priority = json_array_get(r->root, 3);

    if (user == NULL || priority == NULL)
        return malformed(err, "REQUEST: expected [4, key, user, priority]");
    if (!json_is_string(user) && !json_is_null(user))
        return malformed(err, "REQUEST: user is neither a string nor null");
    if (!read_priority(priority, &r->priority))
        return malformed(err, "REQUEST: priority is no number");
    skep_status rc = read_key(json_array_get(r->root, 1), "REQUEST: key", &r->key, err);
    if (rc == SKEP_OK && json_is_string(user))
        rc = read_key(user, "REQUEST: user", &r->user, err);
    return rc;
}

static skep_status read_info(struct tracker_request *r, struct skep_error *err)
{
    r->info = json_array_get(r->root, 1);
    const json_t *address = json_object_get(r->info, "addr");
    const json_t *key = json_object_get(r->info, "key");

    if (!json_is_object(r->info) || json_array_size(address) < 2)
        return malformed(err, "UPDATE_INFO: expected [5, {\"addr\": [host or null, port], ...}]");
    skep_status rc = read_address(json_array_get(address, 0), &r->address, err);
    if (rc == SKEP_OK)
        rc = read_port(json_array_get(address, 1), &r->port, err);
    if (rc == SKEP_OK && key != NULL)
        rc = read_key(key, "UPDATE_INFO: key", &r->key, err);
    return rc;
}

static skep_status read_stop(struct tracker_request *r, struct skep_error *err)
{
    const json_t *key = json_array_get(r->root, 1);

    if (key == NULL)
        return malformed(err, "STOP: expected [2, stop key]");
    r->stop_key = tracker_marked_text(key); /* of another type: absent, and so no stop key */
    return SKEP_OK;
}

static skep_status read_fields(struct tracker_request *r, struct skep_error *err)
{
    switch (r->code) {
    case TRACKER_PING:
    case TRACKER_SUMMARY:
    case TRACKER_GET_PENDING_MATCHKEYS:
    case TRACKER_DHT_PEERS:
        return SKEP_OK;
    case TRACKER_STOP:
        return read_stop(r, err);
    case TRACKER_PUT:
        return read_put(r, err);
    case TRACKER_REQUEST:
        return read_request(r, err);
    case TRACKER_UPDATE_INFO:
        return read_info(r, err);
    case TRACKER_FAIL:
    case TRACKER_SUCCESS:
        break;
    }
    return error_set(err, SKEP_UNIMPLEMENTED, "code %d, expected %d to %d or %d", (int)r->code,
                     TRACKER_PING, TRACKER_GET_PENDING_MATCHKEYS, TRACKER_DHT_PEERS);
}

json_t *tracker_info_parse(struct tracker_text message, struct skep_error *err)
{
    struct bytes marked = {0};
    enum json_error_code code;
    json_t *root = NULL;

    if (tracker_numbers_mark(message, &marked, err) == SKEP_OK)
        root = load((struct tracker_text){.data = (const char *)marked.data, .len = marked.len},
                    TRACKER_MAX_DEPTH, &code, err);
    bytes_free(&marked);
    return root;
}

static bool read_code(const json_t *root, enum tracker_code *out)
{
    const json_t *first = json_array_get(root, 0);
    struct tracker_text number;

    *out = TRACKER_SUCCESS;
    if (tracker_number(first, &number))
        return strspn(number.data, "-0123456789") == number.len; /* 1.0 is none */
    if (!json_is_integer(first))
        return false;
    json_int_t code = json_integer_value(first);
    /* Whatever cannot be a code becomes one that there is not. */
    bool is_code = (code >= TRACKER_PING && code <= TRACKER_GET_PENDING_MATCHKEYS) ||
                   code == TRACKER_DHT_PEERS;
    *out = is_code ? (enum tracker_code)code : TRACKER_SUCCESS;
    return true;
}

skep_status tracker_request_parse(struct tracker_request *out, struct tracker_text message,
                                  struct skep_error *err)
{
    struct skep_error why = {0};
    skep_status rc;

    *out = (struct tracker_request){0};
    out->root = tracker_info_parse(message, &why);
    if (out->root == NULL)
        rc = why.status;
    else if (!read_code(out->root, &out->code))
        rc = malformed(&why, "not [code, ...]");
    else
        rc = read_fields(out, &why);
    if (rc != SKEP_OK && err != NULL)
        *err = why;
    if (rc != SKEP_OK && rc != SKEP_INVALID_ARGUMENT)
        tracker_request_free(out);
    return rc;
}

void tracker_request_free(struct tracker_request *request)
{
    if (request == NULL)
        return;
    json_decref(request->root);
    *request = (struct tracker_request){0};
}
