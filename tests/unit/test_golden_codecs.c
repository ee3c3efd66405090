/*
 * Tensor codecs against the golden files: each file of $SKEP_GOLDEN_DIR/codecs is one test, run
 * with the loops of every instruction set that this CPU has. Rules and tolerances:
 * tests/golden/README.md, section 6.
 */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <skep/safetensors.h>

#include "base/alloc.h"
#include "base/tensor.h"
#include "golden_dir.h"
#include "unit.h"
#include "wire/codec_kernels.h"
#include "wire/codec_schemes.h"
#include "wire/tensor_codec.h"

enum { MAX_FILES = 512 };

/* A scheme of the files; where its parts go in our encoded bytes, in order. */
struct golden_scheme {
    const char *name;
    enum tensor_encoding encoding;
    const char *parts[4];
};

static const struct golden_scheme golden_schemes[] = {
    {"float16", ENCODING_FLOAT16, {"encoded"}},
    {"bfloat16", ENCODING_BFLOAT16, {"encoded"}},
    {"meanstd16", ENCODING_MEANSTD16, {"mean", "std", "encoded"}},
    {"uniform8_pm3", ENCODING_UNIFORM8, {"codebook", "encoded"}},
    {"quantile8", ENCODING_QUANTILE8, {"codebook", "encoded"}},
    {"blockwise8", ENCODING_BLOCKWISE8, {"absmax", "encoded"}},
};

struct golden {
    struct skep_safetensors *file;
    const struct golden_scheme *scheme;
    struct codec_array array;
    const float *input;
    float *decoded; /* owned */
    uint8_t *bytes; /* owned; as many as the scheme has */
    uint64_t byte_count;
};

static const DLTensor *part_of(const struct golden *g, const char *part)
{
    char name[96];

    snprintf(name, sizeof(name), "%s.%s", part, g->scheme->name);
    return skep_safetensors_find(g->file, name);
}

static double number_of(const struct golden *g, const char *key)
{
    char full[96];

    snprintf(full, sizeof(full), "%s.%s", g->scheme->name, key);
    const char *text = skep_safetensors_metadata(g->file, full);
    assert_non_null(text);
    return strtod(text, NULL);
}

static void check_values(const struct golden *g, size_t i, double got, double want, double bound)
{
    if (!(fabs(got - want) <= bound) && !(isnan(got) && isnan(want)) && got != want)
        fail_msg("%s, %s [%zu]: %.9g, expected %.9g, off by %.3g, allowed %.3g", g->scheme->name,
                 codec_kernels()->name, i, got, want, fabs(got - want), bound);
}

/* ---- encoding ---- */

static void check_exact_codes(const struct golden *g)
{
    const uint16_t *want = skep_tensor_data(part_of(g, "encoded"));
    const uint16_t *got = (const uint16_t *)(const void *)g->bytes;

    for (size_t i = 0; i < g->array.count; i++)
        if (got[i] != want[i] && !isnan(g->input[i]))
            fail_msg("%s, %s: %a is %04x, expected %04x", g->scheme->name, codec_kernels()->name,
                     (double)g->input[i], got[i], want[i]);
}

static void check_errors(const struct golden *g)
{
    double max = 0.0, sum = 0.0, largest = 0.0;

    for (size_t i = 0; i < g->array.count; i++) {
        double error = fabs((double)g->decoded[i] - (double)g->input[i]);
        assert_true(isfinite(error));
        max = fmax(max, error);
        sum += error;
        largest = fmax(largest, fabs((double)g->input[i]));
    }
    double mean = g->array.count > 0 ? sum / (double)g->array.count : 0.0;
    double room = largest * 0x1p-23;
    if (!(max <= 1.01 * number_of(g, "max_abs_err") + room))
        fail_msg("%s, %s: largest error %.9g, golden %.9g", g->scheme->name, codec_kernels()->name,
                 max, number_of(g, "max_abs_err"));
    if (!(mean <= 1.01 * number_of(g, "mean_abs_err") + room))
        fail_msg("%s, %s: mean error %.9g, golden %.9g", g->scheme->name, codec_kernels()->name,
                 mean, number_of(g, "mean_abs_err"));
}

static void check_block_errors(const struct golden *g)
{
    for (size_t first = 0; first < g->array.count; first += CODEC_BLOCK) {
        size_t last = first + CODEC_BLOCK < g->array.count ? first + CODEC_BLOCK : g->array.count;
        double largest = 0.0;
        for (size_t i = first; i < last; i++)
            largest = fmax(largest, fabs((double)g->input[i]));
        for (size_t i = first; i < last; i++)
            check_values(g, i, (double)g->decoded[i], (double)g->input[i],
                         largest / 254 * (1 + 0x1p-20) + 0x1p-149);
    }
}

