/* The program `skep`. */
#include <malloc.h>

#include "cli/command.h"
#include "dht/runner.h"

/*
 * Tensors come and go by the megabyte. With glibc's defaults each of them is mapped, faulted in
 * page by page and given back; kept, an 8 MB call costs a third less (docs/decisions.md). The
 * library leaves its user's allocator alone.
 */
enum {
    KEEP_BELOW_BYTES = 32 << 20, /* glibc allows no more */
    KEEP_FREE_BYTES = 128 << 20,
};

int main(int argc, char **argv)
{
    mallopt(M_MMAP_THRESHOLD, KEEP_BELOW_BYTES);
    mallopt(M_TRIM_THRESHOLD, KEEP_FREE_BYTES);
    runner_own_process();
    return cli_main(argc, argv);
}
