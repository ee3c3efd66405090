/* Options from the command line, the environment, a file and defaults, in this order of rank. */
#include "cli/options.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <skep/log.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "base/number.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/environment.h"
#include "cli/options_internal.h"
#include "cli/output.h"

enum { CONFIG_OPTION, LOG_LEVEL_OPTION, LOG_FORMAT_OPTION, HELP_OPTION, VERSION_OPTION };

const struct option_spec option_common[COMMON_OPTIONS] = {
    [CONFIG_OPTION] = {.name = "config",
                       .kind = OPTION_STRING,
                       .placeholder = "PATH",
                       .help = "a file with values for these options"},
    [LOG_LEVEL_OPTION] = {.name = "log-level",
                          .kind = OPTION_CHOICE,
                          .choices = "error|warning|info|debug",
                          .help = "minimum severity of log lines"},
    [LOG_FORMAT_OPTION] = {.name = "log-format",
                           .kind = OPTION_CHOICE,
                           .choices = "text|json",
                           .default_text = "text",
                           .help = "form of the log lines on standard error; json: one object a "
                                   "line"},
    [HELP_OPTION] = {.name = "help", .kind = OPTION_FLAG, .help = "show this help; also -h"},
    [VERSION_OPTION] = {.name = "version",
                        .kind = OPTION_FLAG,
                        .help = "show the version of Skep and of its libraries; also -v"},
};

const struct option_spec *option_at(const struct option_table *table, size_t i)
{
    return i < COMMON_OPTIONS ? &option_common[i] : &table->specs[i - COMMON_OPTIONS];
}

size_t option_total(const struct option_table *table)
{
    return COMMON_OPTIONS + table->count;
}

size_t option_find(const struct option_table *table, const char *name, size_t len)
{
    size_t i = 0;

    for (; i < option_total(table); i++) {
        const char *other = option_at(table, i)->name;
        if (strlen(other) == len && memcmp(other, name, len) == 0)
            break;
    }
    return i;
}

const char *option_default(const struct option_table *table, const struct option_spec *spec)
{
    if (spec == &option_common[LOG_LEVEL_OPTION])
        return table->log_level != NULL ? table->log_level : "warning";
    return spec->default_text;
}

void option_value_clear(struct option_value *value)
{
    for (size_t i = 0; i < value->count; i++)
        mem_free(value->texts[i]);
    mem_free(value->texts);
    mem_free(value->earlier);
    *value = (struct option_value){0};
}

/* Appends a text to a value's list of texts. */
static skep_status keep_text(struct option_value *value, const char *text, size_t len,
                             struct skep_error *err)
{
    char **texts = mem_realloc(value->texts, (value->count + 2) * sizeof(*texts));

    if (texts == NULL)
        return error_no_memory(err, "options", (value->count + 2) * sizeof(*texts));
    value->texts = texts;
    texts[value->count] = mem_alloc(len + 1);
    if (texts[value->count] == NULL)
        return error_no_memory(err, "options", len + 1);
    memcpy(texts[value->count], text, len);
    texts[value->count][len] = '\0';
    texts[++value->count] = NULL;
    return SKEP_OK;
}

static skep_status append_list(const struct option_spec *spec, struct option_value *value,
                               const char *text, const char *where, struct skep_error *err)
{
    const char *p = text;

    for (;;) {
        const char *end = strchrnul(p, ',');
        const char *next = *end == ',' ? end + 1 : NULL;
        while (p < end && ascii_is_space(*p))
            p++;
        while (end > p && ascii_is_space(end[-1]))
            end--;
        if (p == end) {
            char quoted[TEXT_QUOTE_BYTES];
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "%s: %s has an empty element, expected a list separated by commas",
                             where, text_quote(text, strlen(text), quoted));
        }
        skep_status rc = keep_text(value, p, (size_t)(end - p), err);
        if (rc == SKEP_OK)
            rc = option_parse_text(spec, value->texts[value->count - 1], where, value, err);
        if (rc != SKEP_OK || next == NULL)
            return rc;
        p = next;
    }
}

