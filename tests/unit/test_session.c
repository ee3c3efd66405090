/* Sessions in pairs: handshakes, calls and replies, and what travels in them. */
#include "session_pair.h"

static const uint8_t key_one[32] = {1, 2, 3}, key_two[32] = {1, 2, 4};

/* ---- Handshake ---- */

static void check_established(enum noise_cipher cipher, bool plaintext, const uint8_t *psk)
{
    struct pair *p = pair_prepare();

    p->ca.cipher = cipher;
    p->ca.plaintext = p->cb.plaintext = plaintext;
    p->ca.psk = p->cb.psk = psk;
    p->ca.expected_peer_id = p->idb.peer_id;
    pair_open(p);
    assert_null(session_peer(p->a.session));
    pair_run(p);
    assert_int_equal(p->a.established, 1);
    assert_int_equal(p->b.established, 1);
    assert_int_equal(session_peer(p->a.session)->plaintext, plaintext);
    if (!plaintext)
        assert_int_equal(session_peer(p->b.session)->cipher, cipher);
    struct call_log *call = pair_call(p, NULL, 0);
    pair_run(p);
    assert_int_equal(call->done, 1);
    assert_int_equal(call->status, SKEP_OK);
    pair_free(p);
}

static void both_ciphers_and_plaintext_connect(void **state)
{
    (void)state;
    check_established(NOISE_CHACHAPOLY, false, NULL);
    check_established(NOISE_CHACHAPOLY, false, key_one);
    check_established(NOISE_CHACHAPOLY, true, NULL);
    check_established(NOISE_CHACHAPOLY, true, key_one);
    if (noise_cipher_available(NOISE_AESGCM)) {
        check_established(NOISE_AESGCM, false, NULL);
        check_established(NOISE_AESGCM, false, key_one);
    }
}

/* Both ends refuse for this reason; nothing was established anywhere at the responder. */
static void check_refused(struct pair *p, skep_status status, const char *why_a, const char *why_b)
{
    pair_open(p);
    struct call_log *call = pair_call(p, NULL, 0);
    pair_run(p);
    assert_int_equal(p->a.established, 0);
    assert_int_equal(p->b.established, 0);
    assert_true(p->a.ended);
    assert_int_equal(p->a.end.status, status);
    assert_contains(p->a.end.message, why_a);
    if (why_b != NULL) {
        assert_true(p->b.ended);
        assert_int_equal(p->b.end.status, status);
        assert_contains(p->b.end.message, why_b);
    }
    pair_close(p, NULL);
    assert_int_equal(call->status, status);
    assert_false(call->sent);
    assert_int_equal(p->served_count, 0);
    pair_free(p);
}

static void different_swarm_keys_are_refused_before_any_call(void **state)
{
    struct pair *p = pair_prepare();

    (void)state;
    p->ca.psk = key_one;
    p->cb.psk = key_two;
    check_refused(p, SKEP_UNAUTHENTICATED, "swarm keys differ", "swarm keys differ");
}

static void swarm_key_on_one_side_is_refused(void **state)
{
    struct pair *p = pair_prepare();

    (void)state;
    p->ca.psk = key_one;
    check_refused(p, SKEP_FAILED_PRECONDITION, "swarm is public", "swarm is public");
    p = pair_prepare();
    p->cb.psk = key_one;
    check_refused(p, SKEP_FAILED_PRECONDITION, "swarm is private", "swarm is private");
}

static void another_swarm_name_is_refused_naming_both(void **state)
{
    struct pair *p = pair_prepare();

    (void)state;
    p->ca.swarm = "blue";
    p->cb.swarm = "red";
    pair_open(p);
    pair_run(p);
    assert_int_equal(p->a.end.status, SKEP_FAILED_PRECONDITION);
    assert_contains(p->a.end.message, "\"blue\"");
    assert_contains(p->a.end.message, "\"red\"");
    assert_int_equal(p->a.established + p->b.established, 0);
    pair_free(p);

    p = pair_prepare(); /* private: only the responder may tell, and only to members */
    p->ca.psk = p->cb.psk = key_one;
    p->ca.swarm = "blue";
    p->cb.swarm = "red";
    check_refused(p, SKEP_FAILED_PRECONDITION, "\"red\"", "\"blue\"");
}

