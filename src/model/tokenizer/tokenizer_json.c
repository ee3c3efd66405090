/* Reads tokenizer.json. Each part that changes what comes out is either known or refused with its
 * place in the file; `truncation` and `padding` are the caller's business and are ignored. */
#include <jansson.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "model/tokenizer/tokenizer_internal.h"

enum {
    MAX_FILE_BYTES = 256 << 20, /* the largest known, of 260,000 tokens, has 34 MB */
    MAX_GAP = 65536,            /* unused ids in a vocabulary */
};

static skep_status refuse(struct skep_error *err, const char *place, const char *expected)
{
    return error_set(err, SKEP_INVALID_ARGUMENT, "%s: expected %s", place, expected);
}

static skep_status refuse_type(struct skep_error *err, const char *place, const char *type,
                               const char *known)
{
    char quote[TEXT_QUOTE_BYTES];

    return error_set(err, SKEP_INVALID_ARGUMENT, "%s: type %s is not supported; known: %s", place,
                     text_quote(type, strlen(type), quote), known);
}

static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));

    return type != NULL ? type : "";
}

static bool is_set(const json_t *value)
{
    return value != NULL && !json_is_null(value);
}

/* A member that is absent or false or true. */
static skep_status read_bool(const json_t *object, const char *name, bool absent, const char *place,
                             bool *out, struct skep_error *err)
{
    const json_t *value = json_object_get(object, name);

    *out = is_set(value) ? json_is_true(value) : absent;
    if (is_set(value) && !json_is_boolean(value))
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s.%s: expected true or false", place, name);
    return SKEP_OK;
}

/* ---- normalizer ---- */

static skep_status read_normalizer(struct tokenizer *t, const json_t *n, int depth,
                                   struct skep_error *err)
{
    const json_t *list, *part;
    size_t i;

    if (!is_set(n))
        return SKEP_OK;
    if (strcmp(type_of(n), "NFC") == 0) {
        t->nfc = true;
        return SKEP_OK;
    }
    list = json_object_get(n, "normalizers");
    if (strcmp(type_of(n), "Sequence") != 0 || !json_is_array(list) || depth > 0)
        return refuse_type(err, "normalizer", type_of(n), "NFC, Sequence of NFC");
    json_array_foreach(list, i, part)
    {
        skep_status rc = read_normalizer(t, part, depth + 1, err);
        if (rc != SKEP_OK)
            return rc;
    }
    return SKEP_OK;
}

/* ---- pre-tokenizer ---- */

static skep_status add_stage(struct tokenizer *t, const char *pattern, bool add_prefix_space,
                             struct skep_error *err)
{
    struct tokenizer_stage *stage = &t->stages[t->stage_count];
    skep_status rc = SKEP_OK;

    if (t->stage_count == TOKENIZER_MAX_STAGES)
        return error_set(err, SKEP_INVALID_ARGUMENT, "pre_tokenizer: more than %d steps",
                         (int)TOKENIZER_MAX_STAGES);
    stage->splitter = NULL;
    stage->add_prefix_space = add_prefix_space;
    if (pattern != NULL)
        rc = splitter_new(pattern, &stage->splitter, err);
    if (rc == SKEP_OK)
        t->stage_count++;
    else
        error_prefix(err, "pre_tokenizer");
    return rc;
}

static skep_status read_byte_level(struct tokenizer *t, const json_t *p, struct skep_error *err)
{
    bool add_prefix_space, use_regex;
    skep_status rc =
        read_bool(p, "add_prefix_space", true, "pre_tokenizer", &add_prefix_space, err);

    if (rc == SKEP_OK)
        rc = read_bool(p, "use_regex", true, "pre_tokenizer", &use_regex, err);
    if (rc == SKEP_OK && (use_regex || add_prefix_space))
        rc = add_stage(t, use_regex ? splitter_gpt2 : NULL, add_prefix_space, err);
    return rc;
}

static skep_status read_split(struct tokenizer *t, const json_t *p, struct skep_error *err)
{
    const char *behavior = json_string_value(json_object_get(p, "behavior"));
    const char *regex = json_string_value(json_object_get(json_object_get(p, "pattern"), "Regex"));

    if (behavior == NULL || strcmp(behavior, "Isolated") != 0)
        return refuse(err, "pre_tokenizer: Split.behavior", "\"Isolated\", the only one supported");
    if (regex == NULL)
        return refuse(err, "pre_tokenizer: Split.pattern", "{\"Regex\": \"...\"}");
    return add_stage(t, regex, false, err); /* "invert" makes no difference to Isolated */
}

