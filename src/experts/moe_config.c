/* See moe_config.h. Settings are found by their keys, wherever they stand: families differ in where
 * they keep them more than in what they call them. */
#include "experts/moe_config.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/number.h"
#include "base/text.h"

enum { MAX_DEPTH = 64 };

/* --- JSON as Python writes it -------------------------------------------------------------- */

/* What stands for NaN and infinities after plain_json(): texts as long as those are. */
static const struct {
    const char *token, *text;
    double value;
} tokens[] = {
    {"-Infinity", "\"-infini\"", -INFINITY},
    {"Infinity", "\"infini\"", INFINITY},
    {"NaN", "\"N\"", NAN},
};

enum { TOKENS = sizeof(tokens) / sizeof(tokens[0]) };

/* Whether what ends before `rest` is the key of an object. */
static bool is_key(const char *rest, size_t len)
{
    size_t i = 0;

    while (i < len && ascii_is_space(rest[i]))
        i++;
    return i < len && rest[i] == ':';
}

/* Puts texts in place of the three tokens that Python's json module writes and JSON does not have.
 * Anything else that is no JSON is left to the parser. */
static void plain_json(char *text, size_t len)
{
    bool in_string = false;

    for (size_t i = 0; i < len; i++) {
        if (in_string) {
            if (text[i] == '\\')
                i++;
            else if (text[i] == '"')
                in_string = false;
            continue;
        }
        in_string = text[i] == '"';
        if (text[i] != '-' && text[i] != 'I' && text[i] != 'N')
            continue;
        for (size_t k = 0; k < TOKENS; k++) {
            size_t n = strlen(tokens[k].token);
            if (n > len - i || memcmp(text + i, tokens[k].token, n) != 0 ||
                is_key(text + i + n, len - i - n))
                continue;
            memcpy(text + i, tokens[k].text, n);
            i += n - 1;
            break;
        }
    }
}

static skep_status parse(const void *data, size_t len, json_t **out, struct skep_error *err)
{
    /* Numbers may be of any size. */
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
    char *plain = mem_alloc(len);
    if (plain == NULL)
        return error_no_memory(err, "JSON", len);
    memcpy(plain, data, len);
    plain_json(plain, len);
    *out = json_loadb(plain, len, flags, &error);
    mem_free(plain);
    if (*out != NULL)
        return SKEP_OK;
    if (json_error_code(&error) == json_error_out_of_memory)
        return error_no_memory(err, "JSON", len);
    return error_set(err, SKEP_DATA_LOSS, "not JSON: line %d: %s", error.line, error.text);
}

/* A number, or one of the three. False: neither. */
static bool read_number(const json_t *value, double *out)
{
    const char *text = json_string_value(value);

    if (json_is_number(value)) {
        *out = json_number_value(value);
        return true;
    }
    for (size_t k = 0; text != NULL && k < TOKENS; k++)
        if (strlen(text) + 2 == strlen(tokens[k].text) &&
            memcmp(text, tokens[k].text + 1, strlen(text)) == 0) {
            *out = tokens[k].value;
            return true;
        }
    return false;
}

/* --- settings ------------------------------------------------------------------------------ */

struct reading {
    struct moe_config *config;
    const char *stack;
    struct skep_error *err;
};

static bool is_any(const char *key, const char *const *list)
{
    for (; *list != NULL; list++)
        if (strcmp(key, *list) == 0)
            return true;
    return false;
}

static bool has_any(const char *key, const char *const *list)
{
    for (; *list != NULL; list++)
        if (strstr(key, *list) != NULL)
            return true;
    return false;
}

/* Names of x * sigmoid(x), which swiglu.c computes, and of the whole. */
static bool is_silu(const char *name)
{
    return strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0 || strcmp(name, "swiglu") == 0;
}

static skep_status read_activation(struct reading *r, const char *key, const json_t *value)
{
    const json_t *named = json_is_object(value) ? json_object_get(value, "name") : value;
    char quoted[TEXT_QUOTE_BYTES];

    if (named == NULL || json_is_null(named))
        return SKEP_OK;
    if (!json_is_string(named))
        return error_set(r->err, SKEP_DATA_LOSS, "%s is not a string", key);
    if (is_silu(json_string_value(named)))
        return SKEP_OK;
    return error_set(r->err, SKEP_FAILED_PRECONDITION,
                     "%s is %s, expected \"silu\" or \"swish\": class swiglu computes no other",
                     key, text_quote(json_string_value(named), json_string_length(named), quoted));
}

static skep_status read_bias(struct reading *r, const char *key, const json_t *value)
{
    double number;

    if (json_is_true(value) || (read_number(value, &number) && number != 0))
        return error_set(r->err, SKEP_FAILED_PRECONDITION,
                         "%s is set: experts with biases, which class swiglu does not have", key);
    return SKEP_OK;
}

/* Clamps, and factors of the activation. A factor of 1 changes nothing, nor does a limit of
 * infinity; 0 is what families write for "none". */
