/* See memory.h. */
#include "node/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/error.h"

enum {
    BYTES_PER_PARAMETER = 16, /* float32: weight, gradient, two moments */
    ROW_COPIES = 12,          /* joined input, activations of four times the width and their
                                 gradients, outputs: what an ffn needs of a row */
};

static uint64_t control_group_limit(void)
{
    FILE *f = fopen("/sys/fs/cgroup/memory.max", "re");
    uint64_t limit = UINT64_MAX;

    if (f == NULL)
        return UINT64_MAX;
    if (fscanf(f, "%" SCNu64, &limit) != 1) /* "max": no limit */
        limit = UINT64_MAX;
    fclose(f);
    return limit;
}

uint64_t memory_available(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    uint64_t machine = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
    uint64_t group = control_group_limit();

    return group < machine ? group : machine;
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

uint64_t memory_peak(struct hosted *const *experts, size_t count, int64_t max_batch_size)
{
    uint64_t parameters = 0;
    uint64_t row = 0;

    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = hosted_row_bytes(experts[i]);

        parameters = saturating_add(parameters, expert_parameter_count(experts[i]->expert));
        row = bytes > row ? bytes : row;
    }
    return saturating_add(
        saturating_mul(parameters, BYTES_PER_PARAMETER),
        saturating_mul(saturating_mul(row, ROW_COPIES), (uint64_t)max_batch_size));
}

skep_status memory_check(struct hosted *const *experts, size_t count, int64_t max_batch_size,
                         uint64_t available, struct skep_error *err)
{
    uint64_t peak = memory_peak(experts, count, max_batch_size);

    if (peak <= available)
        return SKEP_OK;
    return error_set(err, SKEP_RESOURCE_EXHAUSTED,
                     "node: %zu experts with batches of up to %" PRId64 " rows may need %" PRIu64
                     " MiB, there are %" PRIu64
                     " MiB: fewer experts, a smaller hidden_dim or a smaller max_batch_size",
                     count, max_batch_size, peak >> 20, available >> 20);
}
