/* Sessions under load and in trouble: sharing, credit, limits, liveness, and peers that misbehave.
 */
#include "session_pair.h"

#include <time.h>

#include "net/session_internal.h" /* for the one test that has no time to make 2^32 calls */

static struct pair *opened_with(struct session_limits limits, bool plaintext)
{
    struct pair *p = pair_prepare();

    p->limits = limits;
    p->ca.plaintext = p->cb.plaintext = plaintext;
    pair_open(p);
    pair_run(p);
    assert_int_equal(p->a.established + p->b.established, 2);
    return p;
}

/* ---- Sharing ---- */

static void small_call_overtakes_a_large_one(void **state)
{
    DLManagedTensor *large = make_bytes(20 << 20, 1), *small = make_bytes(4096, 2);

    (void)state;
    for (int plaintext = 0; plaintext < 2; plaintext++) {
        struct pair *p = pair_opened(NOISE_CHACHAPOLY, plaintext != 0);
        struct call_log *first = pair_call(p, &large, 1);
        pair_speak(p, &p->a);
        struct call_log *second = pair_call(p, &small, 1);
        pair_run(p);
        assert_int_equal(second->order, 1);
        assert_int_equal(first->order, 2);
        assert_same_tensor(large, first->tensors[0]);
        assert_same_tensor(small, second->tensors[0]);
        pair_free(p);
    }
    skep_tensor_free(large);
    skep_tensor_free(small);
}

static void small_calls_share_a_message(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);
    DLManagedTensor *x = make_bytes(1000, 2);

    (void)state;
    for (int i = 0; i < 10; i++)
        pair_call(p, &x, 1);
    size_t before = p->a.wire.end;
    pair_speak(p, &p->a);
    /* One length field and one tag for all. */
    assert_int_equal(load_u16(p->a.wire.memory + p->a.wire.at) + 2,
                     p->a.wire.end - (p->a.wire.at == 0 ? 0 : before));
    pair_run(p);
    assert_int_equal(p->done_count, 10);
    skep_tensor_free(x);
    pair_free(p);
}

static void many_calls_at_once_all_come_back(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);
    DLManagedTensor *tensors[PAIR_MAX_CALLS];

    (void)state;
    for (size_t i = 0; i < PAIR_MAX_CALLS; i++) {
        tensors[i] = make_bytes((int64_t)(i * 997 % 70000), i + 1);
        pair_call(p, &tensors[i], 1);
    }
    assert_int_equal(session_open_streams(p->a.session), PAIR_MAX_CALLS);
    pair_run(p);
    for (size_t i = 0; i < PAIR_MAX_CALLS; i++) {
        assert_same_tensor(tensors[i], p->calls[i].tensors[0]);
        skep_tensor_free(tensors[i]);
    }
    assert_int_equal(session_open_streams(p->a.session), 0);
    assert_int_equal(session_open_streams(p->b.session), 0);
    assert_int_equal(session_backlog(p->a.session), 0);
    assert_int_equal(session_backlog(p->b.session), 0);
    pair_free(p);
}

/* ---- Credit ---- */

/* Both ends check the other's use of its windows, so that a call that comes back kept to them. */
static void windows_of_any_size_carry_a_large_call(void **state)
{
    static const uint32_t windows[][2] = {
        {4096, 4096}, {4096, 1 << 20}, {1 << 20, 4096}, {65000, 65000}, {100000, 70001}};
    DLManagedTensor *x[] = {make_bytes(1000003, 5), make_bytes(300, 6), make_bytes(70000, 7)};

    (void)state;
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
        struct session_limits limits = session_default_limits;
        limits.stream_window = windows[i][0];
        limits.connection_window = windows[i][1];
        struct pair *p = opened_with(limits, i % 2 == 0);
        for (int n = 0; n < 4; n++)
            pair_call(p, x, 3);
        pair_run(p);
        assert_int_equal(p->done_count, 4);
        for (int n = 0; n < 4; n++)
            for (int t = 0; t < 3; t++)
                assert_same_tensor(x[t], p->calls[n].tensors[t]);
        pair_free(p);
    }
    for (int t = 0; t < 3; t++)
        skep_tensor_free(x[t]);
}

/* A peer that reads nothing: what waits for it stays within the bound, then it is dropped. */
static void slow_reader_is_refused_then_dropped(void **state)
{
    struct session_limits limits = session_default_limits;
    DLManagedTensor *x = make_bytes(100000, 5);

    (void)state;
    limits.max_reply_backlog = 250000;
    struct pair *p = opened_with(limits, false);
    p->b.mute = true;
    for (int i = 0; i < 10; i++) {
        pair_call(p, &x, 1);
        pair_run(p);
    }
    assert_int_equal(p->served_count, 3); /* the third took it over the bound */
    assert_true(session_backlog(p->b.session) < 250000 + 100000 + 10 * 1000);
    p->b.mute = false;
    pair_run(p);
    for (int i = 0; i < 10; i++)
        assert_int_equal(p->calls[i].status, i < 3 ? SKEP_OK : SKEP_RESOURCE_EXHAUSTED);
    assert_true(p->calls[9].retry_after_ms > 0);

    p->b.mute = true;
    pair_call(p, &x, 1);
    pair_run(p);
    pair_wait(p, (uint64_t)limits.stall_timeout_ms * 1000 - 1000);
    assert_false(p->b.ended);
    pair_wait(p, 2000);
    assert_true(p->b.ended);
    assert_contains(p->b.end.message, "stalled");
    skep_tensor_free(x);
    pair_free(p);
}

