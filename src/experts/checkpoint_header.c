/* A checkpoint's metadata: one table of fields, for writing and for reading. */
#include "experts/checkpoint_internal.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "base/text.h"

enum field_kind { FIELD_TEXT, FIELD_INT, FIELD_COUNT, FIELD_NUMBER, FIELD_FLAG };
enum field_need {
    NEEDED,   /* a file without it is no checkpoint */
    OPTIONAL, /* later versions added it: the default stands for it */
    TRAINING, /* all of them or none */
};

struct field {
    const char *key;
    enum field_kind kind;
    enum field_need need;
    size_t offset; /* in struct checkpoint_header */
};

#define OPTION(name, kind, need)                                                                   \
    {                                                                                              \
        "skep." #name, kind, need, offsetof(struct checkpoint_header, options.name)                \
    }
#define COUNTER(name)                                                                              \
    {                                                                                              \
        "skep." #name, FIELD_COUNT, NEEDED, offsetof(struct checkpoint_header, counters.name)      \
    }

static const struct field fields[] = {
    {"skep.uid", FIELD_TEXT, NEEDED, offsetof(struct checkpoint_header, uid)},
    {"skep.class", FIELD_TEXT, NEEDED, offsetof(struct checkpoint_header, options.cls)},
    OPTION(hidden_dim, FIELD_INT, NEEDED),
    OPTION(intermediate_dim, FIELD_INT, OPTIONAL),
    OPTION(padding_mask, FIELD_FLAG, OPTIONAL),
    OPTION(max_sequence, FIELD_INT, OPTIONAL),
    OPTION(float_mask, FIELD_FLAG, OPTIONAL),
    OPTION(evaluation, FIELD_FLAG, OPTIONAL),
    OPTION(precision, FIELD_TEXT, OPTIONAL),
    OPTION(argument, FIELD_TEXT, OPTIONAL),
    COUNTER(updates),
    COUNTER(skipped),
    COUNTER(steps),
    OPTION(optimizer, FIELD_TEXT, TRAINING),
    OPTION(learning_rate, FIELD_NUMBER, TRAINING),
    OPTION(beta1, FIELD_NUMBER, TRAINING),
    OPTION(beta2, FIELD_NUMBER, TRAINING),
    OPTION(eps, FIELD_NUMBER, TRAINING),
    OPTION(weight_decay, FIELD_NUMBER, TRAINING),
    OPTION(momentum, FIELD_NUMBER, TRAINING),
    OPTION(clip_grad_norm, FIELD_NUMBER, TRAINING),
    OPTION(schedule, FIELD_TEXT, TRAINING),
    OPTION(warmup_steps, FIELD_COUNT, TRAINING),
    OPTION(training_steps, FIELD_COUNT, TRAINING),
};

#define FIELD_TOTAL (sizeof(fields) / sizeof(fields[0]))
_Static_assert(FIELD_TOTAL < HEADER_MAX_FIELDS, "header_texts has room for all fields");

static const char version_key[] = "skep.format";

static const char *print_field(const struct field *f, const void *at, char *room)
{
    if (f->kind == FIELD_TEXT)
        return *(const char *const *)at;
    if (f->kind == FIELD_FLAG)
        return *(const bool *)at ? "true" : "false";
    if (f->kind == FIELD_INT)
        snprintf(room, HEADER_TEXT_BYTES, "%" PRId64, *(const int64_t *)at);
    else if (f->kind == FIELD_COUNT)
        snprintf(room, HEADER_TEXT_BYTES, "%" PRIu64, *(const uint64_t *)at);
    else
        number_print(room, HEADER_TEXT_BYTES, "%.17g", *(const double *)at);
    return room;
}

