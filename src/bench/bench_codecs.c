/*
 * skep bench codecs: how fast one core encodes and decodes tensors, against copying them.
 *
 * Figures are of the bytes of the F32 tensor, whichever side of the codec they are on, over the
 * processor time of the one thread that works: other work on the machine does not slow them.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/tensor.h"
#include "bench/bench.h"
#include "bench/bench_frame.h"
#include "wire/codec_kernels.h"
#include "wire/tensor_codec.h"

enum {
    RUN_MS = 100, /* at least so long for a figure */
    COLUMNS = 1024,
    DIRECTIONS = 2,
};

static const struct option_spec specs[] = {
    BENCH_OPTION_RUNS(BENCH_MAX_RUNS, "5",
                      "measured runs of each case, baselines in between; medians are shown"),
    {.name = "rows",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1 << 20,
     .default_text = "1024",
     .help = "of 1024 F32 numbers each, in the tensor"},
    BENCH_OPTION_JSON,
};

static const struct option_table table = {
    .command = "bench codecs",
    .summary = "Measures tensor compression: bytes of F32 tensor a second of one core, encoding "
               "and decoding, for each scheme, with memcpy of the same bytes as baseline.",
    .example = "skep bench codecs\nskep bench codecs --rows 64 --json",
    .specs = specs,
    .count = OPTION_COUNT(specs),
};

struct bench {
    struct bench_frame *frame;
    DLManagedTensor *input, *copy; /* owned */
    size_t bytes;
};

/* What is measured: encoding a tensor, decoding it, or (ENCODING_NONE) copying it. */
struct work {
    const struct bench *b;
    enum tensor_encoding encoding;
    bool decode;
    struct tensor_descriptor descriptor;
    DLManagedTensor *encoded; /* owned; of decode */
};

static uint64_t thread_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static skep_status work_once(struct work *w, struct skep_error *err)
{
    const DLTensor *input = &w->b->input->dl_tensor;
    enum tensor_encoded how;
    DLManagedTensor *out = NULL;
    skep_status rc = SKEP_OK;

    if (w->encoding == ENCODING_NONE)
        memcpy(w->b->copy->dl_tensor.data, input->data, w->b->bytes);
    else if (w->decode)
        rc = tensor_decode(&w->descriptor, &w->encoded->dl_tensor, &out, err);
    else
        rc = tensor_encode(input, w->encoding, &w->descriptor, &how, &out, err);
    skep_tensor_free(out);
    return rc;
}

/* GB/s. */
static skep_status work_for_a_while(struct work *w, double *out, struct skep_error *err)
{
    uint64_t start = thread_ns();
    uint64_t spent;
    size_t rounds = 0;
    skep_status rc;

    do {
        rc = work_once(w, err);
        rounds++;
        spent = thread_ns() - start;
    } while (rc == SKEP_OK && spent < (uint64_t)RUN_MS * 1000000);
    *out = (double)w->b->bytes * (double)rounds / (double)spent;
    return rc;
}

static skep_status turn(void *arg, double *value, double *baseline, struct skep_error *err)
{
    struct work *w = arg, copying = {.b = w->b};
    skep_status rc = work_for_a_while(&copying, baseline, err);

    return rc == SKEP_OK ? work_for_a_while(w, value, err) : rc;
}

static skep_status measure(struct work *w, struct skep_error *err)
{
    char name[BENCH_CASE_BYTES];
    const struct bench_case what = {name, "GB/s", tensor_encoding_name(w->encoding)};
    skep_status rc = work_once(w, err); /* memory and caches are warm then */

    snprintf(name, sizeof(name), "%s %s; memcpy", tensor_encoding_name(w->encoding),
             w->decode ? "decode" : "encode");
    return rc == SKEP_OK ? bench_frame_turns(w->b->frame, &what, turn, w, err) : rc;
}

static skep_status measure_encoding(struct bench *b, enum tensor_encoding encoding,
                                    struct skep_error *err)
{
    struct work w = {.b = b, .encoding = encoding};
    enum tensor_encoded how;
    skep_status rc = measure(&w, err);

    if (rc == SKEP_OK)
        rc = tensor_encode(&b->input->dl_tensor, encoding, &w.descriptor, &how, &w.encoded, err);
    if (rc == SKEP_OK) {
        w.decode = true;
        rc = measure(&w, err);
    }
    skep_tensor_free(w.encoded);
    return rc;
}

/* Normal numbers, always the same: activations look like that. */
static void fill(float *x, size_t n)
{
    uint64_t state = 0x9e3779b97f4a7c15;

    for (size_t i = 0; i < n; i++) {
        double sum = -6.0; /* of twelve numbers in [0, 1): variance 1 */
        for (int k = 0; k < 12; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += (double)(state >> 40) * 0x1p-24;
        }
        x[i] = (float)sum;
    }
}

static skep_status measure_all(struct bench *b, int64_t rows, struct skep_error *err)
{
    int64_t shape[2] = {rows, COLUMNS};
    skep_status rc = skep_tensor_new(DTYPE_F32, 2, shape, &b->input, err);

    if (rc == SKEP_OK)
        rc = skep_tensor_new(DTYPE_F32, 2, shape, &b->copy, err);
    if (rc != SKEP_OK)
        return rc;
    b->bytes = (size_t)rows * COLUMNS * sizeof(float);
    fill(b->input->dl_tensor.data, (size_t)rows * COLUMNS);
    memset(b->copy->dl_tensor.data, 0, b->bytes);
    for (int e = ENCODING_NONE + 1; e < ENCODING_COUNT && rc == SKEP_OK; e++)
        rc = measure_encoding(b, (enum tensor_encoding)e, err);
    return rc;
}

static skep_status measure_codecs(struct bench_frame *frame, const struct options *o,
                                  struct skep_error *err)
{
    struct bench b = {.frame = frame};

    frame->note = codec_kernels()->name;
    bench_frame_expect(frame, (ENCODING_COUNT - 1) * DIRECTIONS * frame->runs);
    skep_status rc = measure_all(&b, options_int(o, "rows"), err);
    skep_tensor_free(b.input);
    skep_tensor_free(b.copy);
    return rc;
}

const struct bench_command bench_codecs = {.options = &table, .measure = measure_codecs};