/* ---- Giving up ---- */

static void cancel_at_any_moment_frees_both_ends(void **state)
{
    DLManagedTensor *x = make_bytes(2000000, 5), *small = make_bytes(10, 6);

    (void)state;
    for (int moment = 0; moment < 4; moment++) {
        struct pair *p = pair_opened(NOISE_CHACHAPOLY, moment % 2 == 0);
        p->hold = true;
        struct call_log *call = pair_call(p, &x, 1);
        if (moment == 1) { /* half sent */
            pair_speak(p, &p->a);
            pair_deliver(p, &p->a, &p->b);
        } else if (moment >= 2) { /* being worked on */
            pair_run(p);
            assert_int_equal(p->served[0].complete, 1);
        }
        if (moment == 3) { /* half replied */
            pair_reply(p, &p->served[0], SKEP_OK);
            pair_speak(p, &p->b);
            pair_deliver(p, &p->b, &p->a);
        }
        session_cancel(p->a.session, call->stream, NULL);
        assert_int_equal(call->done, 1);
        assert_int_equal(call->status, SKEP_CANCELLED);
        assert_int_equal(call->sent, moment > 0);
        pair_run(p);
        assert_int_equal(session_open_streams(p->b.session), 0);
        assert_int_equal(session_backlog(p->a.session) + session_backlog(p->b.session), 0);
        assert_int_equal(p->served_count, moment > 0);
        if (moment > 0)
            assert_int_equal(p->served[0].gone, 1);
        p->hold = false;
        call = pair_call(p, &small, 1); /* the connection is as good as before */
        pair_run(p);
        assert_same_tensor(small, call->tensors[0]);
        assert_false(p->a.ended || p->b.ended);
        pair_free(p);
    }
    skep_tensor_free(x);
    skep_tensor_free(small);
}

static void cancel_gives_the_reason_asked_for(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);
    struct skep_error why;

    (void)state;
    p->hold = true;
    struct call_log *call = pair_call(p, NULL, 0);
    pair_run(p);
    error_set(&why, SKEP_DEADLINE_EXCEEDED, "after 300 ms");
    session_cancel(p->a.session, call->stream, &why);
    assert_int_equal(call->status, SKEP_DEADLINE_EXCEEDED);
    assert_string_equal(call->message, "after 300 ms");
    pair_run(p);
    pair_free(p);
}

static void end_of_the_session_ends_every_call(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);
    DLManagedTensor *x = make_bytes(100000, 5);
    struct skep_error why;

    (void)state;
    p->hold = true;
    pair_call(p, &x, 1);
    pair_run(p);
    pair_call(p, &x, 1);
    error_set(&why, SKEP_UNAVAILABLE, "socket closed");
    pair_close(p, &why);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(p->calls[i].status, SKEP_UNAVAILABLE);
        assert_string_equal(p->calls[i].message, "socket closed");
        assert_int_equal(p->calls[i].sent, i == 0);
    }
    assert_int_equal(p->served[0].gone, 1);
    skep_tensor_free(x);
    pair_free(p);
}

/* ---- Draining ---- */

static void goaway_lets_open_calls_finish_and_stops_new_ones(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);
    struct skep_error err;

    (void)state;
    p->hold = true;
    struct call_log *open = pair_call(p, NULL, 0);
    pair_run(p);
    session_goaway(p->b.session, "shutting down");
    struct call_log *crossing = pair_call(p, NULL, 0);
    pair_speak(p, &p->a); /* leaves before the GOAWAY arrives */
    p->a.mute = true;
    struct call_log *unsent = pair_call(p, NULL, 0);
    pair_run(p);
    p->a.mute = false;
    pair_run(p);
    assert_int_equal(p->a.goaways, 1);
    assert_string_equal(p->a.goaway, "shutting down");
    assert_int_equal(crossing->status, SKEP_UNAVAILABLE);
    assert_true(crossing->replied);
    assert_int_equal(unsent->status, SKEP_UNAVAILABLE);
    assert_false(unsent->sent); /* may be made elsewhere */
    assert_int_equal(pair_try_call(p, NULL, 0, &err), SKEP_UNAVAILABLE);
    assert_int_equal(open->done, 0);
    pair_reply(p, &p->served[0], SKEP_OK);
    pair_run(p);
    assert_int_equal(open->status, SKEP_OK);
    assert_false(p->a.ended || p->b.ended);
    pair_free(p);
}

