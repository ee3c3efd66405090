/*
 * Keeps a node's UIDs apart from those of other nodes: after they were published it looks whether
 * others hold the same ones, gives up those that the rule (uid_rule.h) grants to the other, picks
 * free ones in their place, and warns of what stays double.
 *
 * It looks before the node is ready, and again after each publication round. As long as a UID may
 * still be given up every look asks for it; of the others a few each time, by turns.
 *
 * Threads: claims_settle() runs on the thread that starts the node; then a thread of its own
 * ("skep-claims") is the only one that changes the roster. claims_published(): any thread.
 */
#ifndef SKEP_NODE_LIFECYCLE_CLAIMS_H
#define SKEP_NODE_LIFECYCLE_CLAIMS_H

#include <skep/node.h>

struct claims;

/* @param node  borrowed until claims_free(). */
SKEP_MUST_CHECK skep_status claims_new(struct skep_node *node, struct claims **out,
                                       struct skep_error *err);
/*
 * Once the handler publishes: looks, gives up and picks anew until all that the node holds is its
 * own, for some seconds at most; what is still open then is left to the thread. At once if there
 * are no peers yet, or no UIDs picked at random.
 * @return SKEP_RESOURCE_EXHAUSTED if too few UIDs of a pattern are free for all that was asked for,
 *         without allow_fewer; SKEP_CANCELLED if the node is asked to stop.
 */
SKEP_MUST_CHECK skep_status claims_settle(struct claims *claims, struct skep_error *err);
SKEP_MUST_CHECK skep_status claims_start(struct claims *claims, struct skep_error *err);
/* A publication round has ended, among peers. NULL is allowed. */
void claims_published(struct claims *claims);
/* Ends the thread. NULL is allowed. */
void claims_stop(struct claims *claims);
void claims_free(struct claims *claims); /* stops; once the handler has ended. NULL is allowed */

#endif