static void another_identity_than_expected_is_unauthenticated(void **state)
{
    struct pair *p = pair_prepare();

    (void)state;
    p->ca.expected_peer_id = p->ida.peer_id;
    check_refused(p, SKEP_UNAUTHENTICATED, "expected", NULL);
    p = pair_prepare();
    p->ca.plaintext = p->cb.plaintext = true;
    p->ca.expected_peer_id = p->ida.peer_id;
    check_refused(p, SKEP_UNAUTHENTICATED, "expected", NULL);
    p = pair_prepare(); /* the responder may pin, too */
    p->cb.expected_peer_id = p->idb.peer_id;
    check_refused(p, SKEP_UNAUTHENTICATED, "expected", "expected");
}

/* Claims one identity while its handshake is made with the key of another. */
static void claimed_identity_must_own_the_key(void **state)
{
    struct pair *p = pair_prepare();
    struct identity liar = p->idb;

    (void)state;
    memcpy(liar.peer_id, p->ida.peer_id, sizeof(liar.peer_id));
    p->cb.identity = &liar;
    check_refused(p, SKEP_UNAUTHENTICATED, "answers with another key", NULL);
    p = pair_prepare();
    liar = p->ida;
    memcpy(liar.peer_id, p->idb.peer_id, sizeof(liar.peer_id));
    p->ca.identity = &liar;
    check_refused(p, SKEP_UNAUTHENTICATED, "answers with another key", "answers with another key");
}

static void plaintext_on_one_side_is_refused(void **state)
{
    struct pair *p = pair_prepare();

    (void)state;
    p->ca.plaintext = true;
    check_refused(p, SKEP_FAILED_PRECONDITION, "initiator asks for plaintext", "encrypted only");
    p = pair_prepare();
    p->cb.plaintext = true;
    check_refused(p, SKEP_FAILED_PRECONDITION, "responder takes plaintext only", "ChaChaPoly");
}

static void feed(struct pair *p, struct side *side, const void *data, size_t len)
{
    wire_add(side == &p->b ? &p->a.wire : &p->b.wire, data, len);
    while (side == &p->b ? pair_deliver(p, &p->a, &p->b) : pair_deliver(p, &p->b, &p->a))
        ;
}

/* An initiator whose protocol differs by so much in its major or minor. */
static void check_initiator_version(int major_step, int minor, const char *expected)
{
    struct pair *p = pair_prepare();
    struct preamble preamble = {.major = (uint8_t)(PROTOCOL_MAJOR + major_step),
                                .minor = (uint8_t)minor,
                                .mode = PREAMBLE_CHACHAPOLY};
    uint8_t bytes[PREAMBLE_BYTES];
    struct refusal refusal;

    pair_open(p);
    preamble_encode(bytes, &preamble);
    feed(p, &p->b, bytes, sizeof(bytes));
    if (expected == NULL) {
        assert_false(p->b.ended);
    } else {
        assert_true(p->b.ended);
        assert_contains(p->b.end.message, expected);
        assert_int_equal(refusal_decode(&refusal, p->b.wire.memory, p->b.wire.end), p->b.wire.end);
        assert_int_equal(refusal.spoken.major, PROTOCOL_MAJOR);
        assert_contains(refusal.text, expected);
    }
    pair_free(p);
}

/* A responder that refuses because it speaks another major. */
static void check_responder_version(int major_step, const char *expected)
{
    struct pair *p = pair_prepare();
    struct preamble spoken = {.major = (uint8_t)(PROTOCOL_MAJOR + major_step)};
    uint8_t bytes[REFUSAL_MAX_BYTES];

    pair_open(p);
    size_t n = refusal_encode(bytes, &spoken, SKEP_FAILED_PRECONDITION, "no");
    feed(p, &p->a, bytes, n);
    assert_true(p->a.ended);
    assert_int_equal(p->a.end.status, SKEP_FAILED_PRECONDITION);
    assert_contains(p->a.end.message, expected);
    pair_free(p);
}