static void used_up_stream_numbers_end_in_a_new_connection(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);
    struct skep_error err;

    (void)state;
    p->a.session->next_stream = UINT32_MAX - 1;
    struct call_log *last = pair_call(p, NULL, 0);
    assert_int_equal(p->a.goaways, 1); /* as if the peer drained: its owner dials anew */
    assert_int_equal(pair_try_call(p, NULL, 0, &err), SKEP_UNAVAILABLE);
    pair_run(p);
    assert_int_equal(last->status, SKEP_OK);
    pair_free(p);
}

/* ---- Time ---- */

static void silent_dialler_is_dropped_in_time(void **state)
{
    struct pair *p = pair_prepare();

    (void)state;
    pair_open(p);
    p->a.mute = true;
    pair_wait(p, (uint64_t)p->limits.handshake_timeout_ms * 1000 - 1);
    assert_false(p->a.ended || p->b.ended);
    pair_wait(p, 1);
    assert_true(p->a.ended && p->b.ended);
    assert_int_equal(p->a.end.status, SKEP_DEADLINE_EXCEEDED);
    assert_int_equal(wire_len(&p->b.wire), 0);
    pair_free(p);
}

static void idle_connection_is_closed_by_the_responder_only(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);

    (void)state;
    pair_wait(p, (uint64_t)p->limits.idle_timeout_ms * 1000 - 1);
    assert_false(p->b.ended);
    pair_wait(p, 1);
    assert_true(p->b.ended);
    assert_contains(p->b.end.message, "idle");
    assert_true(p->a.ended); /* it was told */
    assert_int_equal(p->a.end.status, SKEP_UNAVAILABLE);
    pair_free(p);
}

/* A call that takes its time: PINGs show that the peer lives, so neither end gives up. */
static void long_call_is_kept_alive_by_pings(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);

    (void)state;
    p->hold = true;
    struct call_log *call = pair_call(p, NULL, 0);
    pair_run(p);
    pair_wait(p, UINT64_C(3600) * 1000000);
    assert_false(p->a.ended || p->b.ended);
    pair_reply(p, &p->served[0], SKEP_OK);
    pair_run(p);
    assert_int_equal(call->status, SKEP_OK);
    pair_free(p);
}

static void dead_peer_is_noticed_by_its_silence(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);

    (void)state;
    p->hold = true;
    pair_call(p, NULL, 0);
    pair_run(p);
    p->b.deaf = true;
    pair_wait(p, (uint64_t)(p->limits.ping_period_ms + p->limits.stall_timeout_ms) * 1000 + 1000);
    assert_true(p->a.ended);
    assert_contains(p->a.end.message, "PING");
    pair_free(p);
}

enum { SILENCE_MS = 3000 };

/* A call whose caller must be alive, and is: whoever asks, each PING is answered. */
static void watched_peer_that_answers_stays(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);

    (void)state;
    p->hold = true;
    struct call_log *call = pair_call(p, NULL, 0);
    pair_run(p);
    session_watch(p->b.session, p->served[0].stream, SILENCE_MS);
    pair_wait(p, UINT64_C(600) * 1000000);
    assert_false(p->a.ended || p->b.ended);
    pair_reply(p, &p->served[0], SKEP_OK);
    pair_run(p);
    assert_int_equal(call->status, SKEP_OK);
    pair_free(p);
}

static void watched_peer_that_is_silent_is_noticed_in_time(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);

    (void)state;
    p->hold = true;
    pair_call(p, NULL, 0);
    pair_run(p);
    session_watch(p->b.session, p->served[0].stream, SILENCE_MS);
    p->a.deaf = true;
    pair_wait(p, SILENCE_MS * UINT64_C(1000) - 1000);
    assert_false(p->b.ended);
    assert_int_equal(p->served[0].gone, 0);
    pair_wait(p, 2000);
    assert_true(p->b.ended);
    assert_int_equal(p->b.end.status, SKEP_DEADLINE_EXCEEDED);
    assert_contains(p->b.end.message, "silent");
    pair_free(p);
}

/* Once the call is over, the peer may be as silent as any. */
static void watching_ends_with_the_call(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);

    (void)state;
    p->hold = true;
    struct call_log *watched = pair_call(p, NULL, 0);
    pair_call(p, NULL, 0);
    pair_run(p);
    session_watch(p->b.session, p->served[0].stream, SILENCE_MS);
    pair_reply(p, &p->served[0], SKEP_OK);
    pair_run(p);
    assert_int_equal(watched->status, SKEP_OK);
    p->a.deaf = true;
    pair_wait(p, 5 * SILENCE_MS * UINT64_C(1000));
    assert_false(p->b.ended);
    pair_free(p);
}