/* Puts a text behind those of a list, or in place of another value: the last one of a command line
 * counts. */
static skep_status set_value(const struct option_spec *spec, struct option_value *value,
                             enum option_source source, const char *text, const char *where,
                             struct skep_error *err)
{
    if (spec->kind == OPTION_LIST) {
        value->source = source;
        return append_list(spec, value, text, where, err);
    }
    char *earlier = NULL;
    if (source == SOURCE_COMMAND_LINE && value->source == source && value->count > 0 &&
        strcmp(value->texts[0], text) != 0) {
        earlier = mem_strdup(value->texts[0]);
        if (earlier == NULL)
            return error_no_memory(err, "options", strlen(value->texts[0]) + 1);
    }
    option_value_clear(value);
    value->earlier = earlier;
    value->source = source;
    skep_status rc = keep_text(value, text, strlen(text), err);
    return rc != SKEP_OK ? rc : option_parse_text(spec, text, where, value, err);
}

bool option_is_answered(size_t i)
{
    return i == HELP_OPTION || i == VERSION_OPTION;
}

/* Gives a text to an option, as option_assign() after quotes have been taken off. */
static skep_status assign(struct options *o, size_t i, enum option_source source, const char *text,
                          const char *where, struct skep_error *err)
{
    const struct option_spec *spec = option_at(o->table, i);
    struct option_value *value = &o->values[i];
    struct option_value unused = {0};

    if (value->source == SOURCE_UNSET || value->source >= source)
        return set_value(spec, value, source, text, where, err);
    /* The environment is shared by commands that may know other values; a file is not: a mistake
     * in it would come to light when whatever wins over it is left out. */
    if (source != SOURCE_FILE)
        return SKEP_OK;
    skep_status rc = set_value(spec, &unused, source, text, where, err);
    option_value_clear(&unused);
    return rc;
}

skep_status option_assign(struct options *o, size_t i, enum option_source source, const char *text,
                          const char *where, struct skep_error *err)
{
    char *bare = NULL;
    skep_status rc = SKEP_OK;

    /* On the command line the shell has taken them off; what is left there is meant. */
    if (source == SOURCE_ENVIRONMENT || source == SOURCE_FILE) {
        bare = mem_strdup(text);
        if (bare == NULL)
            return error_no_memory(err, "options", strlen(text) + 1);
        rc = option_unquote(bare, option_at(o->table, i)->kind == OPTION_LIST, where, err);
    }
    if (rc == SKEP_OK)
        rc = assign(o, i, source, bare != NULL ? bare : text, where, err);
    mem_free(bare);
    return rc;
}

/* One "--name", "--name=value" or "--name value"; *at moves on if the next argument is taken. */
static skep_status parse_option(struct options *o, int argc, char **argv, int *at,
                                struct skep_error *err)
{
    const char *name = argv[*at] + 2;
    const char *equals = strchrnul(name, '=');
    size_t i = option_find(o->table, name, (size_t)(equals - name));
    char where[OPTION_WHERE_BYTES], hint[OPTION_WHERE_BYTES];
    const char *text = *equals == '=' ? equals + 1 : NULL;

    snprintf(where, sizeof(where), "--%.*s", (int)(equals - name), name);
    if (i == option_total(o->table))
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: unknown option%s", where,
                         option_suggestion(o->table, where + 2, "--", hint, sizeof(hint)));
    const struct option_spec *spec = option_at(o->table, i);
    if (text == NULL && spec->kind == OPTION_FLAG)
        text = "true";
    if (text == NULL && *at + 1 < argc && strncmp(argv[*at + 1], "--", 2) != 0)
        text = argv[++*at];
    if (text == NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: no value, expected %s", where,
                         option_expected(spec, hint, sizeof(hint)));
    return option_assign(o, i, SOURCE_COMMAND_LINE, text, where, err);
}