static void versions_that_differ_name_both_and_who_is_behind(void **state)
{
    (void)state;
    check_initiator_version(1, 0, "initiator 2.0, responder 1.1: update the responder");
    check_initiator_version(-1, 0, "only asked whether Skep listens here; version 1.1 does");
    check_initiator_version(-1, 7, "initiator 0.7, responder 1.1: update the initiator");
    check_initiator_version(0, 9, NULL); /* a later minor is welcome */
    check_initiator_version(0, 0, NULL); /* as is an earlier one */
    check_responder_version(1, "initiator 1.1, responder 2.0: update the initiator");
    check_responder_version(-1, "initiator 1.1, responder 0.0: update the responder");
}

static void refuse_stranger(const void *data, size_t len)
{
    struct pair *p = pair_prepare();

    pair_open(p);
    feed(p, &p->b, data, len);
    assert_true(p->b.ended);
    assert_contains(p->b.end.message, "not a Skep connection");
    assert_int_equal(wire_len(&p->b.wire), 0); /* not a byte is written to it */
    pair_free(p);
}

static void strangers_are_refused_at_their_first_wrong_byte(void **state)
{
    (void)state;
    refuse_stranger("GET / HTTP/1.1\r\n\r\n", 18);
    refuse_stranger("\x71\xf2\x02\x00", 4);
    refuse_stranger("\0", 1);
    refuse_stranger("SKEQ", 4);
    refuse_stranger("\x16\x03\x01", 3);
}

static void half_a_preamble_waits_for_its_rest(void **state)
{
    struct pair *p = pair_prepare();

    (void)state;
    pair_open(p);
    feed(p, &p->b, "SKE", 3);
    assert_false(p->b.ended);
    pair_wait(p, (uint64_t)p->limits.handshake_timeout_ms * 1000);
    assert_true(p->b.ended);
    assert_int_equal(p->b.end.status, SKEP_DEADLINE_EXCEEDED);
    pair_free(p);
}

static void initiator_recognizes_what_is_no_skep_peer(void **state)
{
    struct pair *p = pair_prepare();

    (void)state;
    pair_open(p);
    feed(p, &p->a, "HTTP/1.1 400 Bad Request\r\n", 26);
    assert_true(p->a.ended);
    assert_contains(p->a.end.message, "is this a Skep peer?");
    pair_free(p);
}

static void handshake_survives_pieces_of_any_size(void **state)
{
    (void)state;
    for (size_t piece = 1; piece < 400; piece = piece < 20 ? piece + 1 : piece * 2) {
        struct pair *p = pair_prepare();
        p->piece = piece;
        p->ca.psk = p->cb.psk = key_one;
        pair_open(p);
        struct call_log *call = pair_call(p, NULL, 0); /* opened before: it waits */
        pair_run(p);
        assert_int_equal(call->status, SKEP_OK);
        pair_free(p);
    }
}

static void flip_one(struct pair *p, struct side *from, uint8_t *data, size_t len)
{
    (void)from;
    if (p->tamper_at < len)
        data[p->tamper_at] ^= 0x10;
    p->tamper_at = p->tamper_at < len ? UINT64_MAX : p->tamper_at - len;
}

/* Whatever byte is changed on the way, either nothing was harmed by it or the connection ends; no
 * call gets another answer than its own. */
static void any_flipped_byte_ends_the_connection(void **state)
{
    DLManagedTensor *x = make_bytes(300, 5);

    (void)state;
    for (uint64_t at = 0; at < 1400; at++) {
        struct pair *p = pair_prepare();
        p->tamper = flip_one;
        p->tamper_at = at;
        p->limits.handshake_timeout_ms = 1000;
        pair_open(p);
        struct call_log *call = pair_call(p, &x, 1);
        pair_run(p);
        pair_wait(p, 60 * 1000000);
        if (call->done == 1 && call->replied) {
            assert_true(p->tamper_at != UINT64_MAX || call->status == SKEP_OK);
            assert_same_tensor(x, call->tensors[0]);
        } else {
            assert_true(p->a.ended || p->b.ended);
        }
        pair_free(p);
    }
    skep_tensor_free(x);
}