static void half_a_request_stalls(void **state)
{
    struct pair *p = pair_opened(NOISE_CHACHAPOLY, false);
    DLManagedTensor *x = make_bytes(1000000, 5);

    (void)state;
    pair_call(p, &x, 1);
    pair_speak(p, &p->a);
    p->a.mute = true;
    pair_run(p);
    pair_wait(p, (uint64_t)p->limits.stall_timeout_ms * 1000 - 1);
    assert_false(p->b.ended);
    pair_wait(p, 1);
    assert_true(p->b.ended);
    assert_contains(p->b.end.message, "half received");
    assert_int_equal(p->served[0].gone, 0); /* told when it is freed */
    skep_tensor_free(x);
    pair_free(p);
}

/* ---- Limits ---- */

static void splits(DLManagedTensor **tensors, size_t count, int64_t total)
{
    for (size_t i = 0; i < count; i++)
        tensors[i] =
            make_bytes(i + 1 < count ? total / (int64_t)count
                                     : total - total / (int64_t)count * (int64_t)(count - 1),
                       i + 1);
}

static void message_limit_is_exact_at_sender_and_receiver(void **state)
{
    struct session_limits small = session_default_limits;

    (void)state;
    small.message.max_message_bytes = 100000;
    for (size_t count = 1; count <= 8; count += 7)
        for (int64_t total = 99999; total <= 100001; total++) {
            DLManagedTensor *tensors[8];
            struct skep_error err;
            bool fits = total <= 100000;

            splits(tensors, count, total);
            struct pair *p = opened_with(small, false);
            skep_status rc = pair_try_call(p, tensors, count, &err);
            assert_int_equal(rc, fits ? SKEP_OK : SKEP_INVALID_ARGUMENT);
            if (!fits)
                assert_contains(err.message, "100000");
            pair_run(p);
            assert_int_equal(p->done_count, fits);
            pair_free(p);

            p = pair_prepare(); /* only the receiver has the limit: it answers with it */
            p->cb.limits = &small;
            pair_open(p);
            struct call_log *call = pair_call(p, tensors, count);
            pair_run(p);
            assert_int_equal(call->status, fits ? SKEP_OK : SKEP_INVALID_ARGUMENT);
            if (!fits)
                assert_contains(call->message, "100000");
            assert_false(p->a.ended || p->b.ended);
            pair_free(p);
            for (size_t i = 0; i < count; i++)
                skep_tensor_free(tensors[i]);
        }
}

static void reply_over_the_limit_becomes_an_internal_error(void **state)
{
    struct session_limits small = session_default_limits;

    (void)state;
    small.message.max_message_bytes = 1000;
    struct pair *p = opened_with(small, false);
    p->hold = true;
    struct call_log *call = pair_call(p, NULL, 0);
    pair_run(p);
    p->served[0].tensors[0] = make_bytes(1001, 1);
    p->served[0].tensor_count = 1;
    pair_reply(p, &p->served[0], SKEP_OK);
    pair_run(p);
    assert_int_equal(call->status, SKEP_INTERNAL);
    assert_contains(call->message, "max_message_bytes");
    pair_free(p);
}

static void too_many_tensors_or_dimensions_are_refused_before_sending(void **state)
{
    struct session_limits small = session_default_limits;
    DLManagedTensor *x = make_tensor(DTYPE_F32, 3, (int64_t[]){1, 1, 1}, 3);
    DLManagedTensor *many[] = {x, x, x};
    struct skep_error err;

    (void)state;
    small.message.max_tensors = 2;
    struct pair *p = opened_with(small, false);
    assert_int_equal(pair_try_call(p, many, 3, &err), SKEP_INVALID_ARGUMENT);
    assert_int_equal(pair_try_call(p, many, 2, &err), SKEP_OK);
    pair_run(p);
    pair_free(p);
    small.message.max_dims = 2;
    p = opened_with(small, false);
    assert_int_equal(pair_try_call(p, many, 1, &err), SKEP_INVALID_ARGUMENT);
    assert_int_equal(session_open_streams(p->a.session), 0);
    pair_run(p);
    pair_free(p);
    skep_tensor_free(x);
}

static void open_calls_are_bounded(void **state)
{
    struct session_limits small = session_default_limits;
    struct skep_error err;

    (void)state;
    small.max_streams = 3;
    struct pair *p = pair_prepare();
    p->cb.limits = &small; /* the initiator learns of it */
    p->hold = true;
    pair_open(p);
    for (int i = 0; i < 5; i++) /* opened before it is known: the last two are refused */
        pair_call(p, NULL, 0);
    pair_run(p);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(p->calls[i].done, i >= 3);
        if (i >= 3)
            assert_int_equal(p->calls[i].status, SKEP_RESOURCE_EXHAUSTED);
    }
    assert_int_equal(pair_try_call(p, NULL, 0, &err), SKEP_RESOURCE_EXHAUSTED);
    pair_reply(p, &p->served[1], SKEP_OK);
    pair_run(p);
    assert_int_equal(pair_try_call(p, NULL, 0, &err), SKEP_OK);
    pair_run(p);
    assert_false(p->b.ended);
    pair_free(p);
}

/* ---- Peers that misbehave, in plaintext so that the test can speak for them ---- */

