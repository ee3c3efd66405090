/* A configuration file is read or refused with a sentence; nothing is kept of a refused one. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct option_spec specs[] = {
    {.name = "swarm", .kind = OPTION_STRING, .help = "text"},
    {.name = "listen", .kind = OPTION_ENDPOINT, .any_port = true, .help = "endpoint"},
    {.name = "rows", .kind = OPTION_INT, .min = 1, .max = 64, .unit = "bytes", .help = "number"},
    {.name = "period", .kind = OPTION_FLOAT, .number_max = 10, .help = "number"},
    {.name = "rule", .kind = OPTION_CHOICE, .choices = "adam|sgd", .help = "choice"},
    {.name = "alone", .kind = OPTION_FLAG, .help = "flag"},
    {.name = "peers", .kind = OPTION_LIST, .help = "list"},
};
static const struct option_table table = {
    .command = "fuzz",
    .summary = "Reads a file.",
    .specs = specs,
    .count = OPTION_COUNT(specs),
};

static void check_values(const struct options *o)
{
    int64_t rows = options_int(o, "rows");
    double period = options_float(o, "period");
    size_t count;
    const char *const *peers = options_list(o, "peers", &count);

    if (rows < 0 || rows > 64 || period < 0 || period > 10)
        abort();
    for (size_t i = 0; i < count; i++)
        if (peers[i][0] == '\0' || strchr(peers[i], ',') != NULL)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char name[] = "fuzz";
    struct options o;
    struct skep_error err = {0};

    if (options_parse(&o, &table, 1, (char *[]){name, NULL}, &err) != SKEP_OK)
        abort();
    skep_status rc = option_read_config(&o, "fuzz.conf", (const char *)data, size, &err);
    if (rc == SKEP_OK)
        check_values(&o);
    else if (rc != SKEP_INVALID_ARGUMENT || strstr(err.message, "fuzz.conf") == NULL)
        abort();
    options_free(&o);
    return 0;
}
