/**
 * @file skep/plugin.h
 * Expert classes of your own, in a shared object that `skep node --plugin PATH` or
 * skep_plugin_load() takes in. examples/plugin holds a complete one with its tests' numbers.
 *
 * A class (struct skep_expert_class, of skep/expert.h, which this file includes) says what tensors
 * and parameters its experts have, and computes. The parameters themselves belong to Skep: it draws
 * their first values, hands them in, takes their gradients, runs the optimizer, saves and loads
 * them under the names the class gives. (A class with `owns_state` does all of that itself.) So a
 * plugin needs the public headers only and links nothing
 * of Skep's; it reports errors by filling in `struct skep_error` (status and message) and returning
 * the same status.
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

/** Version of all that passes between Skep and a plugin: this file, and what skep/expert.h says of
 * classes, schemas and options. Skep refuses plugins that were built with another. */
#define SKEP_PLUGIN_ABI 2u

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

/**
 * The same for classes that the program itself defines.
 * @param plugin  it, its classes and what they point to must stay until the process ends.
 * @return SKEP_FAILED_PRECONDITION for another version, SKEP_INVALID_ARGUMENT as
 *         skep_plugin_load(), SKEP_RESOURCE_EXHAUSTED.
 * Thread: any.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_plugin_register(const struct skep_plugin *plugin,
                                                          struct skep_error *err);

#ifdef __cplusplus
}
#endif
#endif