/* A responder whose initiator is the test. */
static struct pair *with_fake_initiator(struct session_limits limits)
{
    struct pair *p = opened_with(limits, true);

    session_free(p->a.session, NULL);
    p->a.session = NULL;
    return p;
}

static void put_call(struct pair *p, uint32_t stream, int64_t bytes)
{
    struct call_headers h = {.method = "forward", .uid = "f.1"};
    struct bytes head = {0};

    if (bytes > 0) {
        h.tensor_count = 1;
        h.tensors[0] = (struct tensor_descriptor){.dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
                                                  .ndim = 1,
                                                  .shape = {bytes},
                                                  .wire_bytes = (uint64_t)bytes};
    }
    assert_int_equal(call_headers_encode(&h, &head, NULL), SKEP_OK);
    append_frame(&p->a.wire, FRAME_HEADERS, stream, head.data, head.len);
    bytes_free(&head);
}

static void put_data(struct pair *p, uint32_t stream, size_t len)
{
    static const uint8_t zeros[FRAME_MAX_PAYLOAD];

    append_frame(&p->a.wire, FRAME_DATA, stream, zeros, len);
}

static void put_end(struct pair *p, uint32_t stream)
{
    append_frame(&p->a.wire, FRAME_END, stream, NULL, 0);
}

/* Delivers; the connection must have ended for this reason, telling the peer so. */
static void expect_end(struct pair *p, skep_status status, const char *why)
{
    struct goaway goaway;
    struct frame_header f = {0};

    pair_run(p);
    assert_true(p->b.ended);
    assert_int_equal(p->b.end.status, status);
    assert_contains(p->b.end.message, why);
    const uint8_t *at = p->b.wire.memory + p->b.wire.at;
    while (at < p->b.wire.memory + p->b.wire.end) { /* GOAWAY is its last word */
        assert_int_equal(frame_header_decode(&f, at, NULL), SKEP_OK);
        at += FRAME_HEADER_BYTES + f.length;
    }
    assert_int_equal(f.type, FRAME_GOAWAY);
    assert_true(goaway_decode(&goaway, at - f.length, f.length));
    assert_int_equal(goaway.status, status);
    assert_contains(goaway.text, why);
    pair_free(p);
}

static struct pair *fake(void)
{
    return with_fake_initiator(session_default_limits);
}

static void bad_frames_end_the_connection_with_a_reason(void **state)
{
    const uint8_t huge[] = {0xff, 0xff, 0xff, 0x7f, FRAME_DATA, 1, 0, 0, 0};
    const uint8_t zero[4] = {0}, most[4] = {0xff, 0xff, 0xff, 0xff};
    struct pair *p = fake();

    (void)state;
    append_frame(&p->a.wire, 77, 0, NULL, 0);
    expect_end(p, SKEP_DATA_LOSS, "unknown type 77");
    p = fake();
    wire_add(&p->a.wire, huge, sizeof(huge));
    expect_end(p, SKEP_DATA_LOSS, "2147483647 bytes, expected 1 to 65000");
    p = fake();
    put_call(p, 0, 0);
    expect_end(p, SKEP_DATA_LOSS, "HEADERS on stream 0");
    p = fake();
    append_frame(&p->a.wire, FRAME_PING, 3, "12345678", 8);
    expect_end(p, SKEP_DATA_LOSS, "PING on stream 3");
    p = fake();
    append_frame(&p->a.wire, FRAME_READY, 0, NULL, 0);
    expect_end(p, SKEP_DATA_LOSS, "READY");
    p = fake();
    put_data(p, 9, 10);
    expect_end(p, SKEP_DATA_LOSS, "never opened");
    p = fake();
    put_end(p, 9);
    expect_end(p, SKEP_DATA_LOSS, "never opened");
    p = fake();
    append_frame(&p->a.wire, FRAME_WINDOW, 0, zero, 4);
    expect_end(p, SKEP_DATA_LOSS, "WINDOW of 0");
    p = fake();
    append_frame(&p->a.wire, FRAME_WINDOW, 0, most, 4);
    expect_end(p, SKEP_DATA_LOSS, "WINDOW of 4294967295");
    p = fake();
    append_frame(&p->a.wire, FRAME_GOAWAY, 0, most, 0);
    expect_end(p, SKEP_DATA_LOSS, "GOAWAY of 0 bytes");
}

static void bad_order_of_frames_ends_the_connection(void **state)
{
    struct pair *p = fake();

    (void)state;
    put_call(p, 5, 0);
    put_call(p, 5, 0);
    expect_end(p, SKEP_DATA_LOSS, "expected one above 5");
    p = fake();
    put_call(p, 5, 0);
    put_call(p, 4, 0);
    expect_end(p, SKEP_DATA_LOSS, "HEADERS on stream 4");
    p = fake();
    put_call(p, 1, 100);
    put_data(p, 1, 101);
    expect_end(p, SKEP_DATA_LOSS, "expected at most 100");
    p = fake();
    put_call(p, 1, 100);
    put_data(p, 1, 99);
    put_end(p, 1);
    expect_end(p, SKEP_DATA_LOSS, "bytes are missing");
    p = fake();
    p->hold = true;
    put_call(p, 1, 100);
    put_data(p, 1, 100);
    put_end(p, 1);
    put_end(p, 1);
    expect_end(p, SKEP_DATA_LOSS, "END on stream 1");
    p = fake();
    p->hold = true;
    put_call(p, 1, 0);
    put_end(p, 1);
    put_data(p, 1, 1);
    expect_end(p, SKEP_DATA_LOSS, "DATA of 1 bytes on stream 1");
}

