/*
 * What a session costs without sockets: two of them in memory, in processor time, against the bare
 * cipher over the same bytes. Not a test; prints a table.
 *
 *     bench_session [seconds per case]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/tensor.h"
#include "net/session.h"

enum { WIRE_BYTES = 256 * 1024, MAX_IN_FLIGHT = 64 };

struct bench {
    struct session *initiator, *responder;
    struct call_headers headers;
    DLManagedTensor *tensor;
    const DLTensor *tensors[1];
    uint64_t done;
    uint8_t *wire;
};

/* Processor time: other programs on the machine do not count. */
static uint64_t cpu_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void die(const char *what, const struct skep_error *err)
{
    fprintf(stderr, "%s: %s\n", what, err->message);
    exit(1);
}

static skep_status on_started(void *arg, struct session_stream *stream,
                              const struct call_headers *headers, void **user,
                              struct skep_error *err)
{
    (void)arg, (void)stream, (void)headers, (void)user, (void)err;
    return SKEP_OK;
}

/* Answers with what came. */
static void on_complete(void *arg, struct session_stream *stream,
                        const struct call_headers *headers, DLManagedTensor **tensors, void *user)
{
    struct bench *b = arg;
    struct reply_headers reply;

    (void)user;
    reply.status = SKEP_OK;
    reply.message[0] = '\0';
    reply.retry_after_ms = 0;
    reply.result = (struct bytes){0};
    reply.tensor_count = headers->tensor_count;
    reply.tensors[0] = headers->tensors[0];
    session_reply(b->responder, stream, &reply, tensors);
}

static void on_gone(void *arg, struct session_stream *stream, void *user)
{
    (void)arg, (void)stream, (void)user;
}

static void start_call(struct bench *b)
{
    struct session_stream *stream;
    struct skep_error err;

    if (session_call(b->initiator, &b->headers, b->tensors, NULL, &stream, &err) != SKEP_OK)
        die("call", &err);
}

static void on_done(void *arg, struct session_stream *stream, void *user,
                    const struct reply_headers *reply, DLManagedTensor **tensors, bool sent,
                    const struct skep_error *err)
{
    struct bench *b = arg;

    (void)stream, (void)user, (void)sent;
    if (reply == NULL || reply->status != SKEP_OK) {
        if (b->done != UINT64_MAX)
            die("reply", err);
        return;
    }
    skep_tensor_free(tensors[0]);
    b->done++;
    start_call(b);
}

/* Moves what one side has to say to the other. */
static void carry(struct bench *b, struct session *from, struct session *to)
{
    struct skep_error err;
    uint64_t now = clock_mono_us();
    size_t n = session_send(from, b->wire, WIRE_BYTES, now);

    for (size_t at = 0; at < n;) {
        uint8_t *data;
        size_t cap;
        session_receive_buffer(to, &data, &cap);
        size_t piece = n - at < cap ? n - at : cap;
        memcpy(data, b->wire + at, piece);
        if (session_received(to, piece, now, &err) != SKEP_OK)
            die("received", &err);
        at += piece;
    }
}

static void set_up(struct bench *b, const struct session_config *initiator,
                   const struct session_config *responder, int64_t floats)
{
    static const struct session_events events = {
        .call_started = on_started,
        .call_complete = on_complete,
        .call_gone = on_gone,
        .call_answered = on_gone,
        .call_done = on_done,
    };
    struct skep_error err;

    *b = (struct bench){.wire = mem_alloc(WIRE_BYTES)};
    if (skep_tensor_new(DTYPE_F32, 1, &floats, &b->tensor, &err) != SKEP_OK ||
        session_new(initiator, &events, b, clock_mono_us(), &b->initiator, &err) != SKEP_OK ||
        session_new(responder, &events, b, clock_mono_us(), &b->responder, &err) != SKEP_OK)
        die("set up", &err);
    memset(b->tensor->dl_tensor.data, 1, (size_t)floats * 4);
    b->tensors[0] = &b->tensor->dl_tensor;
    snprintf(b->headers.method, sizeof(b->headers.method), "%s", "forward");
    snprintf(b->headers.uid, sizeof(b->headers.uid), "%s", "ffn.3.7");
    b->headers.timeout_ms = 5000;
    b->headers.tensor_count = 1;
    if (tensor_descriptor_of(&b->headers.tensors[0], b->tensors[0], &err) != SKEP_OK)
        die("descriptor", &err);
}