/* @param last  whether it is the last step: bytes must become letters there and nowhere else. */
static skep_status read_step(struct tokenizer *t, const json_t *p, bool last,
                             struct skep_error *err)
{
    bool byte_level = strcmp(type_of(p), "ByteLevel") == 0;

    if (byte_level != last)
        return refuse(err, "pre_tokenizer", "ByteLevel as its last step and only there");
    if (byte_level)
        return read_byte_level(t, p, err);
    if (strcmp(type_of(p), "Split") == 0)
        return read_split(t, p, err);
    return refuse_type(err, "pre_tokenizer", type_of(p), "Sequence, Split, ByteLevel");
}

static skep_status read_pre_tokenizer(struct tokenizer *t, const json_t *p, struct skep_error *err)
{
    const json_t *list = json_object_get(p, "pretokenizers");
    const json_t *part;
    size_t i;

    if (strcmp(type_of(p), "Sequence") != 0)
        return read_step(t, p, true, err);
    if (json_array_size(list) == 0)
        return refuse(err, "pre_tokenizer.pretokenizers", "a list of steps");
    json_array_foreach(list, i, part)
    {
        skep_status rc = read_step(t, part, i + 1 == json_array_size(list), err);
        if (rc != SKEP_OK)
            return rc;
    }
    return SKEP_OK;
}

/* ---- post-processor and decoder ---- */

static skep_status read_special(struct token_ids *out, const json_t *known, const json_t *piece,
                                struct skep_error *err)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *ids = json_object_get(json_object_get(known, name != NULL ? name : ""), "ids");
    const json_t *id;
    size_t i;

    if (!json_is_array(ids))
        return refuse(err, "post_processor.single", "tokens that special_tokens lists");
    json_array_foreach(ids, i, id)
    {
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= UINT32_MAX)
            return refuse(err, "post_processor.special_tokens", "ids");
        if (!token_ids_append(out, (uint32_t)value))
            return error_no_memory(err, "token ids", sizeof(uint32_t));
    }
    return SKEP_OK;
}

static skep_status read_template(struct tokenizer *t, const json_t *p, struct skep_error *err)
{
    const json_t *known = json_object_get(p, "special_tokens");
    const json_t *single = json_object_get(p, "single");
    const json_t *part;
    size_t texts = 0;
    size_t i;

    json_array_foreach(single, i, part)
    {
        const json_t *special = json_object_get(part, "SpecialToken");
        if (special == NULL) {
            texts++;
            continue;
        }
        skep_status rc = read_special(texts == 0 ? &t->prefix : &t->suffix, known, special, err);
        if (rc != SKEP_OK)
            return rc;
    }
    if (texts != 1)
        return refuse(err, "post_processor.single", "the text once, special tokens around it");
    return SKEP_OK;
}

static skep_status read_post_processor(struct tokenizer *t, const json_t *p, int depth,
                                       struct skep_error *err)
{
    const json_t *list = json_object_get(p, "processors");
    const json_t *part;
    size_t i;

    if (!is_set(p) || strcmp(type_of(p), "ByteLevel") == 0) /* that one moves offsets only */
        return SKEP_OK;
    if (strcmp(type_of(p), "TemplateProcessing") == 0) {
        if (t->prefix.count + t->suffix.count > 0)
            return refuse(err, "post_processor", "one TemplateProcessing");
        return read_template(t, p, err);
    }
    if (strcmp(type_of(p), "Sequence") != 0 || !json_is_array(list) || depth > 0)
        return refuse_type(err, "post_processor", type_of(p),
                           "ByteLevel, TemplateProcessing, Sequence of these");
    json_array_foreach(list, i, part)
    {
        skep_status rc = read_post_processor(t, part, depth + 1, err);
        if (rc != SKEP_OK)
            return rc;
    }
    return SKEP_OK;
}

/* ---- vocabulary and merges ---- */

static skep_status check_model(const json_t *model, struct skep_error *err)
{
    static const char *const unsupported[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout = json_object_get(model, "dropout");

    if (strcmp(type_of(model), "BPE") != 0 && type_of(model)[0] != '\0')
        return refuse_type(err, "model", type_of(model), "BPE");
    if (is_set(dropout) && json_number_value(dropout) != 0.0)
        return refuse(err, "model.dropout", "null");
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return refuse(err, "model.byte_fallback", "false (a byte-level vocabulary)");
    for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++)
        if (json_string_length(json_object_get(model, unsupported[i])) > 0)
            return error_set(err, SKEP_INVALID_ARGUMENT, "model.%s: expected null", unsupported[i]);
    if (!json_is_object(json_object_get(model, "vocab")))
        return refuse(err, "model.vocab", "an object of texts and ids");
    if (!json_is_array(json_object_get(model, "merges")))
        return refuse(err, "model.merges", "a list");
    return SKEP_OK;
}

