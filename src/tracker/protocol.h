/*
 * What requests and replies of the TVM RPC tracker's protocol mean (docs/tracker.md). The stream
 * of messages is in wire/tracker_frame.h. No sockets, no clock.
 *
 * Answers are written as Python's json.dumps() writes them (", " and ": ", everything outside
 * ASCII escaped), because stock peers parse some of them with less than a JSON parser.
 *
 * Thread: any, each object by one at a time.
 */
#ifndef SKEP_TRACKER_PROTOCOL_H
#define SKEP_TRACKER_PROTOCOL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "base/bytes.h"
#include "wire/tracker_frame.h"

enum {
    TRACKER_MAX_MESSAGE_BYTES = 1 << 20, /* of one request */
    TRACKER_MAX_DEPTH = 32,              /* of brackets in one request */
    TRACKER_MAX_REPLY_DEPTH = 1024,      /* in an answer: info is deeper in it, and others' too */
    TRACKER_MAX_KEY_BYTES = 4096,        /* of a resource key, a match key, a server's info key */
    TRACKER_MAX_HOST_BYTES = 255,        /* of an address that a server gives */
    TRACKER_MAX_INFO_BYTES = 16384,      /* of one server's UPDATE_INFO fields, as JSON */
};

/* ---- requests ---- */

/* Of any size, as Python's numbers are; compared exactly as far as 64 bits go. */
struct tracker_priority {
    double value;
    int64_t exact;
};
struct tracker_priority tracker_priority(int64_t value);
/* Below 0 if a comes after b, above 0 if before, 0 if they are equal. */
int tracker_priority_compare(struct tracker_priority a, struct tracker_priority b);

/* One request. Texts are views of `root`. */
struct tracker_request {
    json_t *root; /* owned: tracker_request_free() */
    enum tracker_code code;
    struct tracker_text key;       /* PUT, REQUEST; UPDATE_INFO if it has one */
    struct tracker_text match_key; /* PUT */
    struct tracker_text address;   /* PUT, UPDATE_INFO; absent: the peer's own */
    uint16_t port;                 /* PUT, UPDATE_INFO */
    struct tracker_text user;      /* REQUEST; may be absent */
    struct tracker_priority priority;
    struct tracker_text stop_key; /* STOP */
    json_t *info;                 /* UPDATE_INFO; view of root, as tracker_info_parse() has it */
};

/*
 * Parses one message. @param out  owned if SKEP_OK or SKEP_INVALID_ARGUMENT:
 * tracker_request_free().
 * @return SKEP_INVALID_ARGUMENT if it is a request that cannot be granted whatever the state (a
 *         port or address that cannot exist): answered FAIL, and `code` is set;
 *         SKEP_UNIMPLEMENTED for an unknown code and SKEP_DATA_LOSS for anything that is no request
 *         (not JSON, not UTF-8, nested too deeply, a field missing, of the wrong type or too long):
 * these end the connection; SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status tracker_request_parse(struct tracker_request *out,
                                                  struct tracker_text message,
                                                  struct skep_error *err);
void tracker_request_free(struct tracker_request *request); /* NULL and zeroed are allowed */

/* Parses any JSON value of a tracker's answer, which tells what strangers have told the tracker.
 * Where a name of an object's member holds NUL, every NUL of the answer is read as U+FFFD. Whole
 * numbers of more than 64 bits are read as reals, and what is not finite as null.
 * @return owned: json_decref(); NULL with err filled. */
json_t *tracker_json_parse(struct tracker_text message, struct skep_error *err);
/* The same for a request, or for what tracker_append_info() wrote: reals, whole numbers of more
 * than 18 digits, Infinity and NaN keep their text (protocol_numbers.h), which jansson has no place
 * for.
 */
json_t *tracker_info_parse(struct tracker_text message, struct skep_error *err);
/* The text of a JSON string. */
struct tracker_text tracker_json_text(const json_t *string);

/* ---- bytes out ---- */

/*
 * Messages are appended to a buffer. Each of these returns false if memory is short; the buffer is
 * then as it was.
 */
/* `0` or `-1`. */
bool tracker_write_code(struct bytes *out, enum tracker_code code);
/* `[0, ["address", port, "match key"]]`, the answer to REQUEST. */
bool tracker_write_resource(struct bytes *out, struct tracker_text address, uint16_t port,
                            struct tracker_text match_key);
/* `[-1, "sentence"]`, a refusal of REQUEST. */
bool tracker_write_refusal(struct bytes *out, const char *sentence);

/* Requests, for our own clients. Absent addresses are written as null. */
bool tracker_write_request(struct bytes *out, struct tracker_text key, struct tracker_text user,
                           int64_t priority);
bool tracker_write_put(struct bytes *out, struct tracker_text key, uint16_t port,
                       struct tracker_text match_key, struct tracker_text address);
bool tracker_write_stop(struct bytes *out, struct tracker_text stop_key);
bool tracker_write_update_info(struct bytes *out, const json_t *info);
/* PING, SUMMARY, GET_PENDING_MATCHKEYS: `[code]`. */
bool tracker_write_plain(struct bytes *out, enum tracker_code code);

/* Pieces without a length in front. */
bool tracker_append(struct bytes *out, const char *json); /* as it is */
bool tracker_append_text(struct bytes *out,
                         struct tracker_text text);    /* as a JSON string; "null" */
size_t tracker_text_written(struct tracker_text text); /* how many bytes that takes */
bool tracker_append_number(struct bytes *out, int64_t number);
/* Any value. */
bool tracker_append_value(struct bytes *out, const json_t *value);
/* Any value that tracker_info_parse() has read: numbers come out as they came in. */
bool tracker_append_info(struct bytes *out, const json_t *value);

#endif
