/*
 * Options as variables of the environment, SKEP_NAME. All commands share it: what is an option of
 * any of them is right there, and for the others nothing.
 */
#ifndef SKEP_CLI_ENVIRONMENT_H
#define SKEP_CLI_ENVIRONMENT_H

#include <stdbool.h>

enum { ENVIRONMENT_NAME_BYTES = 72 };

/* The variable of an option: "max-batch-size" is SKEP_MAX_BATCH_SIZE. */
void environment_name(const char *option, char out[static ENVIRONMENT_NAME_BYTES]);
/*
 * Whether Kubernetes has set this variable, for a Service named `skep` or `skep-...`: it puts
 * SKEP_SERVICE_HOST, SKEP_SERVICE_PORT, SKEP_PORT=tcp://10.0.0.1:9190, SKEP_PORT_9190_TCP_ADDR and
 * the like into each container of the namespace. SKEP_PORT is an option's name too: the value tells
 * which it is. Such variables say nothing to Skep.
 */
bool environment_is_service_link(const char *variable, const char *value);
/* Warns about each SKEP_ variable that is set and is no option of any command, with the nearest
 * that is: a misspelt one would be ignored without a word. Those of Kubernetes are told of in one
 * line of severity info. */
void environment_warn(void);
/* What is no SKEP_ variable, for a program that is to go by its arguments alone: a list as execve()
 * takes it. Owned: mem_free(), its texts are views of the environment. NULL if memory is short. */
char **environment_of_others(void);

#endif