void header_write(const struct checkpoint_header *header, struct header_texts *out)
{
    size_t n = 0;

    snprintf(out->numbers[FIELD_TOTAL], HEADER_TEXT_BYTES, "%d", CHECKPOINT_VERSION);
    out->pairs[n++] = version_key;
    out->pairs[n++] = out->numbers[FIELD_TOTAL];
    for (size_t i = 0; i < FIELD_TOTAL; i++) {
        if (fields[i].need == TRAINING && !header->has_training)
            continue;
        if (fields[i].need == OPTIONAL && fields[i].kind == FIELD_TEXT &&
            *(const char *const *)((const char *)header + fields[i].offset) == NULL)
            continue;
        out->pairs[n++] = fields[i].key;
        out->pairs[n++] =
            print_field(&fields[i], (const char *)header + fields[i].offset, out->numbers[i]);
    }
    out->pairs[n] = NULL;
}

static bool read_int(const char *text, int64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno == 0 && end != text && *end == '\0';
}

static bool read_count(const char *text, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && text[0] >= '0' && text[0] <= '9' && *end == '\0';
}

/* Earlier versions wrote "0,0015" in programs that had set such a locale. */
static bool read_number(const char *text, double *out)
{
    char copy[HEADER_TEXT_BYTES];
    char *end;

    if ((size_t)snprintf(copy, sizeof(copy), "%s", text) >= sizeof(copy))
        return false;
    char *comma = strchr(copy, ',');
    if (comma != NULL)
        *comma = '.';
    *out = number_parse(copy, &end);
    return end != copy && *end == '\0' && isfinite(*out);
}

static bool read_flag(const char *text, bool *out)
{
    *out = strcmp(text, "true") == 0;
    return *out || strcmp(text, "false") == 0;
}

static bool read_field(const struct field *f, const char *text, void *at)
{
    switch (f->kind) {
    case FIELD_TEXT:
        *(const char **)at = text;
        return true;
    case FIELD_INT:
        return read_int(text, at);
    case FIELD_COUNT:
        return read_count(text, at);
    case FIELD_NUMBER:
        return read_number(text, at);
    case FIELD_FLAG:
        return read_flag(text, at);
    }
    return false;
}

static skep_status check_version(const char *text, struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES];
    int64_t version;

    if (text == NULL)
        return error_set(err, SKEP_DATA_LOSS,
                         "no checkpoint: its metadata has no skep.format; plain weights are read "
                         "by skep import");
    if (!read_int(text, &version) || version != CHECKPOINT_VERSION)
        return error_set(err, SKEP_DATA_LOSS, "checkpoint: format %s, expected %d",
                         text_quote(text, strlen(text), quoted), CHECKPOINT_VERSION);
    return SKEP_OK;
}

skep_status header_read(const struct skep_safetensors *file, struct checkpoint_header *header,
                        struct header_texts *texts, struct skep_error *err)
{
    const char *version = skep_safetensors_metadata(file, version_key);
    skep_status rc = check_version(version, err);
    char quoted[TEXT_QUOTE_BYTES];
    size_t n = 0;

    if (rc != SKEP_OK)
        return rc;
    *header = (struct checkpoint_header){0};
    skep_expert_options_init(&header->options);
    header->has_training = skep_safetensors_metadata(file, "skep.optimizer") != NULL;
    texts->pairs[n++] = version_key;
    texts->pairs[n++] = version;
    for (size_t i = 0; i < FIELD_TOTAL; i++) {
        const struct field *f = &fields[i];
        const char *text = skep_safetensors_metadata(file, f->key);

        if (text == NULL && (f->need == OPTIONAL || (f->need == TRAINING && !header->has_training)))
            continue;
        if (text == NULL)
            return error_set(err, SKEP_DATA_LOSS, "checkpoint: its metadata has no %s", f->key);
        if (!read_field(f, text, (char *)header + f->offset))
            return error_set(err, SKEP_DATA_LOSS, "checkpoint: %s is %s", f->key,
                             text_quote(text, strlen(text), quoted));
        texts->pairs[n++] = f->key;
        texts->pairs[n++] = text;
    }
    texts->pairs[n] = NULL;
    return SKEP_OK;
}
