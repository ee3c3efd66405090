/* What the tests of checkpoints share: experts that have learned something, and their files. */
#ifndef SKEP_TESTS_CHECKPOINT_FIXTURE_H
#define SKEP_TESTS_CHECKPOINT_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "expert_fixture.h"
#include "experts/checkpoint.h"
#include "experts/checkpoint_dir.h"
#include "tempdir.h"

/* A few steps of training, each with other data. */
static inline void train(struct expert *e, unsigned first, unsigned last)
{
    for (unsigned i = first; i < last; i++) {
        DLManagedTensor *x = tensor_of(ROWS, HIDDEN, i);
        DLManagedTensor *dy = tensor_of(ROWS, HIDDEN, 1000 + i);
        DLManagedTensor *dx = tensor_of(ROWS, HIDDEN, 0);
        struct skep_error err;

        if (expert_backward(e, &x->dl_tensor, &dy->dl_tensor, &dx->dl_tensor, &err) != SKEP_OK)
            fail_msg("%s", err.message);
        skep_tensor_free(x);
        skep_tensor_free(dy);
        skep_tensor_free(dx);
    }
}

static inline float *copy_of(struct expert *e, struct expert_counters *counters)
{
    float *copy = mem_aligned(64, expert_state_bytes(e) + 64);
    struct skep_error err;

    assert_non_null(copy);
    if (expert_snapshot(e, copy, counters, clock_deadline_us(10000), &err) != SKEP_OK)
        fail_msg("%s", err.message);
    return copy;
}

static inline skep_status save_expert(const char *path, struct expert *e, struct skep_error *err)
{
    struct checkpoint_header header = {
        .uid = "ffn.0.1", .options = *expert_settings(e), .has_training = true};
    float *copy = copy_of(e, &header.counters);
    skep_status rc = checkpoint_save(path, &header, e, copy, err);

    mem_free(copy);
    return rc;
}

static inline skep_status load_expert(const char *path, struct expert *e, struct skep_error *err)
{
    struct checkpoint *c;
    skep_status rc = checkpoint_open(path, &c, err);

    if (rc == SKEP_OK)
        rc = checkpoint_apply(c, path, e, err);
    checkpoint_close(c);
    return rc;
}

static inline void must(skep_status rc, const struct skep_error *err)
{
    if (rc != SKEP_OK)
        fail_msg("%s: %s", skep_status_name(rc), err->message);
}

/* Parameters, optimizer state and counters are equal, bit by bit. */
static inline bool same_state(struct expert *a, struct expert *b)
{
    struct expert_counters x, y;
    float *p = copy_of(a, &x);
    float *q = copy_of(b, &y);
    bool same = expert_state_bytes(a) == expert_state_bytes(b) &&
                memcmp(p, q, expert_state_bytes(a)) == 0 && memcmp(&x, &y, sizeof(x)) == 0;

    mem_free(p);
    mem_free(q);
    return same;
}

/* A whole file in memory. owned: free(). */
static inline uint8_t *read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data;

    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    data = malloc(*len + 1);
    assert_int_equal(fread(data, 1, *len, f), *len);
    fclose(f);
    return data;
}

static inline void write_file(const char *path, const void *data, size_t len)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fclose(f);
}

#endif