static bool changes_nothing(const char *key, double number)
{
    return number == 0 || (number == 1 && strstr(key, "alpha") != NULL) ||
           (isinf(number) && number > 0 && strstr(key, "alpha") == NULL);
}

static skep_status refuse_limit(struct reading *r, const char *key, const char *text)
{
    return error_set(
        r->err, SKEP_FAILED_PRECONDITION,
        "%s is %s, expected none: class swiglu computes silu(gate) * up without clamps "
        "and factors",
        key, text);
}

static skep_status read_limits(struct reading *r, const char *key, const json_t *list)
{
    struct moe_config *c = r->config;

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        double number = 0;

        if (!json_is_null(value) && !read_number(value, &number))
            return error_set(r->err, SKEP_DATA_LOSS, "%s: element %zu is no number", key, i);
        if (changes_nothing(key, number))
            continue;
        if (i >= MOE_CONFIG_LAYERS || (c->limit_key[0] != '\0' && strcmp(c->limit_key, key) != 0))
            return refuse_limit(r, key, "a list that clamps");
        number_print(c->limit_key, sizeof(c->limit_key), "%s", key);
        c->limits[i] = number;
    }
    return SKEP_OK;
}

static skep_status read_limit(struct reading *r, const char *key, const json_t *value)
{
    char text[32];
    double number;

    if (json_is_array(value))
        return read_limits(r, key, value);
    if (json_is_null(value) || json_is_boolean(value)) { /* "use_swiglu" says that it is one */
        bool is_off = json_is_false(value) && strstr(key, "swiglu") != NULL;
        bool is_on = json_is_true(value) && strstr(key, "swiglu") == NULL;
        return is_off || is_on ? refuse_limit(r, key, is_on ? "true" : "false") : SKEP_OK;
    }
    if (!read_number(value, &number))
        return refuse_limit(r, key, json_is_object(value) ? "an object" : "a text");
    if (changes_nothing(key, number))
        return SKEP_OK;
    number_print(text, sizeof(text), "%g", number);
    return refuse_limit(r, key, text);
}

static bool is_whole_number(double number, double most)
{
    return number >= 0 && number <= most && floor(number) == number;
}

static skep_status read_count(struct reading *r, const char *key, const json_t *value)
{
    struct moe_config *c = r->config;
    const double most = 1000000;
    double number;

    if (json_is_null(value) || c->count_total == MOE_CONFIG_COUNTS ||
        strlen(key) >= MOE_CONFIG_KEY_BYTES)
        return SKEP_OK;
    struct moe_count *count = &c->counts[c->count_total];
    *count = (struct moe_count){0};
    number_print(count->key, sizeof(count->key), "%s", key);
    count->length = json_array_size(value); /* 0 if it is none */
    for (size_t i = 0; i < count->length; i++) {
        if (!read_number(json_array_get(value, i), &number) || !is_whole_number(number, most) ||
            i >= MOE_CONFIG_LAYERS)
            return error_set(r->err, SKEP_DATA_LOSS, "%s: element %zu is no number of experts", key,
                             i);
        count->each[i] = (uint32_t)number;
        count->sum += count->each[i];
    }
    if (count->length == 0) {
        if (!read_number(value, &number) || !is_whole_number(number, most))
            return error_set(r->err, SKEP_DATA_LOSS, "%s is no number of experts", key);
        count->all = (uint64_t)number;
    }
    if (count->all > 0 || count->sum > 0) /* 0: what dense models of a family say */
        c->count_total++;
    return SKEP_OK;
}

/* The first that says it: a part's own is that of its tower. */
static skep_status read_size(struct reading *r, const char *key, const json_t *value, uint64_t *out)
{
    double number;

    if (json_is_null(value) || *out != 0)
        return SKEP_OK;
    if (!read_number(value, &number) || !is_whole_number(number, 1e9))
        return error_set(r->err, SKEP_DATA_LOSS, "%s is no size", key);
    *out = (uint64_t)number;
    return SKEP_OK;
}

/* Families whose experts compute something else, whatever else their settings say. */
static skep_status read_family(struct reading *r, const json_t *value)
{
    const char *name = json_string_value(value);

    if (name == NULL || strcmp(name, "gpt_oss") != 0)
        return SKEP_OK;
    return error_set(r->err, SKEP_FAILED_PRECONDITION,
                     "model_type is gpt_oss: its experts interleave gate and up, clamp them, and "
                     "have biases and a factor, none of which class swiglu has");
}