static skep_status parse_command_line(struct options *o, int argc, char **argv,
                                      struct skep_error *err)
{
    bool only_positional = false;
    skep_status rc = SKEP_OK;

    for (int i = 1; i < argc && rc == SKEP_OK; i++) {
        const char *arg = argv[i];
        if (only_positional || arg[0] != '-' || arg[1] == '\0') {
            o->positional[o->positional_count++] = argv[i];
        } else if (strcmp(arg, "--") == 0) {
            only_positional = true;
        } else if (strcmp(arg, "-h") == 0) {
            o->help = true;
        } else if (cli_asks_for_version(arg)) {
            o->version = true;
        } else if (arg[1] != '-') {
            rc = error_set(err, SKEP_INVALID_ARGUMENT,
                           "%s: unknown option, expected --name or --name=value", arg);
        } else {
            rc = parse_option(o, argc, argv, &i, err);
        }
    }
    o->help |= o->values[HELP_OPTION].flag;
    o->version |= o->values[VERSION_OPTION].flag;
    return rc;
}

static skep_status parse_environment(struct options *o, struct skep_error *err)
{
    char name[ENVIRONMENT_NAME_BYTES];
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < option_total(o->table) && rc == SKEP_OK; i++) {
        if (option_is_answered(i))
            continue;
        environment_name(option_at(o->table, i)->name, name);
        const char *text = getenv(name);
        if (text != NULL && text[0] != '\0' && !environment_is_service_link(name, text))
            rc = option_assign(o, i, SOURCE_ENVIRONMENT, text, name, err);
    }
    return rc;
}

static skep_status apply_defaults(struct options *o, struct skep_error *err)
{
    char where[OPTION_NAME_BYTES], expected[OPTION_WHERE_BYTES];

    for (size_t i = 0; i < option_total(o->table); i++) {
        const struct option_spec *spec = option_at(o->table, i);
        const char *text = option_default(o->table, spec);
        snprintf(where, sizeof(where), "--%s", spec->name);
        if (o->values[i].source != SOURCE_UNSET)
            continue;
        if (spec->required)
            return error_set(err, SKEP_INVALID_ARGUMENT, "%s: missing, expected %s", where,
                             option_expected(spec, expected, sizeof(expected)));
        if (text == NULL)
            continue;
        skep_status rc = option_assign(o, i, SOURCE_DEFAULT, text, where, err);
        if (rc != SKEP_OK)
            return rc;
    }
    return SKEP_OK;
}

static skep_status check_positional(const struct options *o, struct skep_error *err)
{
    const struct option_table *table = o->table;
    const size_t least = (size_t)table->positional_min;
    const size_t most = table->positional == NULL   ? 0
                        : table->positional_max < 0 ? SIZE_MAX
                                                    : (size_t)table->positional_max;
    char quoted[TEXT_QUOTE_BYTES];

    if (o->positional_count > most) {
        const char *first = o->positional[most];
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: unexpected argument, expected %s",
                         text_quote(first, strlen(first), quoted),
                         most == 0 ? "options only" : table->positional);
    }
    if (o->positional_count < least)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s, expected %s",
                         o->positional_count == 0 ? "no argument" : "too few arguments",
                         table->positional);
    return SKEP_OK;
}

skep_status options_parse(struct options *out, const struct option_table *table, int argc,
                          char **argv, struct skep_error *err)
{
    struct options o = {.table = table};
    skep_status rc = SKEP_OK;

    *out = (struct options){0};
    o.values = mem_calloc(option_total(table), sizeof(*o.values));
    o.positional = mem_calloc((size_t)argc + 1, sizeof(*o.positional));
    if (o.values == NULL || o.positional == NULL)
        rc = error_no_memory(err, "options", option_total(table) * sizeof(*o.values));
    if (rc == SKEP_OK)
        rc = parse_command_line(&o, argc, argv, err);
    bool is_answer = o.help || o.version; /* the rest is not looked at */
    if (rc == SKEP_OK && !is_answer)
        rc = parse_environment(&o, err);
    if (rc == SKEP_OK && !is_answer && o.values[CONFIG_OPTION].source != SOURCE_UNSET)
        rc = option_load_config(&o, o.values[CONFIG_OPTION].texts[0], err);
    if (rc == SKEP_OK && !is_answer)
        rc = apply_defaults(&o, err);
    if (rc == SKEP_OK && !is_answer)
        rc = check_positional(&o, err);
    if (rc != SKEP_OK) {
        options_free(&o);
        return rc;
    }
    *out = o;
    return SKEP_OK;
}

