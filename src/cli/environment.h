/*
 * Options as variables of the environment, SKEP_NAME. All commands share it: what is an option of
 * any of them is right there, and for the others nothing.
 */
#ifndef SKEP_CLI_ENVIRONMENT_H
#define SKEP_CLI_ENVIRONMENT_H

enum { ENVIRONMENT_NAME_BYTES = 72 };

/* The variable of an option: "max-batch-size" is SKEP_MAX_BATCH_SIZE. */
void environment_name(const char *option, char out[static ENVIRONMENT_NAME_BYTES]);
/* Warns about each SKEP_ variable that is set and is no option of any command, with the nearest
 * that is: a misspelt one would be ignored without a word. */
void environment_warn(void);
/* What is no SKEP_ variable, for a program that is to go by its arguments alone: a list as execve()
 * takes it. Owned: mem_free(), its texts are views of the environment. NULL if memory is short. */
char **environment_of_others(void);

#endif
