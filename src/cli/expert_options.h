/* The options that say what class of experts is made and of what shape: of nodes and of imports. */
#ifndef SKEP_CLI_EXPERT_OPTIONS_H
#define SKEP_CLI_EXPERT_OPTIONS_H

#include <skep/expert.h>
#include "cli/options.h"

/* Rows for a command's own table of options, beside its --expert-cls and --intermediate-dim. */
#define EXPERT_CLASS_OPTION_SPECS                                                                  \
    {.name = "padding-mask",                                                                       \
     .kind = OPTION_FLAG,                                                                          \
     .help = "transformer experts take a second input, BOOL [batch, sequence], true for keys"      \
             " to ignore"},                                                                        \
        {.name = "max-sequence",                                                                   \
         .kind = OPTION_INT,                                                                       \
         .min = 1,                                                                                 \
         .max = INT32_MAX,                                                                         \
         .default_text = "32768",                                                                  \
         .help = "maximum sequence length of transformer experts; their work grows with its "      \
                 "square"},                                                                        \
        {.name = "float-mask",                                                                     \
         .kind = OPTION_FLAG,                                                                      \
         .help = "det_dropout experts take an F32 mask instead of I64"},                           \
    {                                                                                              \
        .name = "evaluation", .kind = OPTION_FLAG,                                                 \
        .help = "det_dropout experts ignore their mask and do not scale"                           \
    }

/* What was given of them and of --intermediate-dim; the rest of `out` stays. */
void expert_class_options_read(const struct options *o, struct skep_expert_options *out);

/*
 * Options that the class of --expert-cls does not have: as options_idle(). A plugin's class is
 * handed all of them, so what does nothing there only the plugin knows.
 */
int expert_class_options_check(struct options *o);

#endif
