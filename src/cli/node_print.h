/* What `skep node --json` prints: one event a line (docs/operations.md). */
#ifndef SKEP_CLI_NODE_PRINT_H
#define SKEP_CLI_NODE_PRINT_H

#include <stdint.h>
#include <skep/node.h>

void node_print_ready(struct skep_node *node);
/* @param event  "stats" or "stopped". */
void node_print_stats(struct skep_node *node, const char *event);
/* Which experts the node serves, as a number of this process. */
uint64_t node_experts_mark(struct skep_node *node);
/* Prints them if they are not those of *last: one has given its UID up for another one. */
void node_print_experts(struct skep_node *node, uint64_t *last);
/* Prints it if it is not *last. */
void node_print_reachability(struct skep_node *node, enum skep_reachability *last);

#endif