static skep_status read_merge(struct bpe *bpe, const json_t *merge, struct skep_error *err)
{
    const char *text = json_string_value(merge);
    size_t len = json_string_length(merge);
    const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);

    if (json_array_size(merge) == 2 && json_is_string(left) && json_is_string(right))
        return bpe_add_merge(bpe, json_string_value(left), json_string_length(left),
                             json_string_value(right), json_string_length(right), err);
    const char *space = text != NULL ? memchr(text, ' ', len) : NULL;
    if (space == NULL || memchr(space + 1, ' ', len - (size_t)(space + 1 - text)) != NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT, "merge %zu: expected two parts",
                         bpe->merge_count);
    return bpe_add_merge(bpe, text, (size_t)(space - text), space + 1,
                         len - (size_t)(space + 1 - text), err);
}

static bool id_of(const json_t *value, uint32_t limit, uint32_t *out)
{
    json_int_t id = json_integer_value(value);

    *out = (uint32_t)id;
    return json_is_integer(value) && id >= 0 && id < (json_int_t)limit;
}

static skep_status refuse_id(struct skep_error *err, const char *place, const char *text,
                             size_t len, uint32_t limit)
{
    char quote[TEXT_QUOTE_BYTES];

    return error_set(err, SKEP_INVALID_ARGUMENT, "%s, %s: expected an id below %u, used once",
                     place, text_quote(text, len, quote), limit);
}

static void set_token(struct tokenizer *t, uint32_t id, const char *text, size_t len, bool special)
{
    t->tokens[id] = (struct token_text){.text = text, .len = len, .special = special};
    if (id >= t->size)
        t->size = id + 1;
}

static skep_status read_vocabulary(struct tokenizer *t, json_t *model, uint32_t limit,
                                   struct skep_error *err)
{
    json_t *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    const json_t *merge;
    const char *text;
    json_t *value;
    size_t text_bytes = 0;
    size_t i;
    skep_status rc;

    json_object_foreach(vocab, text, value)
    {
        text_bytes += strlen(text);
    }
    rc = bpe_init(&t->bpe, json_object_size(vocab), json_array_size(merges), text_bytes, err);
    if (rc != SKEP_OK)
        return rc;
    json_object_foreach(vocab, text, value)
    {
        size_t len = strlen(text);
        uint32_t id;
        if (!id_of(value, limit, &id) || t->tokens[id].text != NULL)
            return refuse_id(err, "model.vocab", text, len, limit);
        const char *copy = t->bpe.text + t->bpe.text_len;
        if (!bpe_add_word(&t->bpe, text, len, id))
            return refuse_id(err, "model.vocab", text, len, limit);
        set_token(t, id, copy, len, false);
    }
    bpe_find_bytes(&t->bpe);
    json_array_foreach(merges, i, merge)
    {
        rc = read_merge(&t->bpe, merge, err);
        if (rc != SKEP_OK) {
            error_prefix(err, "model.merges");
            return rc;
        }
    }
    return read_bool(model, "ignore_merges", false, "model", &t->bpe.ignore_merges, err);
}

/* ---- added tokens ---- */

static skep_status read_added(struct tokenizer *t, const json_t *entry, uint32_t limit,
                              struct added_token *out, struct skep_error *err)
{
    const struct {
        const char *name;
        bool absent;
        bool *value;
    } flags[] = {
        {"special", false, &out->special},      {"single_word", false, &out->single_word},
        {"lstrip", false, &out->lstrip},        {"rstrip", false, &out->rstrip},
        {"normalized", true, &out->normalized},
    };
    const json_t *content = json_object_get(entry, "content");
    struct bytes text = {0};
    skep_status rc = SKEP_OK;

    if (json_string_length(content) == 0)
        return refuse(err, "added_tokens", "content in each");
    if (!id_of(json_object_get(entry, "id"), limit, &out->id))
        return refuse_id(err, "added_tokens", json_string_value(content),
                         json_string_length(content), limit);
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && rc == SKEP_OK; i++)
        rc = read_bool(entry, flags[i].name, flags[i].absent, "added_tokens", flags[i].value, err);
    if (rc != SKEP_OK)
        return rc;
    if (out->normalized && t->nfc)
        rc = tokenizer_nfc(json_string_value(content), json_string_length(content), &text, err);
    else if (!bytes_append(&text, json_string_value(content), json_string_length(content)))
        rc = error_no_memory(err, "an added token", json_string_length(content));
    if (rc == SKEP_OK) {
        out->text = (char *)text.data;
        out->len = text.len;
    } else {
        bytes_free(&text);
    }
    return rc;
}

