/* See expert_options.h. */
#include "cli/expert_options.h"

#include <string.h>

#include "cli/output.h"

void expert_class_options_read(const struct options *o, struct skep_expert_options *out)
{
    if (options_given(o, "intermediate-dim"))
        out->intermediate_dim = options_int(o, "intermediate-dim");
    if (options_given(o, "max-sequence"))
        out->max_sequence = options_int(o, "max-sequence");
    out->padding_mask = options_flag(o, "padding-mask");
    out->float_mask = options_flag(o, "float-mask");
    out->evaluation = options_flag(o, "evaluation");
}

static bool is_built_in(const char *cls)
{
    static const char *const names[] = {"ffn", "transformer", "det_dropout", "swiglu", "nop"};

    for (size_t i = 0; i < OPTION_COUNT(names); i++)
        if (strcmp(names[i], cls) == 0)
            return true;
    return false;
}

int expert_class_options_check(struct options *o)
{
    static const struct {
        const char *name, *cls;
    } rows[] = {
        {"intermediate-dim", "swiglu"},  {"padding-mask", "transformer"},
        {"max-sequence", "transformer"}, {"float-mask", "det_dropout"},
        {"evaluation", "det_dropout"},
    };
    const char *cls = options_string(o, "expert-cls");
    int code = CLI_DONE;

    for (size_t i = 0; i < OPTION_COUNT(rows) && code == CLI_DONE; i++)
        if (is_built_in(cls) && strcmp(rows[i].cls, cls) != 0)
            code = options_idle(o, rows[i].name, "does nothing with --expert-cls %s", cls);
    return code;
}