static void overrun_window_ends_the_connection(void **state)
{
    struct session_limits limits = session_default_limits;

    (void)state;
    limits.stream_window = 10000;
    struct pair *p = with_fake_initiator(limits);
    p->b.mute = true; /* its credit does not leave, so the peer cannot know of any */
    put_call(p, 1, 100000);
    put_data(p, 1, 10000);
    pair_run(p);
    assert_false(p->b.ended);
    p->b.mute = false;
    put_data(p, 1, 20000); /* more than was credited */
    expect_end(p, SKEP_DATA_LOSS, "its window is");

    limits = session_default_limits;
    limits.connection_window = 10000;
    p = with_fake_initiator(limits);
    put_call(p, 1, 100000);
    put_data(p, 1, 10001);
    expect_end(p, SKEP_DATA_LOSS, "connection's window is 10000");
}

static void more_calls_than_allowed_end_the_connection(void **state)
{
    struct session_limits limits = session_default_limits;

    (void)state;
    limits.max_streams = 2;
    struct pair *p = with_fake_initiator(limits);
    for (uint32_t id = 1; id <= 3; id++)
        put_call(p, id, 10);
    expect_end(p, SKEP_RESOURCE_EXHAUSTED, "max_streams");
}

static void asking_without_reading_ends_the_connection(void **state)
{
    struct pair *p = fake();

    (void)state;
    p->b.mute = true;
    for (int i = 0; i < 20000; i++)
        append_frame(&p->a.wire, FRAME_PING, 0, "12345678", 8);
    pair_run(p);
    assert_true(p->b.ended);
    assert_int_equal(p->b.end.status, SKEP_RESOURCE_EXHAUSTED);
    assert_contains(p->b.end.message, "does not read");
    pair_free(p);
}

/* A hundred calls that announce a gigabyte each and send nothing: one is taken, none of its memory
 * is touched, the others are told to come later. */
static void announced_bytes_are_bounded(void **state)
{
    struct pair *p = fake();
    struct frame_header f;
    unsigned replies = 0;

    (void)state;
    for (uint32_t id = 1; id <= 100; id++)
        put_call(p, id, INT64_C(1) << 30);
    pair_run(p);
    assert_false(p->b.ended);
    assert_int_equal(p->served_count, 1);
    for (size_t at = p->b.wire.at; at < p->b.wire.end;) {
        assert_int_equal(frame_header_decode(&f, p->b.wire.memory + at, NULL), SKEP_OK);
        at += FRAME_HEADER_BYTES + f.length;
        replies += f.type == FRAME_HEADERS;
    }
    assert_int_equal(replies, 99);
    put_call(p, 101, (INT64_C(1) << 30) + 1);
    pair_run(p);
    assert_false(p->b.ended);
    pair_free(p);
}

/* HEADERS that make no sense cost their call, not the connection. */
static void bad_headers_are_answered(void **state)
{
    struct pair *p = fake();
    struct frame_header f;

    (void)state;
    append_frame(&p->a.wire, FRAME_HEADERS, 1, "\x80", 1); /* an empty map */
    put_data(p, 1, 500);
    put_end(p, 1);
    pair_run(p);
    assert_false(p->b.ended);
    assert_int_equal(frame_header_decode(&f, p->b.wire.memory + p->b.wire.at, NULL), SKEP_OK);
    assert_int_equal(f.type, FRAME_HEADERS);
    struct reply_headers reply;
    assert_int_equal(reply_headers_decode(&reply,
                                          p->b.wire.memory + p->b.wire.at + FRAME_HEADER_BYTES,
                                          f.length, &message_default_limits, NULL),
                     SKEP_OK);
    assert_int_equal(reply.status, SKEP_DATA_LOSS);
    assert_contains(reply.message, "method");
    put_call(p, 2, 0);
    put_end(p, 2);
    pair_run(p);
    assert_int_equal(p->served_count, 1);
    pair_free(p);
}