static skep_status read_added_tokens(struct tokenizer *t, const json_t *list, uint32_t limit,
                                     struct skep_error *err)
{
    size_t count = json_array_size(list);
    struct added_token *token = mem_calloc(count + 1, sizeof(*token));
    skep_status rc = SKEP_OK;
    size_t n = 0;

    if (token == NULL)
        return error_no_memory(err, "added tokens", count * sizeof(*token));
    for (; n < count && rc == SKEP_OK; n++) {
        rc = read_added(t, json_array_get(list, n), limit, &token[n], err);
        if (rc != SKEP_OK)
            break;
    }
    added_tokens_init(&t->added, token, n);
    for (size_t i = 0; i < n; i++)
        set_token(t, token[i].id, token[i].text, token[i].len, token[i].special);
    return rc;
}

/* ---- the file ---- */

/* Checked last, when the vocabulary is known. */
static skep_status check_special(const struct tokenizer *t, const struct token_ids *ids,
                                 struct skep_error *err)
{
    for (size_t i = 0; i < ids->count; i++)
        if (ids->ids[i] >= t->size || t->tokens[ids->ids[i]].text == NULL)
            return error_set(err, SKEP_INVALID_ARGUMENT, "post_processor: no token has the id %u",
                             ids->ids[i]);
    return SKEP_OK;
}

static skep_status read_parts(struct tokenizer *t, json_t *root, struct skep_error *err)
{
    json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    const json_t *decoder = json_object_get(root, "decoder");
    size_t most = json_object_size(json_object_get(model, "vocab")) + json_array_size(added);
    uint32_t limit = (uint32_t)most + MAX_GAP; /* a file of MAX_FILE_BYTES has fewer than 2^28 */
    skep_status rc = check_model(model, err);

    if (rc != SKEP_OK)
        return rc;
    if (strcmp(type_of(decoder), "ByteLevel") != 0)
        return refuse_type(err, "decoder", type_of(decoder), "ByteLevel");
    t->tokens = mem_calloc(limit, sizeof(*t->tokens));
    if (t->tokens == NULL)
        return error_no_memory(err, "a vocabulary", limit * sizeof(*t->tokens));
    rc = read_normalizer(t, json_object_get(root, "normalizer"), 0, err);
    if (rc == SKEP_OK)
        rc = read_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), err);
    if (rc == SKEP_OK)
        rc = read_vocabulary(t, model, limit, err);
    if (rc == SKEP_OK)
        rc = read_added_tokens(t, added, limit, err);
    if (rc == SKEP_OK)
        rc = read_post_processor(t, json_object_get(root, "post_processor"), 0, err);
    if (rc == SKEP_OK)
        rc = check_special(t, &t->prefix, err);
    if (rc == SKEP_OK)
        rc = check_special(t, &t->suffix, err);
    return rc;
}

skep_status tokenizer_parse(const void *json, size_t len, struct tokenizer **out,
                            struct skep_error *err)
{
    struct tokenizer *t = NULL;
    json_error_t reason;
    json_t *root = NULL;
    skep_status rc;

    *out = NULL;
    if (len > MAX_FILE_BYTES)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%zu bytes, expected at most %d", len,
                         (int)MAX_FILE_BYTES);
    root = json_loadb(len > 0 ? json : "", len, JSON_ALLOW_NUL, &reason);
    if (root == NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT, "line %d: %s", reason.line, reason.text);
    t = mem_calloc(1, sizeof(*t));
    rc = t != NULL ? read_parts(t, root, err) : error_no_memory(err, "a tokenizer", sizeof(*t));
    json_decref(root);
    if (rc == SKEP_OK)
        *out = t;
    else
        tokenizer_free(t);
    return rc;
}

skep_status tokenizer_load(const char *path, struct tokenizer **out, struct skep_error *err)
{
    struct file_map map = {0};
    skep_status rc = file_map(&map, path, err);

    *out = NULL;
    if (rc != SKEP_OK)
        return rc;
    rc = tokenizer_parse(map.data, map.len, out, err);
    if (rc != SKEP_OK)
        error_prefix(err, "%s", path);
    file_unmap(&map);
    return rc;
}
