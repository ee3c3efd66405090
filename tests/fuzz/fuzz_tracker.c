/*
 * A stream of a tracker's client: it is cut into the same messages however it comes in; what is
 * understood holds what it should, and can be written and understood again. The first byte says in
 * which pieces the rest comes.
 */
#undef NDEBUG /* here assertions are the test */
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/text.h"
#include "tracker/protocol.h"

enum { SMALL_LIMIT = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_request(struct tracker_text message)
{
    struct tracker_request r;
    struct skep_error err;
    struct bytes out = {0};
    skep_status rc = tracker_request_parse(&r, message, &err);

    if (rc != SKEP_OK && rc != SKEP_INVALID_ARGUMENT) {
        assert(rc == SKEP_DATA_LOSS || rc == SKEP_UNIMPLEMENTED);
        assert(err.status == rc && r.root == NULL);
        return;
    }
    assert(text_is_utf8(message.data, message.len));
    if (rc == SKEP_OK && (r.code == TRACKER_PUT || r.code == TRACKER_UPDATE_INFO))
        assert(r.port > 0);
    if (rc == SKEP_OK && r.code == TRACKER_REQUEST) {
        assert(!isnan(r.priority.value));
        assert(tracker_priority_compare(r.priority, r.priority) == 0);
    }
    if (rc == SKEP_OK && r.code == TRACKER_PUT) {
        struct tracker_request again;
        assert(tracker_write_put(&out, r.key, r.port, r.match_key, r.address));
        const struct tracker_text written = {.data = (const char *)out.data + 4,
                                             .len = out.len - 4};
        assert(tracker_request_parse(&again, written, NULL) == SKEP_OK);
        assert(again.port == r.port && tracker_text_equal(again.key, r.key) &&
               tracker_text_equal(again.match_key, r.match_key) &&
               tracker_text_equal(again.address, r.address));
        tracker_request_free(&again);
    }
    if (rc == SKEP_OK && r.code == TRACKER_UPDATE_INFO) {
        out.len = 0;
        assert(tracker_append_info(&out, r.info));
        const struct tracker_text written = {.data = (const char *)out.data, .len = out.len};
        json_t *again = tracker_info_parse(written, NULL);
        assert(again != NULL && json_equal(again, r.info));
        json_t *answer = tracker_json_parse(written, NULL); /* as clients read it */
        assert(answer != NULL);
        json_decref(answer);
        for (size_t i = 0; i < out.len; i++)
            assert(out.data[i] >= ' ' && out.data[i] <= '~');
        json_decref(again);
    }
    bytes_free(&out);
    tracker_request_free(&r);
}

/* A sum over all that came out; the same for every way of cutting. */
static uint64_t run(const uint8_t *data, size_t size, size_t step, bool check)
{
    struct tracker_input in = {0};
    struct tracker_text message;
    struct skep_error err;
    uint64_t sum = 1469598103934665603u;
    enum tracker_input_result result = TRACKER_INPUT_MORE;

    for (size_t at = 0; at < size && result != TRACKER_INPUT_BAD; at += step) {
        assert(tracker_input_push(&in, data + at, size - at < step ? size - at : step));
        while ((result = tracker_input_next(&in, SMALL_LIMIT, &message, &err)) !=
               TRACKER_INPUT_MORE) {
            sum = (sum ^ (uint64_t)result) * 1099511628211u;
            if (result == TRACKER_INPUT_BAD)
                break;
            if (result != TRACKER_INPUT_MESSAGE)
                continue;
            assert(in.greeted && message.len > 0 && message.len <= SMALL_LIMIT);
            for (size_t i = 0; i < message.len; i++)
                sum = (sum ^ (uint8_t)message.data[i]) * 1099511628211u;
            if (check)
                check_request(message);
        }
        assert(tracker_input_settle(&in));
        assert(in.kept.len < SMALL_LIMIT + 4 + step);
    }
    tracker_input_free(&in);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    size_t step = 1 + (size_t)data[0] % 16;
    uint64_t whole = run(data + 1, size - 1, size, true);
    assert(run(data + 1, size - 1, step, false) == whole);
    check_request((struct tracker_text){.data = (const char *)data + 1, .len = size - 1});
    return 0;
}
