/* Experts out of the checkpoint folder: those that a node was told to host, and those it finds. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "experts/checkpoint_dir.h"
#include "node/lifecycle/node_internal.h"

skep_status node_open_checkpoints(struct skep_node *node, bool for_writing, struct skep_error *err)
{
    struct checkpoint_dir *dir = &node->checkpoints;
    const char *path = node->settings.checkpoint_dir;

    if (path == NULL)
        return SKEP_OK;
    if (dir->path != NULL)
        return for_writing ? checkpoint_dir_lock(dir, err) : SKEP_OK;
    skep_status rc = checkpoint_dir_open(dir, path, for_writing, err);
    if (rc == SKEP_NOT_FOUND && !for_writing) /* it is made then */
        rc = checkpoint_dir_open(dir, path, true, err);
    return rc;
}

/* NULL: as they were saved, which may be to learn. */
static bool may_learn(const struct skep_expert_options *options)
{
    return options == NULL || options->optimizer == NULL || strcmp(options->optimizer, "none") != 0;
}

/* Whether something of what is hosted will have to be saved. */
static bool must_save(const struct skep_node *node)
{
    for (size_t i = 0; i < node->roster.count; i++) {
        const struct local_expert *local = node->roster.items[i];
        if (may_learn(&local->settings.options) ||
            (!local->is_saved && !checkpoint_dir_has(&node->checkpoints, local->uid)))
            return true;
    }
    for (const struct uid_reservation *reservation = node->reservations; reservation != NULL;
         reservation = reservation->next)
        if (may_learn(&reservation->settings.options))
            return true;
    return false;
}

skep_status node_open_checkpoints_as_needed(struct skep_node *node, struct skep_error *err)
{
    skep_status rc = node_open_checkpoints(node, false, err);

    if (rc != SKEP_OK || node->checkpoints.path == NULL || !must_save(node))
        return rc;
    return node_open_checkpoints(node, true, err);
}

static void note_other_uid(const struct checkpoint *c, const char *path, const char *uid)
{
    char quoted[TEXT_QUOTE_BYTES];
    const char *own = checkpoint_header(c)->uid;

    if (strcmp(own, uid) != 0)
        log_warn("%s: was saved as expert %s, is loaded as %s", path,
                 text_quote(own, strlen(own), quoted), uid);
}

static void note_loaded(struct local_expert *local, const struct checkpoint *c, const char *path)
{
    note_other_uid(c, path, local->uid);
    local->is_saved = true;
    atomic_store(&local->kept, true);
    local->saved_updates = expert_update_count(local->expert);
    log_info("expert %s: loaded from %s", local->uid, path);
}

/* --- experts that are hosted anyway -------------------------------------------------------- */

static skep_status use_for_local_expert(void *arg, const struct checkpoint *c, const char *path,
                                        struct skep_error *err)
{
    struct local_expert *local = arg;
    skep_status rc = checkpoint_apply(c, path, local->expert, err);

    if (rc == SKEP_OK)
        note_loaded(local, c, path);
    return rc;
}

skep_status node_restore_expert(struct skep_node *node, struct local_expert *local,
                                struct skep_error *err)
{
    checkpoint_dir_clean(&node->checkpoints, local->uid);
    skep_status rc =
        checkpoint_dir_load(&node->checkpoints, local->uid, use_for_local_expert, local, err);
    if (rc == SKEP_NOT_FOUND) /* a new one */
        return SKEP_OK;
    if (rc != SKEP_OK)
        error_prefix(err, "expert %s", local->uid);
    return rc;
}

skep_status node_restore_experts(struct skep_node *node, struct skep_error *err)
{
    /* Before they are loaded: what another process saves meanwhile would be lost. */
    skep_status rc = node_open_checkpoints_as_needed(node, err);

    if (rc != SKEP_OK || node->checkpoints.path == NULL)
        return rc;
    for (size_t i = 0; i < node->roster.count && rc == SKEP_OK; i++) {
        struct local_expert *local = node->roster.items[i];

        rc = node_check_stop(node, err);
        if (rc == SKEP_OK && !local->is_saved)
            rc = node_restore_expert(node, local, err);
    }
    return rc;
}

/* --- experts that are found ---------------------------------------------------------------- */

void skep_expert_options_unset(struct skep_expert_options *options)
{
    skep_expert_options_init(options);
    options->optimizer = NULL;
    options->schedule = NULL;
    options->precision = NULL;
    options->learning_rate = options->beta1 = options->beta2 = options->eps = NAN;
    options->weight_decay = options->momentum = options->clip_grad_norm = NAN;
    options->warmup_steps = options->training_steps = UINT64_MAX;
}

static void take_number(double *saved, double reservation)
{
    if (!isnan(reservation))
        *saved = reservation;
}