static void late_frames_of_an_ended_stream_are_dropped(void **state)
{
    struct pair *p = fake();
    const uint8_t status = SKEP_CANCELLED, credit[4] = {1};

    (void)state;
    put_call(p, 3, 1000);
    put_data(p, 3, 10);
    append_frame(&p->a.wire, FRAME_CANCEL, 3, &status, 1);
    put_data(p, 3, 500);
    put_end(p, 3);
    append_frame(&p->a.wire, FRAME_CANCEL, 3, &status, 1);
    append_frame(&p->a.wire, FRAME_WINDOW, 3, credit, 4);
    append_frame(&p->a.wire, FRAME_CANCEL, 2, &status, 1); /* passed over by 3: was never used */
    append_frame(&p->a.wire, 200, 12345, "later minors", 12);
    put_call(p, 4, 0);
    put_end(p, 4);
    pair_run(p);
    assert_false(p->b.ended);
    assert_int_equal(p->served_count, 2);
    assert_int_equal(p->served[0].gone, 1);
    assert_int_equal(p->served[1].answered, 1);
    pair_free(p);
}

/* An initiator whose responder is the test. */
static struct pair *with_fake_responder(void)
{
    struct pair *p = opened_with(session_default_limits, true);

    session_free(p->b.session, NULL);
    p->b.session = NULL;
    return p;
}

static void put_reply(struct pair *p, uint32_t stream)
{
    struct reply_headers h = {.status = SKEP_OK};
    struct bytes head = {0};

    assert_int_equal(reply_headers_encode(&h, &head, NULL), SKEP_OK);
    append_frame(&p->b.wire, FRAME_HEADERS, stream, head.data, head.len);
    bytes_free(&head);
}

static void responder_may_give_a_call_up(void **state)
{
    struct pair *p = with_fake_responder();
    const uint8_t status = SKEP_RESOURCE_EXHAUSTED;

    (void)state;
    struct call_log *call = pair_call(p, NULL, 0), *other = pair_call(p, NULL, 0);
    pair_run(p);
    append_frame(&p->b.wire, FRAME_CANCEL, 1, &status, 1);
    append_frame(&p->b.wire, FRAME_HEADERS, 2, "\xc0", 1); /* senseless: costs its call only */
    pair_run(p);
    assert_false(call->replied);
    assert_int_equal(call->status, SKEP_RESOURCE_EXHAUSTED);
    assert_int_equal(other->status, SKEP_DATA_LOSS);
    assert_false(p->a.ended);
    pair_free(p);
}

static void replies_nobody_asked_for_end_the_connection(void **state)
{
    struct pair *p = with_fake_responder();

    (void)state;
    put_reply(p, 1);
    pair_run(p);
    assert_contains(p->a.end.message, "never opened");
    pair_free(p);

    p = with_fake_responder();
    pair_call(p, NULL, 0);
    put_reply(p, 1); /* before the call was sent */
    pair_deliver(p, &p->b, &p->a);
    assert_contains(p->a.end.message, "expected none yet");
    pair_free(p);

    p = with_fake_responder();
    pair_call(p, NULL, 0);
    pair_run(p);
    put_reply(p, 1);
    put_reply(p, 1);
    pair_run(p);
    assert_contains(p->a.end.message, "expected none any more");
    pair_close(p, NULL);
    assert_int_equal(p->calls[0].status, SKEP_UNAVAILABLE);
    assert_contains(p->calls[0].message, "connection lost");
    pair_free(p);
}

/* ---- Chance ---- */

static void random_step(struct pair *p, uint64_t *seed, DLManagedTensor *const *tensors)
{
    struct skep_error err;
    uint64_t r = next_random(seed);
    struct serve_log *served = p->served_count > 0 ? &p->served[r / 64 % p->served_count] : NULL;
    struct call_log *call = p->call_count > 0 ? &p->calls[r / 64 % p->call_count] : NULL;

    switch (r % 12) {
    case 0:
    case 1:
        if (p->call_count < PAIR_MAX_CALLS && p->a.session != NULL)
            (void)!pair_try_call(p, tensors + r / 256 % 4, r / 4096 % 4, &err);
        break;
    case 2:
        if (call != NULL && call->stream != NULL && r / 16 % 4 == 0)
            session_cancel(p->a.session, call->stream, NULL);
        break;
    case 3:
        if (served != NULL && served->stream != NULL && served->complete && !p->b.ended &&
            served->tensor_count == served->headers->tensor_count && served->gone == 0 && p->hold) {
            pair_reply(p, served, SKEP_OK);
            served->complete = 0; /* only once */
        }
        break;
    case 4:
    case 5:
        if (!p->a.ended)
            pair_speak(p, &p->a);
        break;
    case 6:
    case 7:
        if (!p->b.ended)
            pair_speak(p, &p->b);
        break;
    case 8:
        p->now += r / 64 % 20000;
        break;
    default:
        p->piece = 1 + next_random(seed) % (r % 3 == 0 ? 100 : 100000);
        if (r % 2 == 0)
            pair_deliver(p, &p->a, &p->b);
        else
            pair_deliver(p, &p->b, &p->a);
    }
}

/* Calls, cancels and replies in any order over a connection that breaks anywhere: pair_free()
 * asserts that each call had exactly one end at both sides. */
