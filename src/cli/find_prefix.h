/* `skep find PREFIX`: what is served under a prefix, once or live. */
#ifndef SKEP_CLI_FIND_PREFIX_H
#define SKEP_CLI_FIND_PREFIX_H

#include <stddef.h>
#include <skep/client.h>
#include "cli/options.h"

/* UIDs under a prefix, in the order of their coordinates. */
struct uid_list {
    char **uids; /* owned: uid_list_free() */
    size_t count, cap;
};
/* @return as skep_watch_wait_ready(), or SKEP_RESOURCE_EXHAUSTED. The list may be empty. */
skep_status uid_list_read(struct uid_list *list, struct skep_client *client, const char *prefix,
                          uint32_t timeout_ms, struct skep_error *err);
void uid_list_free(struct uid_list *list);

/*
 * Shows a prefix until SIGINT or SIGTERM, or until nobody takes what is printed: on a terminal as a
 * table that is drawn anew when something changes, else a line for each event. Returns the exit
 * code.
 */
int find_prefix_watch(const char *command, const struct options *o, struct skep_client *client,
                      const char *prefix);

#endif
