/* What of a node's options does not go together, or does nothing beside the others. */
#ifndef SKEP_CLI_NODE_USAGE_H
#define SKEP_CLI_NODE_USAGE_H

#include "cli/options.h"

/* Returns CLI_DONE or, after saying why not, another exit code. What ranks too low to hold, and
 * what of a shared place does nothing, has been taken out then. */
int node_check_usage(struct options *o);
/* Whether experts are wanted that --load-experts does not have to find. */
bool node_makes_experts(const struct options *o);

#endif
