/* Preambles, refusals, frame headers and GOAWAY: decoding is total, and what decodes encodes back.
 */
#undef NDEBUG /* here assertions are the test */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/text.h"
#include "wire/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct frame_header header;
    struct preamble preamble;
    struct refusal refusal;
    struct goaway goaway;
    struct skep_error err;
    uint8_t again[FRAME_HEADER_BYTES];

    (void)preamble_may_start(data, size < 16 ? size : 16);
    if (size >= FRAME_HEADER_BYTES) {
        if (frame_header_decode(&header, data, &err) == SKEP_OK) {
            assert(header.length <= FRAME_MAX_PAYLOAD);
            frame_header_encode(again, header.length, header.type, header.stream);
            assert(memcmp(again, data, sizeof(again)) == 0);
        } else {
            assert(err.status == SKEP_DATA_LOSS && header.length == 0);
        }
        (void)preamble_decode(&preamble, data);
    }
    size_t used = refusal_decode(&refusal, data, size);
    assert(used <= size);
    if (used > 0)
        assert(text_is_utf8(refusal.text, strlen(refusal.text)) && refusal.status != SKEP_OK);
    if (goaway_decode(&goaway, data, size))
        assert(text_is_utf8(goaway.text, strlen(goaway.text)));
    return 0;
}
