/* skep keygen: key files of nodes and private swarms. */
#include <stdio.h>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"
#include "crypto/identity.h"
#include "crypto/swarm_key.h"

static const struct option_spec specs[] = {
    {.name = "identity",
     .kind = OPTION_STRING,
     .placeholder = "PATH",
     .help = "write the identity of a node here; its peer id is printed"},
    {.name = "swarm-key",
     .kind = OPTION_STRING,
     .placeholder = "PATH",
     .help = "write the key of a private swarm here; every node and client needs a copy"},
};

static const struct option_table table = {
    .command = "keygen",
    .summary = "Makes key files: the identity of a node, the key of a private swarm, or both. "
               "They are readable by their owner only. A file that is there is left alone.",
    .example = "skep keygen --identity node.key\n"
               "skep keygen --swarm-key swarm.key",
    .specs = specs,
    .count = OPTION_COUNT(specs),
};

static skep_status make_identity(const char *path, struct skep_error *err)
{
    struct identity id;
    char text[PEER_ID_HEX_BYTES];
    skep_status rc = identity_generate(&id, err);

    if (rc != SKEP_OK)
        return rc;
    rc = identity_save(&id, path, err);
    if (rc == SKEP_OK) {
        peer_id_hex(id.peer_id, text);
        printf("%s: identity of peer %s\n", path, text);
    }
    identity_wipe(&id);
    return rc;
}

static skep_status make_swarm_key(const char *path, struct skep_error *err)
{
    skep_status rc = swarm_key_create(path, err);

    if (rc == SKEP_OK)
        printf("%s: key of a private swarm\n", path);
    return rc;
}

int cmd_keygen(int argc, char **argv)
{
    struct options o;
    struct skep_error err = {0};
    int code;

    if (!options_begin(&o, &table, argc, argv, &code))
        return code;
    const char *identity = options_string(&o, "identity");
    const char *swarm_key = options_string(&o, "swarm-key");
    if (identity == NULL && swarm_key == NULL) {
        options_free(&o);
        return cli_usage_error(table.command, "nothing to make, expected --identity or "
                                              "--swarm-key");
    }
    skep_status rc = identity_system_init(&err);
    if (rc == SKEP_OK && identity != NULL)
        rc = make_identity(identity, &err);
    if (rc == SKEP_OK && swarm_key != NULL)
        rc = make_swarm_key(swarm_key, &err);
    options_free(&o);
    return rc == SKEP_OK ? CLI_DONE : cli_fail_before(table.command, &err);
}