/* What the caller has set wins over what was saved. */
static void take_training(struct skep_expert_options *o,
                          const struct skep_expert_options *reservation)
{
    if (reservation == NULL)
        return;
    if (reservation->optimizer != NULL)
        o->optimizer = reservation->optimizer;
    if (reservation->schedule != NULL)
        o->schedule = reservation->schedule;
    if (reservation->precision != NULL)
        o->precision = reservation->precision;
    take_number(&o->learning_rate, reservation->learning_rate);
    take_number(&o->beta1, reservation->beta1);
    take_number(&o->beta2, reservation->beta2);
    take_number(&o->eps, reservation->eps);
    take_number(&o->weight_decay, reservation->weight_decay);
    take_number(&o->momentum, reservation->momentum);
    take_number(&o->clip_grad_norm, reservation->clip_grad_norm);
    if (reservation->warmup_steps != UINT64_MAX)
        o->warmup_steps = reservation->warmup_steps;
    if (reservation->training_steps != UINT64_MAX)
        o->training_steps = reservation->training_steps;
}

struct loading {
    struct skep_node *node;
    const char *uid;
    const struct skep_expert_options *training; /* NULL: as saved */
    struct local_expert *local;                 /* the result */
};

static skep_status use_for_new(void *arg, const struct checkpoint *c, const char *path,
                               struct skep_error *err)
{
    struct loading *loading = arg;
    struct skep_expert_options options = checkpoint_header(c)->options;
    struct local_expert *local;
    skep_status rc;

    take_training(&options, loading->training);
    rc = local_expert_new(loading->uid, &options, &local, err);
    if (rc != SKEP_OK)
        return rc;
    rc = node_check_memory(loading->node, local, err);
    if (rc == SKEP_OK)
        rc = local_expert_make(local, err);
    if (rc == SKEP_OK)
        rc = checkpoint_apply(c, path, local->expert, err);
    if (rc != SKEP_OK) {
        local_expert_free(local);
        return rc;
    }
    note_loaded(local, c, path);
    loading->local = local;
    return SKEP_OK;
}

static skep_status load_one(struct skep_node *node, const char *uid,
                            const struct skep_expert_options *training, struct skep_error *err)
{
    struct loading loading = {.node = node, .uid = uid, .training = training};
    skep_status rc;

    checkpoint_dir_clean(&node->checkpoints, uid);
    rc = checkpoint_dir_load(&node->checkpoints, uid, use_for_new, &loading, err);
    if (rc != SKEP_OK)
        return rc;
    rc = node_keep_local_expert(node, loading.local, err);
    if (rc != SKEP_OK)
        local_expert_free(loading.local);
    return rc;
}

/* Experts that learn are loaded once nobody else can save them. Where nothing can be written they
 * may still be such as do not learn, as they were saved: the start will tell. */
static skep_status open_for_loading(struct skep_node *node,
                                    const struct skep_expert_options *training,
                                    struct skep_error *err)
{
    skep_status rc = node_check_new(node, "expert loaded", err);

    if (rc == SKEP_OK && node->settings.checkpoint_dir == NULL)
        rc = error_set(err, SKEP_FAILED_PRECONDITION,
                       "node: experts to load, but no checkpoint_dir to load them from");
    if (rc != SKEP_OK)
        return rc;
    rc = node_open_checkpoints(node, may_learn(training), err);
    if (rc == SKEP_PERMISSION_DENIED && (training == NULL || training->optimizer == NULL))
        rc = node_open_checkpoints(node, false, err);
    return rc;
}

skep_status skep_node_load_expert(struct skep_node *node, const char *uid,
                                  const struct skep_expert_options *training,
                                  struct skep_error *err)
{
    struct uid parsed;
    skep_status rc = open_for_loading(node, training, err);

    if (rc == SKEP_OK)
        rc = uid_parse(&parsed, uid, err);
    return rc == SKEP_OK ? load_one(node, uid, training, err) : rc;
}

/* Why an entry of the folder is no expert to load. */
static skep_status check_entry(const struct skep_node *node, const char *name,
                               const struct uid_pattern *pattern, struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES];
    struct uid uid;

    if (!uid_is_valid(name, strlen(name)) || uid_parse(&uid, name, err) != SKEP_OK)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: holds %s, which is no expert UID",
                         node->checkpoints.path, text_quote(name, strlen(name), quoted));
    if (pattern != NULL && !uid_pattern_has(pattern, &uid))
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: expert %s is not of the pattern",
                         node->checkpoints.path, name);
    return checkpoint_dir_check_entry(&node->checkpoints, name, err);
}

