/* The options --compression and --grad-compression of nodes and calls. */
#ifndef SKEP_CLI_COMPRESSION_H
#define SKEP_CLI_COMPRESSION_H

#include <skep/tensor.h>
#include "cli/options.h"

/* Rows for a command's own table of options. */
#define COMPRESSION_OPTION_SPECS(activations, gradients, unset_text)                               \
    {.name = "compression",                                                                        \
     .kind = OPTION_CHOICE,                                                                        \
     .placeholder = "SCHEME",                                                                      \
     .choices = "none|float16|bfloat16|meanstd16|uniform8|quantile8|blockwise8",                   \
     .help = activations,                                                                          \
     .unset = unset_text},                                                                         \
    {                                                                                              \
        .name = "grad-compression", .kind = OPTION_CHOICE, .placeholder = "SCHEME",                \
        .choices = "none|float16|bfloat16|meanstd16|uniform8|quantile8|blockwise8",                \
        .help = gradients, .unset = unset_text                                                     \
    }

/* SKEP_COMPRESSION_DEFAULT if it was not given. */
static inline enum skep_compression compression_option(const struct options *o, const char *name)
{
    enum skep_compression compression = SKEP_COMPRESSION_DEFAULT;
    const char *text = options_string(o, name);

    if (text != NULL)
        (void)skep_compression_from_name(text, &compression); /* it is one of the choices */
    return compression;
}

#endif