void options_free(struct options *o)
{
    if (o == NULL)
        return;
    for (size_t i = 0; o->values != NULL && i < option_total(o->table); i++)
        option_value_clear(&o->values[i]);
    mem_free(o->values);
    mem_free(o->positional);
    *o = (struct options){0};
}

/* Scripts append options to override those before, so it is no mistake; but who edits a long line
 * may not see both. */
void options_warn_of_repeated(const struct options *o)
{
    char first[TEXT_QUOTE_BYTES], last[TEXT_QUOTE_BYTES];

    for (size_t i = 0; i < option_total(o->table); i++) {
        const struct option_value *value = &o->values[i];
        if (value->earlier != NULL && value->count > 0)
            log_warn("--%s: given as %s and again as %s: the last one counts",
                     option_at(o->table, i)->name,
                     text_quote(value->earlier, strlen(value->earlier), first),
                     text_quote(value->texts[0], strlen(value->texts[0]), last));
    }
}

static void set_log_level(const struct options *o)
{
    static const char *const names[] = {
        [SKEP_LOG_ERROR] = "error",
        [SKEP_LOG_WARNING] = "warning",
        [SKEP_LOG_INFO] = "info",
        [SKEP_LOG_DEBUG] = "debug",
    };
    const char *name = options_string(o, "log-level");

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            skep_log_set((enum skep_log_level)i, NULL, NULL);
}

bool options_begin(struct options *out, const struct option_table *table, int argc, char **argv,
                   int *exit_code)
{
    struct skep_error err = {0};
    skep_status rc = options_parse(out, table, argc, argv, &err);

    if (rc == SKEP_INVALID_ARGUMENT) {
        *exit_code = cli_usage_error(table->command, "%s", err.message);
        return false;
    }
    if (rc != SKEP_OK) {
        /* A --config file that cannot be read is bad usage too, not "expert not found". */
        cli_fail(table->command, &err);
        *exit_code = CLI_USAGE;
        return false;
    }
    if (out->help || out->version) {
        *exit_code = CLI_DONE;
        if (out->help)
            options_print_help(table, stdout);
        else
            *exit_code = cli_print_version();
        options_free(out);
        return false;
    }
    set_log_level(out);
    log_set_format(strcmp(options_string(out, "log-format"), "json") == 0 ? LOG_FORMAT_JSON
                                                                          : LOG_FORMAT_TEXT);
    environment_warn();
    options_warn_of_repeated(out);
    return true;
}

/* The value of an option; a name or kind that is not in the table is a mistake of ours. */
static const struct option_value *value_of(const struct options *o, const char *name,
                                           enum option_kind kind, enum option_kind other)
{
    size_t i = option_find(o->table, name, strlen(name));

    if (i == option_total(o->table) ||
        (option_at(o->table, i)->kind != kind && option_at(o->table, i)->kind != other)) {
        fprintf(stderr, "skep: option \"%s\" is not in the table of \"%s\" under this kind\n", name,
                o->table->command);
        abort();
    }
    return &o->values[i];
}

const char *options_string(const struct options *o, const char *name)
{
    const struct option_value *value = value_of(o, name, OPTION_STRING, OPTION_CHOICE);

    return value->count > 0 ? value->texts[0] : NULL;
}

bool options_flag(const struct options *o, const char *name)
{
    return value_of(o, name, OPTION_FLAG, OPTION_FLAG)->flag;
}

int64_t options_int(const struct options *o, const char *name)
{
    return value_of(o, name, OPTION_INT, OPTION_INT)->integer;
}

