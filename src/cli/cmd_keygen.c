/* skep keygen: key files of nodes and private swarms. */
#include <jansson.h>
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
     .help = "write a new identity of a node here, and print its peer id"},
    {.name = "swarm-key",
     .kind = OPTION_STRING,
     .placeholder = "PATH",
     .help = "write a new key of a private swarm here; every node and client needs a copy"},
    {.name = "json", .kind = OPTION_FLAG, .help = "print JSON for programs"},
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
const struct option_table *const cmd_keygen_options = &table;

/* @param json  what was made is put in here; NULL: it is printed. */
static skep_status make_identity(const char *path, json_t *json, struct skep_error *err)
{
    struct identity id;
    char text[PEER_ID_HEX_BYTES];
    skep_status rc = identity_generate(&id, err);

    if (rc != SKEP_OK)
        return rc;
    rc = identity_save(&id, path, err);
    if (rc == SKEP_OK) {
        peer_id_hex(id.peer_id, text);
        json_object_set_new(json, "identity", json_string(path));
        json_object_set_new(json, "peer_id", json_string(text));
        if (json == NULL)
            printf("%s: identity of peer %s\n", path, text);
    }
    identity_wipe(&id);
    return rc;
}

static skep_status make_swarm_key(const char *path, json_t *json, struct skep_error *err)
{
    skep_status rc = swarm_key_create(path, err);

    if (rc == SKEP_OK)
        json_object_set_new(json, "swarm_key", json_string(path));
    if (rc == SKEP_OK && json == NULL)
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
    json_t *json = options_flag(&o, "json") ? json_object() : NULL;
    skep_status rc = identity_system_init(&err);
    if (rc == SKEP_OK && identity != NULL)
        rc = make_identity(identity, json, &err);
    if (rc == SKEP_OK && swarm_key != NULL)
        rc = make_swarm_key(swarm_key, json, &err);
    if (json != NULL && json_object_size(json) > 0) /* also if the second one failed */
        json_print(json, stdout);
    else
        json_decref(json);
    options_free(&o);
    return rc == SKEP_OK ? CLI_DONE : cli_fail_before(table.command, &err);
}
