/* Classes that plugins have brought (skep/plugin.h), made to look like those that are built in. */
#ifndef SKEP_EXPERTS_PLUGIN_H
#define SKEP_EXPERTS_PLUGIN_H

#include <stddef.h>
#include <skep/plugin.h>

#include "experts/class.h"

/* NULL if no plugin has brought such a class. Lives as long as the process. Any thread. */
const struct expert_class *plugin_class_find(const char *name);

/* Appends ", a, b" to a text of `used` bytes in `cap`; returns its new length, at most cap. */
size_t plugin_class_names(char *text, size_t used, size_t cap);

#endif