/* Loads one entry of the folder, or says why not. @param err  not NULL. */
static skep_status load_entry(struct skep_node *node, const char *name,
                              const struct uid_pattern *pattern,
                              const struct skep_expert_options *training, size_t *loaded,
                              struct skep_error *err)
{
    bool strict = node->settings.options.strict_checkpoints;
    skep_status rc = check_entry(node, name, pattern, err);

    if (rc == SKEP_OK && roster_lists(&node->roster, name))
        return SKEP_OK;
    if (rc == SKEP_OK) {
        rc = load_one(node, name, training, err);
        if (rc == SKEP_OK)
            ++*loaded;
        else if (rc == SKEP_RESOURCE_EXHAUSTED)
            return rc;
        else if (rc == SKEP_NOT_FOUND)
            strict = false; /* its first save was cut short: nothing is lost */
    }
    if (rc == SKEP_OK)
        return SKEP_OK;
    if (strict) { /* the folder is not as it should be; the call is */
        err->status = SKEP_FAILED_PRECONDITION;
        return err->status;
    }
    log_warn("%s; not loaded", err->message);
    return SKEP_OK;
}

/* --- experts of a pattern that go on -------------------------------------------------------- */

struct kept {
    const struct skep_expert_options *reservation;
    bool fits;
};

static skep_status compare_kept(void *arg, const struct checkpoint *c, const char *path,
                                struct skep_error *err)
{
    struct kept *kept = arg;
    const struct skep_expert_options *o = &checkpoint_header(c)->options;
    struct expert_description reserved, saved;

    kept->fits = strcmp(o->cls, kept->reservation->cls) == 0 &&
                 o->hidden_dim == kept->reservation->hidden_dim &&
                 expert_describe(o, &saved, err) == SKEP_OK &&
                 expert_describe(kept->reservation, &reserved, err) == SKEP_OK &&
                 saved.parameters == reserved.parameters;
    if (!kept->fits)
        log_warn("%s: expert of class %s and width %" PRId64 " is not hosted: asked for are %s of "
                 "%" PRId64,
                 path, o->cls, o->hidden_dim, kept->reservation->cls,
                 kept->reservation->hidden_dim);
    return SKEP_OK;
}

skep_status node_find_saved(struct skep_node *node, const struct uid_reservation *reservation,
                            char (*uids)[UID_BYTES], size_t *count, struct skep_error *err)
{
    char **names = NULL;
    size_t name_count = 0;
    skep_status rc = node_open_checkpoints(node, may_learn(&reservation->settings.options), err);

    *count = 0;
    if (rc == SKEP_OK)
        rc = checkpoint_dir_list(&node->checkpoints, &names, &name_count, err);
    for (size_t i = 0; i < name_count && rc == SKEP_OK; i++) {
        struct kept kept = {.reservation = &reservation->settings.options, .fits = false};

        rc = node_check_stop(node, err);
        if (rc != SKEP_OK || check_entry(node, names[i], &reservation->pattern, NULL) != SKEP_OK ||
            roster_lists(&node->roster, names[i]))
            continue;
        rc = checkpoint_dir_peek(&node->checkpoints, names[i], compare_kept, &kept, err);
        if (rc == SKEP_NOT_FOUND) /* its first save was cut short */
            rc = SKEP_OK;
        if (kept.fits && (*count)++ < reservation->count)
            snprintf(uids[*count - 1], UID_BYTES, "%s", names[i]);
    }
    checkpoint_dir_free_names(names, name_count);
    return rc;
}

skep_status skep_node_load_experts(struct skep_node *node, const char *pattern,
                                   const struct skep_expert_options *training, size_t *count,
                                   struct skep_error *err)
{
    struct skep_error own = {0}; /* warnings need it */
    struct skep_error *why = err != NULL ? err : &own;
    struct uid_pattern parsed;
    char **names = NULL;
    size_t name_count = 0;
    size_t loaded = 0;
    uint64_t next_us = clock_deadline_us(PROGRESS_LOG_MS);
    skep_status rc = open_for_loading(node, training, why);

    if (rc == SKEP_OK && pattern != NULL)
        rc = uid_pattern_parse(&parsed, pattern, why);
    if (rc == SKEP_OK)
        rc = checkpoint_dir_list(&node->checkpoints, &names, &name_count, why);
    for (size_t i = 0; i < name_count && rc == SKEP_OK; i++) {
        rc = load_entry(node, names[i], pattern != NULL ? &parsed : NULL, training, &loaded, why);
        node_log_progress("folders of experts read", i + 1, name_count, &next_us);
    }
    checkpoint_dir_free_names(names, name_count);
    if (rc == SKEP_OK && loaded == 0)
        log_warn("%s: no expert to load", node->checkpoints.path);
    if (count != NULL)
        *count = rc == SKEP_OK ? loaded : 0;
    return rc;
}
