/* Whether a node's threads go round. */
#ifndef SKEP_NODE_LIFECYCLE_CHECK_ALIVE_H
#define SKEP_NODE_LIFECYCLE_CHECK_ALIVE_H

struct skep_node;

/*
 * Returns once each I/O thread of a node that serves, its tracker's thread and the lock of its DHT
 * have answered: it hangs if one of them does. For those who tell a watchdog that all is well. Any
 * thread but those.
 */
void node_check_alive(struct skep_node *node);

#endif