static void replayed_message_ends_the_connection(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);
    struct wire copy = {0};

    (void)state;
    struct call_log *call = pair_call(p, NULL, 0);
    pair_speak(p, &p->a);
    wire_add(&copy, p->a.wire.memory + p->a.wire.at, wire_len(&p->a.wire));
    pair_run(p);
    assert_int_equal(call->status, SKEP_OK);
    feed(p, &p->b, copy.memory, copy.end);
    assert_true(p->b.ended);
    assert_int_equal(p->b.end.status, SKEP_DATA_LOSS);
    assert_contains(p->b.end.message, "replayed");
    assert_int_equal(p->served_count, 1);
    free(copy.memory);
    pair_free(p);
}

/* ---- Calls ---- */

static void echo(struct pair *p, DLManagedTensor **tensors, size_t count)
{
    struct call_log *call = pair_call(p, tensors, count);

    pair_run(p);
    assert_int_equal(call->done, 1);
    assert_true(call->replied);
    assert_true(call->sent);
    assert_int_equal(call->status, SKEP_OK);
    assert_int_equal(call->tensor_count, count);
    for (size_t i = 0; i < count; i++)
        assert_same_tensor(tensors[i], call->tensors[i]);
}

static void check_counts(enum noise_cipher cipher, bool plaintext, size_t piece)
{
    struct pair *p = pair_opened(cipher, plaintext);
    DLManagedTensor *tensors[MESSAGE_MAX_TENSORS];

    p->piece = piece;
    for (size_t i = 0; i < MESSAGE_MAX_TENSORS; i++)
        tensors[i] = make_bytes((int64_t)(i * i * i % 9000), i + 1);
    for (size_t count = 0; count <= MESSAGE_MAX_TENSORS; count += count < 6 ? 1 : 29)
        echo(p, tensors, count);
    echo(p, tensors, MESSAGE_MAX_TENSORS);
    for (size_t i = 0; i < MESSAGE_MAX_TENSORS; i++)
        skep_tensor_free(tensors[i]);
    pair_free(p);
}

static void any_number_of_tensors_comes_back_the_same(void **state)
{
    (void)state;
    for (size_t piece = 1; piece < 1000000; piece = piece * 7 + 1) {
        check_counts(NOISE_CHACHAPOLY, false, piece);
        check_counts(NOISE_CHACHAPOLY, true, piece);
    }
    if (noise_cipher_available(NOISE_AESGCM))
        check_counts(NOISE_AESGCM, false, SIZE_MAX);
}

static void every_type_and_shape_is_bit_exact(void **state)
{
    static const DLDataType types[] = {
#define TYPE_ROW(name, c, b) {.code = c, .bits = b, .lanes = 1},
        SKEP_DTYPE_MAP(TYPE_ROW)
#undef TYPE_ROW
    };
    static const int64_t shapes[][8] = {{1}, {3, 5}, {2, 1, 3, 1, 2, 1, 2, 3}, {0, 4}, {7, 0, 2}};
    static const int ndims[] = {0, 2, 8, 2, 3};
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);

    (void)state;
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (size_t i = 0; i < sizeof(ndims) / sizeof(ndims[0]); i++) {
            DLManagedTensor *x = make_tensor(types[t], ndims[i], shapes[i], t * 8 + i + 1);
            echo(p, &x, 1);
            skep_tensor_free(x);
        }
    pair_free(p);
}