double options_float(const struct options *o, const char *name)
{
    return value_of(o, name, OPTION_FLOAT, OPTION_FLOAT)->number;
}

const struct endpoint *options_endpoint(const struct options *o, const char *name)
{
    const struct option_value *value = value_of(o, name, OPTION_ENDPOINT, OPTION_ENDPOINT);

    return value->count > 0 ? &value->endpoint : NULL;
}

const char *const *options_list(const struct options *o, const char *name, size_t *count)
{
    const struct option_value *value = value_of(o, name, OPTION_LIST, OPTION_LIST);

    *count = value->count;
    return (const char *const *)value->texts;
}

bool options_in_force(const struct options *o, const char *name)
{
    size_t i = option_find(o->table, name, strlen(name));

    return options_given(o, name) &&
           (option_at(o->table, i)->kind != OPTION_FLAG || o->values[i].flag);
}

static enum option_source source_of(const struct options *o, const char *name)
{
    return o->values[option_find(o->table, name, strlen(name))].source;
}

static const char *place_of(const struct options *o, const char *name)
{
    return source_of(o, name) == SOURCE_FILE ? "configuration file" : "environment";
}

/* As if it had not been given. */
static int take_out(struct options *o, const char *name)
{
    size_t i = option_find(o->table, name, strlen(name));
    const char *text = option_default(o->table, option_at(o->table, i));
    struct skep_error err = {0};

    option_value_clear(&o->values[i]);
    if (text == NULL || option_assign(o, i, SOURCE_DEFAULT, text, name, &err) == SKEP_OK)
        return CLI_DONE;
    return cli_fail_before(o->table->command, &err);
}

int options_idle(struct options *o, const char *name, const char *why, ...)
{
    char text[256];
    va_list args;

    if (!options_in_force(o, name))
        return CLI_DONE;
    va_start(args, why);
    number_vprint(text, sizeof(text), why, args);
    va_end(args);
    if (source_of(o, name) == SOURCE_COMMAND_LINE)
        return cli_usage_error(o->table->command, "--%s: %s", name, text);
    log_warn("--%s, as the %s has it: %s", name, place_of(o, name), text);
    return take_out(o, name);
}

int options_outrank(struct options *o, const char *name, const char *other)
{
    if (!options_in_force(o, name) || !options_in_force(o, other) ||
        source_of(o, name) == source_of(o, other))
        return CLI_DONE;
    bool goes = source_of(o, name) > source_of(o, other);
    const char *lower = goes ? name : other;
    const char *higher = goes ? other : name;
    /* Who has a variable for every day and says otherwise on a command line needs no reminder. */
    bool is_plain =
        source_of(o, lower) == SOURCE_ENVIRONMENT && source_of(o, higher) == SOURCE_COMMAND_LINE;
    LOG_AT(is_plain ? SKEP_LOG_DEBUG : SKEP_LOG_WARNING,
           "--%s, as the %s has it: left out, as --%s, %s%s, contradicts it", lower,
           place_of(o, lower), higher,
           source_of(o, higher) == SOURCE_COMMAND_LINE ? "on the command line" : "of the ",
           source_of(o, higher) == SOURCE_COMMAND_LINE ? "" : place_of(o, higher));
    return take_out(o, lower);
}

int options_contrary(struct options *o, const char *name, const char *other, const char *why)
{
    int code = options_outrank(o, name, other);

    if (code == CLI_DONE && options_in_force(o, other))
        code = options_idle(o, name, "%s", why);
    return code;
}

int options_needs(struct options *o, const char *name, const char *other)
{
    return options_in_force(o, other) ? CLI_DONE : options_idle(o, name, "needs --%s", other);
}

bool options_given(const struct options *o, const char *name)
{
    size_t i = option_find(o->table, name, strlen(name));

    return i < option_total(o->table) && o->values[i].source != SOURCE_UNSET &&
           o->values[i].source != SOURCE_DEFAULT;
}
