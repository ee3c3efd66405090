/* See moe_config.h. */
#include "experts/moe_config.h"

#include <jansson.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"

enum { MAX_DEPTH = 64 };

/* Two names of x * sigmoid(x), which swiglu.c computes. */
static bool is_silu(const char *name)
{
    return strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0;
}

static skep_status check_activation(const json_t *root, const char *key, struct skep_error *err)
{
    const json_t *value = json_object_get(root, key);
    char quoted[TEXT_QUOTE_BYTES];

    if (value == NULL || json_is_null(value))
        return SKEP_OK;
    if (!json_is_string(value))
        return error_set(err, SKEP_DATA_LOSS, "%s is not a string", key);
    if (is_silu(json_string_value(value)))
        return SKEP_OK;
    return error_set(err, SKEP_FAILED_PRECONDITION,
                     "%s is %s, expected \"silu\" or \"swish\": class swiglu computes no other",
                     key, text_quote(json_string_value(value), json_string_length(value), quoted));
}

static skep_status parse(const void *data, size_t len, json_t **out, struct skep_error *err)
{
    /* Numbers do not matter here, and may be of any size. */
    const size_t flags = JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL;
    json_error_t error;

    *out = NULL;
    if (len > MOE_CONFIG_LIMIT_BYTES)
        return error_set(err, SKEP_DATA_LOSS, "%zu bytes, expected at most %d", len,
                         MOE_CONFIG_LIMIT_BYTES);
    if (len == 0)
        return error_set(err, SKEP_DATA_LOSS, "not JSON: empty");
    if (text_count_brackets(data, len).depth > MAX_DEPTH)
        return error_set(err, SKEP_DATA_LOSS, "JSON nested deeper than %d", MAX_DEPTH);
    *out = json_loadb(data, len, flags, &error);
    if (*out != NULL)
        return SKEP_OK;
    if (json_error_code(&error) == json_error_out_of_memory)
        return error_no_memory(err, "JSON", len);
    return error_set(err, SKEP_DATA_LOSS, "not JSON: line %d: %s", error.line, error.text);
}

skep_status moe_config_check(const void *data, size_t len, struct skep_error *err)
{
    json_t *root;
    skep_status rc = parse(data, len, &root, err);

    if (rc == SKEP_OK && !json_is_object(root))
        rc = error_set(err, SKEP_DATA_LOSS, "not a JSON object");
    if (rc == SKEP_OK)
        rc = check_activation(root, "hidden_act", err);
    if (rc == SKEP_OK)
        rc = check_activation(root, "hidden_activation", err);
    json_decref(root);
    return rc;
}