static void run_case(const char *name, const struct session_config *initiator,
                     const struct session_config *responder, int64_t floats, int in_flight,
                     double seconds)
{
    struct bench b;
    uint64_t until = (uint64_t)(seconds * 1e6);

    set_up(&b, initiator, responder, floats);
    for (int i = 0; i < in_flight; i++)
        start_call(&b);
    while (b.done < 100 && b.done * (uint64_t)floats < 100u << 20) {
        carry(&b, b.initiator, b.responder);
        carry(&b, b.responder, b.initiator);
    }
    uint64_t done = b.done, begin = cpu_us(), now;
    do {
        carry(&b, b.initiator, b.responder);
        carry(&b, b.responder, b.initiator);
        now = cpu_us();
    } while (now - begin < until);
    double calls = (double)(b.done - done), us = (double)(now - begin);
    printf("%-34s %10.0f calls/s %8.2f us/call %8.2f GB/s each way\n", name, calls / us * 1e6,
           us / calls, calls * (double)floats * 4 / us / 1e3);
    b.done = UINT64_MAX;
    session_free(b.initiator, NULL);
    session_free(b.responder, NULL);
    skep_tensor_free(b.tensor);
    mem_free(b.wire);
}

/* Encrypting and decrypting a call's bytes there and back, nothing else. */
static void run_bare(enum noise_cipher cipher, size_t bytes, size_t message, double seconds)
{
    struct noise_channel out, in;
    uint8_t key[32] = {7};
    uint8_t *plain = mem_calloc(1, bytes), *sealed = mem_alloc(message + NOISE_TAG_BYTES);
    uint64_t begin = cpu_us(), now, calls = 0;

    noise_channel_init(&out, cipher, key);
    noise_channel_init(&in, cipher, key);
    do {
        for (int way = 0; way < 2; way++)
            for (size_t at = 0; at < bytes; at += message) {
                size_t n = bytes - at < message ? bytes - at : message;
                if (noise_channel_encrypt(&out, plain + at, n, sealed) != SKEP_OK ||
                    noise_channel_decrypt(&in, sealed, n + NOISE_TAG_BYTES, plain + at) != SKEP_OK)
                    abort();
            }
        calls++;
        now = cpu_us();
    } while (now - begin < (uint64_t)(seconds * 1e6));
    printf("bare %-10s %8zu bytes         %10.0f calls/s %8.2f us/call %8.2f GB/s each way\n",
           cipher == NOISE_AESGCM ? "AESGCM" : "ChaChaPoly", bytes,
           (double)calls / (double)(now - begin) * 1e6, (double)(now - begin) / (double)calls,
           (double)calls * (double)bytes / (double)(now - begin) / 1e3);
    noise_channel_wipe(&out);
    noise_channel_wipe(&in);
    mem_free(plain);
    mem_free(sealed);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    struct identity a, c;
    struct skep_error err;
    struct session_config initiator = {
        .initiator = true, .identity = &a, .swarm = "bench", .limits = &session_default_limits};
    struct session_config responder = {
        .identity = &c, .swarm = "bench", .limits = &session_default_limits};

    if (identity_system_init(&err) != SKEP_OK || identity_generate(&a, &err) != SKEP_OK ||
        identity_generate(&c, &err) != SKEP_OK)
        die("identity", &err);
    for (int mode = NOISE_CHACHAPOLY; mode <= NOISE_AESGCM + 1; mode++) {
        static const char *const names[] = {"", "ChaChaPoly", "AESGCM", "plaintext"};
        char name[64];

        if (mode <= NOISE_AESGCM) {
            if (!noise_cipher_available((enum noise_cipher)mode))
                continue;
            run_bare((enum noise_cipher)mode, 4096, 4096, seconds);
            run_bare((enum noise_cipher)mode, 8 << 20, 64960, seconds);
        }
        initiator.cipher = mode <= NOISE_AESGCM ? (enum noise_cipher)mode : NOISE_CHACHAPOLY;
        initiator.plaintext = responder.plaintext = mode > NOISE_AESGCM;
        snprintf(name, sizeof(name), "%s, 4 KB, 1 in flight", names[mode]);
        run_case(name, &initiator, &responder, 1024, 1, seconds);
        snprintf(name, sizeof(name), "%s, 4 KB, 64 in flight", names[mode]);
        run_case(name, &initiator, &responder, 1024, MAX_IN_FLIGHT, seconds);
        snprintf(name, sizeof(name), "%s, 8 MB, 1 in flight", names[mode]);
        run_case(name, &initiator, &responder, 2 << 20, 1, seconds);
    }
    return 0;
}
