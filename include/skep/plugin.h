/**
 * @file skep/plugin.h
 * Expert classes of your own, in a shared object that `skep node --plugin PATH` or
 * skep_plugin_load() takes in. examples/plugin holds a complete one with its tests' numbers.
 *
 * A class says what tensors and parameters its experts have, and computes. The parameters
 * themselves belong to Skep: it draws their first values, hands them in, takes their gradients,
 * runs the optimizer, saves and loads them under the names the class gives. So a plugin needs the
 * public headers only and links nothing of Skep's; it reports errors by filling in
 * `struct skep_error` (status and message) and returning the same status.
 *
 * Threads: functions of one expert run one at a time, in any thread; those of different experts of
 * a class may run at once, so a class must not keep changing data outside of its experts' states.
 * Computing on several threads is the class's own affair.
 *
 * A plugin runs with all rights of the process: load only what you trust.
 */
#ifndef SKEP_PLUGIN_H
#define SKEP_PLUGIN_H

#include <skep/expert.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Version of everything in this file. Skep refuses plugins that were built with another. */
#define SKEP_PLUGIN_ABI 1u

#define SKEP_PARAMETER_NAME_BYTES 64
#define SKEP_PARAMETER_MAX_DIMS 4
#define SKEP_EXPERT_MAX_PARAMETERS 64

/** First values of a parameter. */
enum skep_parameter_init {
    SKEP_INIT_ZEROS = 0,
    SKEP_INIT_ONES = 1,
    SKEP_INIT_UNIFORM = 2 /**< in [-bound, bound), from the expert's seed */
};

/** One trained parameter: float32, row-major. */
struct skep_parameter_spec {
    char name[SKEP_PARAMETER_NAME_BYTES]; /**< as PyTorch would name it, "linear.weight" */
    int ndim;                             /**< 1 to SKEP_PARAMETER_MAX_DIMS */
    int64_t shape[SKEP_PARAMETER_MAX_DIMS];
    enum skep_parameter_init init;
    float bound; /**< of SKEP_INIT_UNIFORM; finite, 0 or more */
};

/**
 * One class. `state` is what create() made, and is handed to all others. A function that fails
 * returns a status other than SKEP_OK and may fill in `err`, which is never NULL here; whatever it
 * has written by then is thrown away.
 */
struct skep_expert_class {
    /** For `--expert-cls`: 1 to 31 letters, digits, `_` or `-`; none that Skep has already. */
    const char *name;

    /** Whether the time of a pass is bounded by its rows and it never waits: short passes may then
     * run in the thread that received the request. If in doubt, false. */
    bool is_bounded;

    /**
     * Checks the options and makes the state of one expert; no parameters yet.
     * @param options  borrowed for the call. What it does not know, a class ignores.
     * @param state    set on success; may stay NULL. Freed by destroy().
     */
    skep_status (*create)(const struct skep_expert_options *options, void **state,
                          struct skep_error *err);
    /** May be NULL if there is nothing to free. */
    void (*destroy)(void *state);

    /** Fills in the zeroed schema: 1 to SKEP_EXPERT_MAX_TENSORS inputs and outputs, each with a
     * name, a type of SKEP_DTYPE_MAP, and -1 as dimension 0, the batch. An output's other
     * dimensions of -1 are those of input 0 at the same place. */
    skep_status (*describe)(const void *state, struct skep_expert_schema *schema,
                            struct skep_error *err);

    /** Fills in `specs`, zeroed and of room for SKEP_EXPERT_MAX_PARAMETERS, and their number, which
     * may be 0. Names differ from each other. NULL: none. */
    skep_status (*parameters)(const void *state, struct skep_parameter_spec *specs, size_t *count,
                              struct skep_error *err);

    /**
     * @param params   the parameters in the order of parameters(); read only.
     * @param inputs   as the schema says: types, dimensions and equal rows were checked.
     * @param outputs  memory is there; every element is to be written.
     */
    skep_status (*forward)(void *state, const float *const *params, const DLTensor *inputs,
                           DLTensor *outputs, struct skep_error *err);

    /**
     * @param grad_outputs  like outputs: the gradients that come from above.
     * @param grad_inputs   like inputs, zeroed: to be written.
     * @param grads         like params, zeroed: to be written, or added to. Skep takes the
     *                      optimizer's step with them.
     */
    skep_status (*backward)(void *state, const float *const *params, const DLTensor *inputs,
                            const DLTensor *grad_outputs, DLTensor *grad_inputs,
                            float *const *grads, struct skep_error *err);
};

/** What a plugin defines under the name `skep_plugin`; see SKEP_PLUGIN_DEFINE. */
struct skep_plugin {
    uint32_t abi; /**< SKEP_PLUGIN_ABI; first in all versions to come */
    uint32_t class_count;
    const struct skep_expert_class *classes;
};

/** Defines the symbol that Skep looks for, from an array of classes. */
#define SKEP_PLUGIN_DEFINE(class_array)                                                            \
    SKEP_API extern const struct skep_plugin skep_plugin;                                          \
    const struct skep_plugin skep_plugin = {                                                       \
        SKEP_PLUGIN_ABI,                                                                           \
        (uint32_t)(sizeof(class_array) / sizeof((class_array)[0])),                                \
        (class_array),                                                                             \
    }

/**
 * Takes in the classes of a plugin, for experts made from then on; they stay until the process
 * ends. Taking in the same file again changes nothing.
 * @param path  of the shared object; without a slash it is looked for in the working folder.
 * @return SKEP_NOT_FOUND if there is no such file; SKEP_FAILED_PRECONDITION if it is no shared
 *         object (or one that does not load), lacks the symbol `skep_plugin` or has another
 *         version; SKEP_INVALID_ARGUMENT if a class of it is incomplete, or has a bad name or one
 *         that is taken; SKEP_RESOURCE_EXHAUSTED. Sentences name the file. Nothing of a refused
 *         plugin is taken in.
 * Thread: any.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_plugin_load(const char *path, struct skep_error *err);

#ifdef __cplusplus
}
#endif
#endif