static void every_call_ends_once_however_the_connection_breaks(void **state)
{
    uint64_t seed = (uint64_t)time(NULL) | 1;
    DLManagedTensor *tensors[8];

    (void)state;
    printf("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < 8; i++)
        tensors[i] = make_bytes((int64_t)(i * i * i * 400), i + 1);
    for (int round = 0; round < 300; round++) {
        struct pair *p = pair_prepare();
        p->limits.stream_window = 4096 + (uint32_t)(next_random(&seed) % 200000);
        p->limits.connection_window = 4096 + (uint32_t)(next_random(&seed) % 400000);
        p->limits.max_streams = 1 + (uint32_t)(next_random(&seed) % 40);
        p->ca.plaintext = p->cb.plaintext = round % 2 == 0;
        p->hold = round % 3 == 0;
        p->cut_after = round % 4 == 0 ? UINT64_MAX : next_random(&seed) % 600000;
        pair_open(p);
        for (int step = 0; step < 400; step++)
            random_step(p, &seed, tensors);
        if (round % 5 == 0) {
            p->piece = SIZE_MAX;
            pair_run(p);
        }
        assert_false(p->a.ended || p->b.ended); /* nobody broke a rule */
        pair_free(p);
    }
    for (size_t i = 0; i < 8; i++)
        skep_tensor_free(tensors[i]);
}

static void put_random_frame(struct pair *p, uint64_t *seed, uint32_t *id)
{
    static uint8_t junk[FRAME_MAX_PAYLOAD];
    static const uint16_t lengths[] = {0, 1, 4, 8, 9, 100, 5000};
    uint64_t r = next_random(seed);

    if (r % 4 == 0) {
        put_call(p, ++*id, (int64_t)(r / 16 % 10000));
        return;
    }
    for (int i = 0; i < 64; i++)
        junk[i] = (uint8_t)next_random(seed);
    append_frame(&p->a.wire, (uint8_t)(r / 16 % 12), r % 3 == 0 ? 0 : *id, junk,
                 lengths[r / 1024 % 7]);
}

static void a_thousand_rounds_of_nonsense_harm_nobody(void **state)
{
    uint64_t seed = (uint64_t)time(NULL) | 1;

    (void)state;
    printf("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 1000; round++) {
        struct pair *p = fake();
        uint32_t id = 0;
        p->hold = round % 2 == 0;
        for (int i = 0; i < 40 && !p->b.ended; i++) {
            p->piece = 1 + next_random(&seed) % 3000;
            put_random_frame(p, &seed, &id);
            pair_run(p);
        }
        if (p->b.ended)
            assert_true(p->b.end.message[0] != '\0');
        pair_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_call_overtakes_a_large_one),
        cmocka_unit_test(small_calls_share_a_message),
        cmocka_unit_test(many_calls_at_once_all_come_back),
        cmocka_unit_test(windows_of_any_size_carry_a_large_call),
        cmocka_unit_test(slow_reader_is_refused_then_dropped),
        cmocka_unit_test(cancel_at_any_moment_frees_both_ends),
        cmocka_unit_test(cancel_gives_the_reason_asked_for),
        cmocka_unit_test(end_of_the_session_ends_every_call),
        cmocka_unit_test(goaway_lets_open_calls_finish_and_stops_new_ones),
        cmocka_unit_test(used_up_stream_numbers_end_in_a_new_connection),
        cmocka_unit_test(silent_dialler_is_dropped_in_time),
        cmocka_unit_test(idle_connection_is_closed_by_the_responder_only),
        cmocka_unit_test(long_call_is_kept_alive_by_pings),
        cmocka_unit_test(watched_peer_that_answers_stays),
        cmocka_unit_test(watched_peer_that_is_silent_is_noticed_in_time),
        cmocka_unit_test(watching_ends_with_the_call),
        cmocka_unit_test(dead_peer_is_noticed_by_its_silence),
        cmocka_unit_test(half_a_request_stalls),
        cmocka_unit_test(message_limit_is_exact_at_sender_and_receiver),
        cmocka_unit_test(reply_over_the_limit_becomes_an_internal_error),
        cmocka_unit_test(too_many_tensors_or_dimensions_are_refused_before_sending),
        cmocka_unit_test(open_calls_are_bounded),
        cmocka_unit_test(bad_frames_end_the_connection_with_a_reason),
        cmocka_unit_test(bad_order_of_frames_ends_the_connection),
        cmocka_unit_test(overrun_window_ends_the_connection),
        cmocka_unit_test(more_calls_than_allowed_end_the_connection),
        cmocka_unit_test(asking_without_reading_ends_the_connection),
        cmocka_unit_test(announced_bytes_are_bounded),
        cmocka_unit_test(bad_headers_are_answered),
        cmocka_unit_test(late_frames_of_an_ended_stream_are_dropped),
        cmocka_unit_test(responder_may_give_a_call_up),
        cmocka_unit_test(replies_nobody_asked_for_end_the_connection),
        cmocka_unit_test(every_call_ends_once_however_the_connection_breaks),
        cmocka_unit_test(a_thousand_rounds_of_nonsense_harm_nobody),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