static skep_status read_setting(struct reading *r, const char *key, const json_t *value)
{
    static const char *const activations[] = {"hidden_act",
                                              "hidden_activation",
                                              "mlp_hidden_act",
                                              "moe_hidden_act",
                                              "ffn_act_fn",
                                              "mlp_act",
                                              "moe_act",
                                              "expert_act",
                                              "activation_function",
                                              "act_fn",
                                              "expert_activation",
                                              "moe_activation",
                                              "mlp_activation",
                                              NULL};
    static const char *const biases[] = {"mlp_bias", "moe_mlp_bias", "ffn_bias", "moe_bias", NULL};
    static const char *const counts[] = {"num_local_experts",
                                         "num_experts",
                                         "n_routed_experts",
                                         "moe_num_experts",
                                         "num_routed_experts",
                                         "n_experts",
                                         NULL};
    static const char *const where[] = {"_act", "mlp", "moe", "expert", "ffn", "gate", NULL};
    static const char *const what[] = {"clamp", "clip", "limit", "alpha", NULL};
    static const char *const not_those[] = {"shared", "router", "capacity",  "group", "token",
                                            "loss",   "attn",   "attention", NULL};
    static const char *const widths[] = {"hidden_size", "d_model", "dim", "n_embd", NULL};
    static const char *const depths[] = {"num_hidden_layers", "n_layers", "n_layer", "num_layers",
                                         NULL};

    if (strcmp(key, "model_type") == 0)
        return read_family(r, value);
    if (is_any(key, activations) || (strcmp(key, "activation") == 0 && json_is_string(value)))
        return read_activation(r, key, value);
    if (is_any(key, biases))
        return read_bias(r, key, value);
    if (is_any(key, counts))
        return read_count(r, key, value);
    if (!has_any(key, not_those) &&
        (strstr(key, "swiglu") != NULL ||
         ((has_any(key, where) || strncmp(key, "act", 3) == 0) && has_any(key, what))))
        return read_limit(r, key, value);
    if (is_any(key, widths))
        return read_size(r, key, value, &r->config->hidden_size);
    if (is_any(key, depths))
        return read_size(r, key, value, &r->config->layers);
    return SKEP_OK;
}

/* Parts about another tower than the experts' are none of theirs. */
static bool is_elsewhere(const char *key, const char *stack)
{
    static const char *const towers[] = {
        "vision",         "visual",  "vit",       "image",   "audio",     "speech",    "wav",
        "talker",         "thinker", "projector", "adapter", "connector", "resampler", "qformer",
        "code_predictor", NULL};

    if (strstr(key, "quantization") != NULL || strstr(key, "rope") != NULL)
        return true;
    for (const char *const *tower = towers; *tower != NULL; tower++)
        if (strstr(key, *tower) != NULL && strstr(stack, *tower) == NULL)
            return true;
    return false;
}

/* Parts first: the width of a language model stands in its part, beside that of the whole. */
static skep_status read_part(struct reading *r, json_t *part)
{
    const char *key;
    json_t *value;
    skep_status rc = SKEP_OK;

    json_object_foreach(part, key, value)
    {
        if (json_is_object(value) && !is_elsewhere(key, r->stack) && rc == SKEP_OK)
            rc = read_part(r, value);
    }
    json_object_foreach(part, key, value)
    {
        if (rc == SKEP_OK)
            rc = read_setting(r, key, value);
    }
    return rc;
}

skep_status moe_config_parse(struct moe_config *out, const void *data, size_t len,
                             const char *stack, struct skep_error *err)
{
    struct reading r = {.config = out, .stack = stack, .err = err};
    json_t *root;

    *out = (struct moe_config){0};
    skep_status rc = parse(data, len, &root, err);
    if (rc == SKEP_OK && !json_is_object(root))
        rc = error_set(err, SKEP_DATA_LOSS, "not a JSON object");
    if (rc == SKEP_OK)
        rc = read_part(&r, root);
    if (rc != SKEP_OK)
        *out = (struct moe_config){0};
    json_decref(root);
    return rc;
}

/* --- answers ------------------------------------------------------------------------------- */

static uint64_t count_of(const struct moe_count *count, uint64_t layer)
{
    if (count->length == 0)
        return count->all;
    return layer < count->length ? count->each[layer] : 0;
}

uint64_t moe_config_experts(const struct moe_config *config, uint64_t layer)
{
    uint64_t found = 0;

    for (size_t i = 0; i < config->count_total; i++) {
        uint64_t own = count_of(&config->counts[i], layer);
        if (found != 0 && own != found)
            return 0;
        found = own;
    }
    return found;
}

skep_status moe_config_check_count(const struct moe_config *config, uint64_t layer,
                                   uint64_t experts, struct skep_error *err)
{
    for (size_t i = 0; i < config->count_total; i++)
        if (count_of(&config->counts[i], layer) == experts || config->counts[i].sum == experts)
            return SKEP_OK;
    if (config->count_total == 0)
        return SKEP_OK;
    return error_set(err, SKEP_DATA_LOSS,
                     "%s is %" PRIu64 ", but layer %" PRIu64 " has %" PRIu64 " expert%s",
                     config->counts[0].key, count_of(&config->counts[0], layer), layer, experts,
                     text_plural(experts));
}

skep_status moe_config_check_layer(const struct moe_config *config, uint64_t layer,
                                   struct skep_error *err)
{
    if (layer >= MOE_CONFIG_LAYERS || config->limits[layer] == 0)
        return SKEP_OK;
    return error_set(err, SKEP_FAILED_PRECONDITION,
                     "%s is %g for layer %" PRIu64
                     ", expected none: class swiglu computes silu(gate) * up without clamps and "
                     "factors",
                     config->limit_key, config->limits[layer], layer);
}
