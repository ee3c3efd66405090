/* See memory.h. */
#include "node/lifecycle/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/control_group.h"
#include "base/error.h"
#include "base/tensor.h"
#include "base/text.h"

enum {
    ROW_COPIES = 12,   /* joined input, activations of four times the width and their
                                   gradients, outputs: what an ffn needs of a row */
    PASSING_SHARE = 8, /* a batch that passes another is at most this part of it */
};

/* A number of bytes; "max", v1's -1 and nonsense are no limit, a larger number is the largest. */
static uint64_t parse_limit(const char *text)
{
    return text[0] >= '0' && text[0] <= '9' ? strtoull(text, NULL, 10) : UINT64_MAX;
}

static uint64_t read_limit(const struct control_group *group, const char *file, const char *key)
{
    char line[CONTROL_GROUP_LINE_BYTES];

    if (!control_group_line(group, file, key, line))
        return UINT64_MAX;
    return parse_limit(key != NULL ? line + strlen(key) + 1 : line);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* In version 1 a group above bounds those below only where it says so. */
static bool counts_for_those_below(const struct control_group *group)
{
    char line[CONTROL_GROUP_LINE_BYTES];

    return !control_group_line(group, "memory.use_hierarchy", NULL, line) || line[0] != '0';
}

static void take_limit(void *arg, const struct control_group *group)
{
    uint64_t *limit = arg;

    if (group->version == CONTROL_GROUP_V2) {
        *limit = smaller(*limit, read_limit(group, "memory.max", NULL));
        return;
    }
    if (!group->is_own && !counts_for_those_below(group))
        return;
    *limit = smaller(*limit, read_limit(group, "memory.limit_in_bytes", NULL));
    *limit = smaller(*limit, read_limit(group, "memory.stat", "hierarchical_memory_limit"));
}

uint64_t memory_group_limit(const char *root)
{
    uint64_t limit = UINT64_MAX;

    control_group_walk(root, "memory", take_limit, &limit);
    return limit;
}

uint64_t memory_available(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    uint64_t machine = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;

    return smaller(memory_group_limit(""), machine);
}

static uint64_t saturating_mul(uint64_t a, uint64_t b)
{
    uint64_t product;

    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t saturating_add(uint64_t a, uint64_t b)
{
    uint64_t sum;

    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t row_bytes(const struct skep_tensor_spec *specs, size_t count)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = dtype_bytes(specs[i].dtype);
        for (int d = 1; d < specs[i].ndim; d++)
            if (specs[i].shape[d] > 0) /* a dimension of any size counts as 1 */
                bytes = saturating_mul(bytes, (uint64_t)specs[i].shape[d]);
        sum = saturating_add(sum, bytes);
    }
    return sum;
}

static void add_gradients(struct memory_sum *sum, uint64_t bytes)
{
    if (bytes > sum->gradients[0]) {
        sum->gradients[1] = sum->gradients[0];
        sum->gradients[0] = bytes;
    } else if (bytes > sum->gradients[1]) {
        sum->gradients[1] = bytes;
    }
}

void memory_add(struct memory_sum *sum, const struct expert_description *d, uint64_t count)
{
    uint64_t row = saturating_add(row_bytes(d->schema.inputs, d->schema.input_count),
                                  row_bytes(d->schema.outputs, d->schema.output_count));

    sum->experts = saturating_add(sum->experts, count);
    sum->fixed = saturating_add(sum->fixed, saturating_mul(d->bytes, count));
    for (uint64_t i = 0; i < count && i < 2; i++)
        add_gradients(sum, d->gradient_bytes);
    sum->row = row > sum->row ? row : sum->row;
    if (sum->has_copy && d->bytes > sum->copy)
        sum->copy = d->bytes;
}

static uint64_t batch_bytes(const struct memory_sum *sum, int64_t max_batch_size)
{
    uint64_t bytes = saturating_mul(saturating_mul(sum->row, ROW_COPIES), (uint64_t)max_batch_size);

    return sum->experts > 1 ? saturating_add(bytes, bytes / PASSING_SHARE) : bytes;
}

static uint64_t gradient_bytes(const struct memory_sum *sum)
{
    return saturating_add(sum->gradients[0], sum->gradients[1]);
}

uint64_t memory_peak(const struct memory_sum *sum, int64_t max_batch_size)
{
    return saturating_add(saturating_add(sum->fixed, gradient_bytes(sum)),
                          saturating_add(sum->copy, batch_bytes(sum, max_batch_size)));
}

skep_status memory_check(const struct memory_sum *sum, int64_t max_batch_size, uint64_t max_memory,
                         struct skep_error *err)
{
    uint64_t peak = memory_peak(sum, max_batch_size);
    uint64_t limit = max_memory > 0 ? max_memory : memory_available();

    if (peak <= limit)
        return SKEP_OK;
    char needed[TEXT_SIZE_BYTES], most[TEXT_SIZE_BYTES], fixed[TEXT_SIZE_BYTES];
    char gradients[TEXT_SIZE_BYTES], copy[TEXT_SIZE_BYTES], batch[TEXT_SIZE_BYTES];

    return error_set(
        err, SKEP_RESOURCE_EXHAUSTED,
        "node: %" PRIu64 " expert%s %s of memory, expected at most %s (%s): parameters and "
        "optimizer state %s, gradients %s, a copy for saving %s, a batch of %" PRId64
        " rows %s; fewer experts, a smaller hidden_dim or a smaller max_batch_size would fit",
        sum->experts, sum->experts == 1 ? " needs" : "s need", text_size(peak, true, needed),
        text_size(limit, false, most), max_memory > 0 ? "max_memory" : "what there is",
        text_size(sum->fixed, true, fixed), text_size(gradient_bytes(sum), true, gradients),
        text_size(sum->copy, true, copy), max_batch_size,
        text_size(batch_bytes(sum, max_batch_size), true, batch));
}