static void nan_payloads_and_minus_zero_survive(void **state)
{
    static const uint32_t patterns[] = {0x7fc00001, 0xffc12345, 0x7f800001, 0xff800000,
                                        0x80000000, 0x00000001, 0x807fffff, 0x7f7fffff};
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, true);
    DLManagedTensor *x = make_tensor(DTYPE_F32, 1, (int64_t[]){8}, 1);

    (void)state;
    memcpy(x->dl_tensor.data, patterns, sizeof(patterns));
    echo(p, &x, 1);
    assert_memory_equal(p->calls[0].tensors[0]->dl_tensor.data, patterns, sizeof(patterns));
    skep_tensor_free(x);
    pair_free(p);
}

static void large_tensors_arrive_whole(void **state)
{
    DLManagedTensor *tensors[3] = {make_bytes(5000001, 3), make_bytes(77, 4), make_bytes(1299, 5)};

    (void)state;
    for (int plaintext = 0; plaintext < 2; plaintext++)
        for (size_t piece = 1461; piece < 300000; piece *= 5) {
            struct pair *p = pair_opened(NOISE_CHACHAPOLY, plaintext != 0);
            p->piece = piece;
            echo(p, tensors, 3);
            pair_free(p);
        }
    for (int i = 0; i < 3; i++)
        skep_tensor_free(tensors[i]);
}

static void fields_of_a_call_arrive(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);
    struct call_headers headers = {.method = "backward",
                                   .uid = "ffn.0.31",
                                   .timeout_ms = 2500,
                                   .has_request_id = true,
                                   .request_id = {9, 8, 7}};
    struct call_log *call = &p->calls[p->call_count++];
    uint8_t params[] = {0x81, 0xa1, 'k', 0x05};

    (void)state;
    p->hold = true;
    headers.params = (struct bytes){.data = params, .len = sizeof(params)};
    assert_int_equal(session_call(p->a.session, &headers, NULL, call, &call->stream, NULL),
                     SKEP_OK);
    pair_speak(p, &p->b); /* the time of opening is told to both by whatever comes next */
    assert_int_equal(session_tick(p->a.session, p->now, NULL), SKEP_OK);
    p->now += 300 * 1000;
    pair_run(p);
    const struct call_headers *seen = p->served[0].headers;
    assert_string_equal(seen->method, "backward");
    assert_string_equal(seen->uid, "ffn.0.31");
    assert_int_equal(seen->timeout_ms, 2200); /* what was left when it was sent */
    assert_true(seen->has_request_id);
    assert_memory_equal(seen->request_id, headers.request_id, sizeof(seen->request_id));
    assert_int_equal(seen->params.len, sizeof(params));
    assert_memory_equal(seen->params.data, params, sizeof(params));
    pair_reply(p, &p->served[0], SKEP_OK);
    pair_run(p);
    pair_free(p);
}

static void error_replies_carry_sentence_and_hint(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);
    struct reply_headers reply = {
        .status = SKEP_RESOURCE_EXHAUSTED, .message = "pool full: 64 tasks", .retry_after_ms = 250};
    uint8_t result[] = {0xc0};

    (void)state;
    p->hold = true;
    struct call_log *call = pair_call(p, NULL, 0);
    pair_run(p);
    reply.result = (struct bytes){.data = result, .len = sizeof(result)};
    session_reply(p->b.session, p->served[0].stream, &reply, NULL);
    pair_run(p);
    assert_int_equal(call->status, SKEP_RESOURCE_EXHAUSTED);
    assert_string_equal(call->message, "pool full: 64 tasks");
    assert_int_equal(call->retry_after_ms, 250);
    assert_int_equal(call->result_len, 1);
    assert_int_equal(p->served[0].answered, 1);
    pair_free(p);
}

