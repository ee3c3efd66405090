/*
 * Golden files of experts, for the tests that walk them: each file of $SKEP_GOLDEN_DIR/experts is
 * one test. Formats: tests/golden/README.md, sections 1 and 2.
 */
#ifndef SKEP_TESTS_GOLDEN_FILE_H
#define SKEP_TESTS_GOLDEN_FILE_H

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <skep/safetensors.h>

#include "base/tensor.h"
#include "experts/class.h"
#include "experts/expert.h"
#include "experts/optimizer.h"
#include "golden_dir.h"
#include "unit.h"

enum { MAX_FILES = 512, MAX_INPUTS = 2 };

struct golden {
    struct skep_safetensors *file;
    const DLTensor *inputs[MAX_INPUTS];
    DLTensor input_views[MAX_INPUTS];
    size_t input_count;
    size_t parameter_count;
    const char *names[EXPERT_MAX_PARAMETERS];
};

static inline void die(const char *what, const struct skep_error *err)
{
    fail_msg("%s: %s", what, err->message);
}

static inline const char *text_of(const struct golden *g, const char *key)
{
    return skep_safetensors_metadata(g->file, key);
}

static inline double number_of(const struct golden *g, const char *opt, const char *key,
                               double missing)
{
    char full[128];

    if (opt != NULL)
        snprintf(full, sizeof(full), "opt.%s.%s", opt, key);
    else
        snprintf(full, sizeof(full), "%s", key);
    const char *text = text_of(g, full);
    return text != NULL ? strtod(text, NULL) : missing;
}

static inline const DLTensor *find(const struct golden *g, const char *format, const char *a,
                                   const char *b)
{
    char name[160];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(name, sizeof(name), format, a, b);
#pragma GCC diagnostic pop
    return skep_safetensors_find(g->file, name);
}

static inline size_t count_of(const DLTensor *t)
{
    size_t n = 0;

    assert_true(shape_count(t->ndim, t->shape, &n));
    return n;
}

static inline double value_at(const DLTensor *t, size_t i)
{
    const void *data = skep_tensor_data(t);

    if (dtype_equal(t->dtype, DTYPE_F32))
        return (double)((const float *)data)[i];
    assert_int_equal(t->dtype.bits, 64);
    return ((const double *)data)[i];
}

static inline double largest(const DLTensor *t)
{
    double max = 0.0;

    for (size_t i = 0; i < count_of(t); i++)
        max = fmax(max, fabs(value_at(t, i)));
    return max;
}

static inline struct skep_expert_options options_of(const struct golden *g)
{
    struct skep_expert_options o;

    skep_expert_options_init(&o);
    o.cls = text_of(g, "arch");
    o.hidden_dim = (int64_t)number_of(g, NULL, "hidden", 0);
    o.intermediate_dim = (int64_t)number_of(g, NULL, "ffn_dim", 0);
    const char *padding = text_of(g, "padding_mask");
    o.padding_mask = padding != NULL && strcmp(padding, "true") == 0;
    o.float_mask = g->input_count > 1 && g->inputs[1]->dtype.code == kDLFloat;
    o.optimizer = "none";
    return o;
}

/* False if the library has no such optimizer. */
static inline bool add_optimizer(const struct golden *g, const char *opt,
                                 struct skep_expert_options *o)
{
    char key[64];
    struct skep_error err;

    snprintf(key, sizeof(key), "opt.%s.kind", opt);
    o->optimizer = text_of(g, key);
    o->learning_rate = number_of(g, opt, "lr", o->learning_rate);
    o->beta1 = number_of(g, opt, "beta1", o->beta1);
    o->beta2 = number_of(g, opt, "beta2", o->beta2);
    o->eps = number_of(g, opt, "eps", o->eps);
    o->weight_decay = number_of(g, opt, "weight_decay", 0.0);
    o->momentum = number_of(g, opt, "momentum", 0.0);
    o->clip_grad_norm = number_of(g, opt, "clip_grad_norm", 0.0);
    snprintf(key, sizeof(key), "opt.%s.schedule", opt);
    const char *schedule = text_of(g, key);
    if (schedule != NULL) {
        o->schedule = strcmp(schedule, "linear_warmup_decay") == 0 ? "linear" : schedule;
        o->warmup_steps = (uint64_t)number_of(g, opt, "warmup_steps", 0.0);
        o->training_steps = (uint64_t)number_of(g, opt, "total_steps", 0.0);
    }
    return optimizer_check(o, &err) == SKEP_OK;
}

/* An expert with the file's parameters. */
static inline struct expert *create(const struct golden *g, const struct skep_expert_options *o)
{
    struct expert *e;
    struct skep_error err;
    const char *names[EXPERT_MAX_PARAMETERS];

    if (expert_new(o, &e, &err) != SKEP_OK)
        die("expert_new", &err);
    size_t n = expert_parameters(e, names, NULL, EXPERT_MAX_PARAMETERS);
    for (size_t i = 0; i < n; i++) {
        const DLTensor *value = find(g, "param.%s%s", names[i], "");
        if (value == NULL)
            fail_msg("no parameter %s in the file", names[i]);
        if (expert_set_parameter(e, names[i], value, &err) != SKEP_OK)
            die("expert_set_parameter", &err);
    }
    return e;
}

static DLManagedTensor *like(const DLTensor *t)
{
    DLManagedTensor *out;
    size_t bytes;

    assert_int_equal(skep_tensor_new(t->dtype, t->ndim, t->shape, &out, NULL), SKEP_OK);
    assert_int_equal(skep_tensor_bytes(&out->dl_tensor, &bytes, NULL), SKEP_OK);
    /* All bits set is a NaN: what a class forgets to write is seen. */
    memset(skep_tensor_data(&out->dl_tensor), 0xff, bytes);
    return out;
}

/* Opens a file and finds its inputs. */
static inline void golden_open(struct golden *g, const char *path)
{
    struct skep_error err;

    *g = (struct golden){0};
    if (skep_safetensors_open(path, &g->file, &err) != SKEP_OK)
        die("open", &err);
    for (; g->input_count < MAX_INPUTS; g->input_count++) {
        char name[16];
        snprintf(name, sizeof(name), "input.%zu", g->input_count);
        const DLTensor *input = skep_safetensors_find(g->file, name);
        if (input == NULL)
            break;
        g->inputs[g->input_count] = input;
        g->input_views[g->input_count] = *input;
    }
}

static inline int is_tensor_file(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');

    return dot != NULL && strcmp(dot, ".safetensors") == 0;
}

/* Runs `test` on each golden file, whose path is its state. */
static inline int golden_run(const char *group, CMUnitTestFunction test)
{
    static struct CMUnitTest tests[MAX_FILES];
    char folder[GOLDEN_PATH_BYTES];
    struct dirent **entries;
    size_t n = golden_list(golden_path("experts", folder), is_tensor_file, MAX_FILES, &entries);

    for (size_t i = 0; i < n; i++) {
        char *path;
        if (asprintf(&path, "%s/%s", folder, entries[i]->d_name) < 0)
            return 1;
        tests[i] = (struct CMUnitTest){
            .name = strrchr(path, '/') + 1,
            .test_func = test,
            .initial_state = path,
        };
        free(entries[i]);
    }
    free(entries);
    int failed = _cmocka_run_group_tests(group, tests, n, NULL, NULL);
    for (size_t i = 0; i < n; i++)
        free(tests[i].initial_state);
    return failed;
}

#endif