static void check_encoding(const struct golden *g)
{
    if (g->array.count > 0) {
        assert_int_equal(codec_encoder(g->scheme->encoding)(&g->array, g->input, g->bytes),
                         CODEC_DONE);
        codec_decoder(g->scheme->encoding)(&g->array, g->bytes, g->decoded);
    }
    if (g->scheme->encoding == ENCODING_FLOAT16 || g->scheme->encoding == ENCODING_BFLOAT16)
        check_exact_codes(g);
    else
        check_errors(g);
    if (g->scheme->encoding == ENCODING_BLOCKWISE8)
        check_block_errors(g);
}

/* ---- decoding what is given ---- */

static void join_parts(const struct golden *g)
{
    size_t at = 0;

    for (const char *const *part = g->scheme->parts; *part != NULL; part++) {
        const DLTensor *t = part_of(g, *part);
        size_t bytes;
        assert_int_equal(skep_tensor_bytes(t, &bytes, NULL), SKEP_OK);
        assert_true(bytes <= g->byte_count - at);
        memcpy(g->bytes + at, skep_tensor_data(t), bytes);
        at += bytes;
    }
    assert_int_equal(at, g->byte_count);
}

static double bound_of(const struct golden *g, size_t i, double want)
{
    if (g->scheme->encoding == ENCODING_MEANSTD16) {
        const float *mean = skep_tensor_data(part_of(g, "mean"));
        size_t row = i / g->array.columns;
        return 0x1p-22 * (fabs(want - (double)mean[row]) + fabs((double)mean[row]));
    }
    /* Two units in the last place. */
    return g->scheme->encoding == ENCODING_BLOCKWISE8 ? fabs(want) * 0x1p-22 + 0x1p-149 : 0.0;
}

static void check_decoding(const struct golden *g)
{
    const float *want = skep_tensor_data(part_of(g, "decoded"));

    if (g->array.count == 0)
        return;
    join_parts(g);
    codec_decoder(g->scheme->encoding)(&g->array, g->bytes, g->decoded);
    for (size_t i = 0; i < g->array.count; i++)
        check_values(g, i, (double)g->decoded[i], (double)want[i], bound_of(g, i, (double)want[i]));
}

/* ---- walking ---- */

static void check_scheme(struct skep_safetensors *file, const struct golden_scheme *scheme)
{
    struct golden g = {.file = file, .scheme = scheme};
    const DLTensor *input = skep_safetensors_find(file, "input");

    assert_non_null(input);
    assert_true(codec_measure(input->ndim, input->shape, &g.array));
    assert_true(codec_bytes(scheme->encoding, &g.array, &g.byte_count));
    g.input = skep_tensor_data(input);
    g.decoded = mem_alloc(g.array.count * sizeof(float) + 1);
    g.bytes = mem_alloc(g.byte_count + 1);
    assert_non_null(g.decoded);
    assert_non_null(g.bytes);
    check_encoding(&g);
    check_decoding(&g);
    mem_free(g.decoded);
    mem_free(g.bytes);
}

/* Whether it is in the file's list. */
static bool lists(const char *list, const char *name)
{
    size_t len = strlen(name);

    for (const char *at = list; (at = strstr(at, name)) != NULL; at += len)
        if ((at == list || at[-1] == ',') && (at[len] == ',' || at[len] == '\0'))
            return true;
    return false;
}

static void golden_codec_file(void **state)
{
    const struct codec_kernels *all[CODEC_KERNEL_SETS];
    size_t sets = codec_kernels_all(all);
    struct skep_safetensors *file = NULL;
    struct skep_error err;
    size_t seen = 0;

    if (skep_safetensors_open(*state, &file, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    const char *list = skep_safetensors_metadata(file, "schemes");
    assert_non_null(list);
    for (size_t k = 0; k < sets; k++) {
        codec_kernels_force(all[k]);
        for (size_t i = 0; i < sizeof(golden_schemes) / sizeof(golden_schemes[0]); i++)
            if (lists(list, golden_schemes[i].name)) {
                check_scheme(file, &golden_schemes[i]);
                seen++;
            }
    }
    codec_kernels_force(NULL);
    assert_true(seen > 0);
    skep_safetensors_close(file);
}

static int is_tensor_file(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');

    return dot != NULL && strcmp(dot, ".safetensors") == 0;
}

int main(void)
{
    static struct CMUnitTest tests[MAX_FILES];
    char folder[GOLDEN_PATH_BYTES];
    struct dirent **entries;
    size_t n = golden_list(golden_path("codecs", folder), is_tensor_file, MAX_FILES, &entries);

    for (size_t i = 0; i < n; i++) {
        char *path;
        if (asprintf(&path, "%s/%s", folder, entries[i]->d_name) < 0)
            return 1;
        tests[i] = (struct CMUnitTest){
            .name = strrchr(path, '/') + 1, .test_func = golden_codec_file, .initial_state = path};
        free(entries[i]);
    }
    free(entries);
    int failed = _cmocka_run_group_tests("golden codecs", tests, n, NULL, NULL);
    for (size_t i = 0; i < n; i++)
        free(tests[i].initial_state);
    return failed;
}