/* Refused when its HEADERS come: the rest of its tensors is dropped, the connection goes on. */
static void refusal_at_the_start_answers_at_once(void **state)
{
    DLManagedTensor *x = make_bytes(3000000, 6), *y = make_bytes(10, 7);

    (void)state;
    for (int plaintext = 0; plaintext < 2; plaintext++) {
        struct pair *p = pair_opened(NOISE_CHACHAPOLY, plaintext != 0);
        p->refuse = SKEP_NOT_FOUND;
        struct call_log *call = pair_call(p, &x, 1);
        pair_speak(p, &p->a);
        pair_run(p);
        assert_int_equal(call->status, SKEP_NOT_FOUND);
        assert_string_equal(call->message, "refused by the test");
        assert_int_equal(call->retry_after_ms, 7);
        assert_true(p->b.received < 3000000); /* the sender stopped when it was told */
        p->refuse = SKEP_OK;
        echo(p, &y, 1);
        p->reply_early = true; /* the same by session_reply() from within call_started */
        p->hold = true;
        call = pair_call(p, &x, 1);
        pair_run(p);
        assert_int_equal(call->status, SKEP_NOT_FOUND);
        p->reply_early = p->hold = false;
        echo(p, &y, 1);
        assert_false(p->a.ended || p->b.ended);
        pair_free(p);
    }
    skep_tensor_free(x);
    skep_tensor_free(y);
}

static void measures_a_round_trip(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);

    (void)state;
    session_ping(p->a.session, p->now);
    pair_speak(p, &p->a);
    p->now += 1234;
    pair_run(p);
    assert_int_equal(session_rtt_us(p->a.session), 1234);
    pair_free(p);
}

/* A failed allocation anywhere ends in an error or a refused call, never in a crash or a leak. */
static void every_allocation_may_fail(void **state)
{
    DLManagedTensor *x = make_bytes(5000, 8);

    (void)state;
    for (long nth = 1;; nth++) {
        struct pair *p = pair_prepare();
        struct skep_error err;
        bool pending = true;

        p->ca.plaintext = p->cb.plaintext = nth % 2 == 0;
        mem_fail_at(nth);
        if (session_new(&p->ca, &pair_events_a, p, p->now, &p->a.session, &err) == SKEP_OK &&
            session_new(&p->cb, &pair_events_b, p, p->now, &p->b.session, &err) == SKEP_OK) {
            DLManagedTensor *many[] = {x, x, x, x, x, x};
            pair_try_call(p, many, 1, &err);
            pair_run(p);
            if (!p->a.ended)
                pair_try_call(p, many, 6, &err);
            pair_run(p);
        }
        pending = mem_fail_pending();
        mem_fail_at(0);
        pair_free(p);
        if (pending && nth > 2)
            break;
    }
    skep_tensor_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ciphers_and_plaintext_connect),
        cmocka_unit_test(different_swarm_keys_are_refused_before_any_call),
        cmocka_unit_test(swarm_key_on_one_side_is_refused),
        cmocka_unit_test(another_swarm_name_is_refused_naming_both),
        cmocka_unit_test(another_identity_than_expected_is_unauthenticated),
        cmocka_unit_test(claimed_identity_must_own_the_key),
        cmocka_unit_test(plaintext_on_one_side_is_refused),
        cmocka_unit_test(versions_that_differ_name_both_and_who_is_behind),
        cmocka_unit_test(strangers_are_refused_at_their_first_wrong_byte),
        cmocka_unit_test(half_a_preamble_waits_for_its_rest),
        cmocka_unit_test(initiator_recognizes_what_is_no_skep_peer),
        cmocka_unit_test(handshake_survives_pieces_of_any_size),
        cmocka_unit_test(any_flipped_byte_ends_the_connection),
        cmocka_unit_test(replayed_message_ends_the_connection),
        cmocka_unit_test(any_number_of_tensors_comes_back_the_same),
        cmocka_unit_test(every_type_and_shape_is_bit_exact),
        cmocka_unit_test(nan_payloads_and_minus_zero_survive),
        cmocka_unit_test(large_tensors_arrive_whole),
        cmocka_unit_test(fields_of_a_call_arrive),
        cmocka_unit_test(error_replies_carry_sentence_and_hint),
        cmocka_unit_test(refusal_at_the_start_answers_at_once),
        cmocka_unit_test(measures_a_round_trip),
        cmocka_unit_test(every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
