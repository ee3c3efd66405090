/*
 * A mixture of experts: for each digit a gating network scores the coordinates of the grid, and the
 * four best experts are asked. The scores come from a linear projection that the layer holds; it is
 * trained here, by the gradient that the layer's backward returns. The experts train at their
 * nodes.
 *
 * Nothing that happens to a node stops training: the layer waits for stragglers no longer than its
 * timeout, passes over nodes that failed lately, and leaves out digits for which nothing answers.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "adam.h"
#include "digits.h"

enum {
    K_BEST = 4,
    K_MIN = 1,
    STRAGGLERS = 2, /* get this share of the timeout once each digit has an answer */
    /* Without any answer for so many timeouts, training ends. */
    PATIENCE = 10,
    EMPTY_PAUSE_MS = 20, /* before the next pass, when there was nobody to ask */
};

/* An expert of the grid, as seen from here. */
struct seen {
    uint64_t calls, failures, samples; /* samples: forward, answered */
    bool failing;                      /* when it was last asked */
    char peer_id[SKEP_PEER_ID_TEXT_BYTES];
    char endpoint[SKEP_ENDPOINT_TEXT_BYTES];
    bool known; /* in the swarm; with the two before, as of look_around() */
};

struct mixture {
    struct model model;
    struct skep_moe *layer;
    struct skep_watch *watch;   /* who serves what: a live view, so that searches ask nobody */
    struct skep_moe_pass *pass; /* of the last forward; NULL if it failed */
    const struct settings *settings;
    char prefix[SKEP_UID_BYTES];

    float *weight_m, *weight_v, *bias_m, *bias_v; /* owned: of Adam */
    int steps;

    struct seen seen[MAX_EXPERTS];
    size_t known, failing;
    uint64_t passes, missing; /* missing: samples that nothing answered for */
    double last_end_s;        /* of a pass with answers; 0: there was none yet */
    double longest_pause_s;   /* between the ends of two passes with answers */
    double longest_pass_s;    /* of one pass, whatever came of it */
};

/* ---- what is seen */

/* The entry of an expert; NULL if it is not of the grid. */
static struct seen *seen_of(struct mixture *m, const char *uid)
{
    const struct settings *s = m->settings;
    int row, column, end = 0;

    if (strncmp(uid, m->prefix, strlen(m->prefix)) != 0 ||
        sscanf(uid + strlen(m->prefix), "%d.%d%n", &row, &column, &end) != 2 ||
        uid[strlen(m->prefix) + (size_t)end] != '\0' || row < 0 || row >= s->rows || column < 0 ||
        column >= s->columns)
        return NULL;
    return &m->seen[row * s->columns + column];
}

static void on_known(void *arg, const char *uid, const struct skep_provider *providers,
                     size_t count)
{
    struct mixture *m = arg;
    struct seen *e = seen_of(m, uid);

    if (e == NULL || count == 0)
        return;
    e->known = true;
    memcpy(e->peer_id, providers[0].peer_id, sizeof(e->peer_id));
    memcpy(e->endpoint, providers[0].endpoint, sizeof(e->endpoint));
    m->known++;
    m->failing += e->failing;
}

/* Counts who is there now. */
static void look_around(struct mixture *m)
{
    m->known = m->failing = 0;
    for (int i = 0; i < MAX_EXPERTS; i++)
        m->seen[i].known = false;
    skep_watch_each(m->watch, on_known, m);
}

/* How each expert's call of this pass ended. Experts are asked once for all their samples. */
static void note_calls(struct mixture *m, int rows, bool backward)
{
    struct skep_moe_choice choice;
    bool noted[MAX_EXPERTS] = {false};

    for (int i = 0; i < rows; i++) {
        for (size_t rank = 0; skep_moe_pass_choice(m->pass, (size_t)i, rank, &choice); rank++) {
            skep_status status = backward ? choice.backward_status : choice.status;
            struct seen *e = seen_of(m, choice.uid);
            if (e == NULL || status == SKEP_CANCELLED)
                continue;
            e->samples += !backward && status == SKEP_OK;
            if (noted[e - m->seen])
                continue;
            noted[e - m->seen] = true;
            e->calls++;
            e->failures += status != SKEP_OK;
            e->failing = status != SKEP_OK;
        }
    }
}

/* Times a pass that has begun at start_s and ends now. */
static void note_time(struct mixture *m, double start_s, bool answered)
{
    double now_s = seconds_now();

    m->passes++;
    if (now_s - start_s > m->longest_pass_s)
        m->longest_pass_s = now_s - start_s;
    if (m->last_end_s == 0)
        m->last_end_s = start_s;
    if (now_s - m->last_end_s > m->longest_pause_s)
        m->longest_pause_s = now_s - m->last_end_s;
    if (answered)
        m->last_end_s = now_s;
}

/* ---- passes */

static int take_output(struct mixture *m, DLManagedTensor *y, int rows, float *out, bool *answered)
{
    int count = 0;

    memcpy(out, skep_tensor_data(&y->dl_tensor), (size_t)rows * FEATURES * sizeof(*out));
    for (int i = 0; i < rows; i++) {
        answered[i] = skep_moe_pass_answers(m->pass, (size_t)i) >= K_MIN;
        count += answered[i];
    }
    return count;
}

static bool mixture_forward(struct model *model, float *x, int rows, float *out, bool *answered)
{
    struct mixture *m = (struct mixture *)model;
    int64_t shape[2] = {rows, FEATURES};
    DLTensor input = matrix(x, shape);
    DLManagedTensor *y = NULL;
    struct skep_error err;
    double start_s = seconds_now();
    bool complete = false;
    int count = 0;

    skep_moe_pass_free(m->pass);
    memset(out, 0, (size_t)rows * FEATURES * sizeof(*out));
    memset(answered, 0, (size_t)rows * sizeof(*answered));
    if (skep_moe_forward(m->layer, &input, NULL, &m->pass, &y, &err) == SKEP_OK) {
        count = take_output(m, y, rows, out, answered);
        note_calls(m, rows, false);
        complete = count == rows && !skep_moe_pass_failure(m->pass, NULL);
    } else {
        complain(&err);
    }
    skep_tensor_free(y);
    m->missing += (uint64_t)(rows - count);
    note_time(m, start_s, count > 0);
    return complete;
}

/* One Adam step of the layer's projection. */
static void train_gate(struct mixture *m, const struct skep_moe_grads *grads)
{
    const DLTensor *weight = skep_moe_weight(m->layer), *bias = skep_moe_bias(m->layer);
    size_t coordinates = (size_t)bias->shape[0];

    m->steps++;
    adam_step(skep_tensor_data(weight), m->weight_m, m->weight_v,
              skep_tensor_data(&grads->weight->dl_tensor), coordinates * FEATURES, m->steps);
    adam_step(skep_tensor_data(bias), m->bias_m, m->bias_v,
              skep_tensor_data(&grads->bias->dl_tensor), coordinates, m->steps);
}

static bool has_patience(const struct mixture *m)
{
    struct timespec pause = {.tv_nsec = EMPTY_PAUSE_MS * 1000000};

    if (seconds_now() - m->last_end_s > PATIENCE * 1e-3 * m->settings->timeout_ms)
        return false;
    nanosleep(&pause, NULL);
    return true;
}

static bool mixture_backward(struct model *model, float *x, float *grad, int rows)
{
    struct mixture *m = (struct mixture *)model;
    int64_t shape[2] = {rows, FEATURES};
    DLTensor gradient = matrix(grad, shape);
    struct skep_moe_grads grads;
    struct skep_error err;
    double start_s = seconds_now();
    bool any = false;

    (void)x; /* the pass holds it */
    for (int i = 0; m->pass != NULL && i < rows; i++)
        any = any || skep_moe_pass_answers(m->pass, (size_t)i) >= K_MIN;
    if (!any)
        return has_patience(m);
    if (skep_moe_backward(m->pass, &gradient, &grads, &err) == SKEP_OK) {
        train_gate(m, &grads);
        skep_moe_grads_free(&grads);
    } else {
        complain(&err);
    }
    note_calls(m, rows, true);
    note_time(m, start_s, true);
    return true;
}

/* ---- telling */

static void mixture_tell(struct model *model, char *words, size_t cap)
{
    struct mixture *m = (struct mixture *)model;

    look_around(m);
    snprintf(words, cap, "  %zu experts known, %zu failing  longest pause %.2f s", m->known,
             m->failing, m->longest_pause_s);
}

/* The nodes that serve the grid now, as a JSON array of short peer ids. */
static void tell_nodes(const struct mixture *m, FILE *to)
{
    const char *comma = "";

    fputs("\"nodes\":[", to);
    for (int i = 0; i < MAX_EXPERTS; i++) {
        bool first = m->seen[i].known;
        for (int k = 0; k < i && first; k++)
            first = !m->seen[k].known || strcmp(m->seen[k].peer_id, m->seen[i].peer_id) != 0;
        if (first) {
            fprintf(to, "%s\"%.12s\"", comma, m->seen[i].peer_id);
            comma = ",";
        }
    }
    fputs("],", to);
}

static void mixture_tell_json(struct model *model, FILE *to)
{
    struct mixture *m = (struct mixture *)model;

    look_around(m);
    tell_nodes(m, to);
    fprintf(to,
            "\"known\":%zu,\"failing\":%zu,\"passes\":%" PRIu64 ",\"missing_samples\":%" PRIu64
            ",\"longest_pass_ms\":%.1f,\"longest_pause_ms\":%.1f,\"timeout_ms\":%" PRIu32,
            m->known, m->failing, m->passes, m->missing, 1e3 * m->longest_pass_s,
            1e3 * m->longest_pause_s, m->settings->timeout_ms);
}

static void mixture_report(struct model *model)
{
    struct mixture *m = (struct mixture *)model;
    const struct settings *s = m->settings;

    look_around(m);
    printf("\n%-12s %-14s %-22s %9s %8s %9s\n", "expert", "node", "endpoint", "calls", "failed",
           "samples");
    for (int i = 0; i < s->rows * s->columns; i++) {
        const struct seen *e = &m->seen[i];
        char uid[SKEP_UID_BYTES + 24]; /* cut by nobody, whatever the numbers */
        snprintf(uid, sizeof(uid), "%s%d.%d", m->prefix, i / s->columns, i % s->columns);
        printf("%-12s %-14.12s %-22s %9" PRIu64 " %8" PRIu64 " %9" PRIu64 "%s\n", uid,
               e->known ? e->peer_id : "-", e->known ? e->endpoint : "-", e->calls, e->failures,
               e->samples, e->known && e->failing ? "  failing" : "");
    }
    printf("\n%" PRIu64 " passes, the longest %.2f s; longest pause between passes %.2f s; timeout "
           "of a pass %.2f s; %" PRIu64 " samples without an answer\n",
           m->passes, m->longest_pass_s, m->longest_pause_s, 1e-3 * s->timeout_ms, m->missing);
}

/* ---- life */

static void mixture_free(struct model *model)
{
    struct mixture *m = (struct mixture *)model;

    skep_moe_pass_free(m->pass);
    skep_moe_free(m->layer);
    skep_watch_free(m->watch);
    free(m->weight_m);
    free(m->weight_v);
    free(m->bias_m);
    free(m->bias_v);
    free(m);
}

static bool make_layer(struct mixture *m, struct skep_client *client)
{
    const struct settings *s = m->settings;
    struct skep_moe_options options;
    struct skep_error err;

    skep_moe_options_init(&options);
    options.grid =
        (struct skep_grid){.prefix = m->prefix, .dims = 2, .sizes = {s->rows, s->columns}};
    options.k_best = K_BEST;
    options.k_min = K_MIN;
    options.forward_timeout_ms = s->timeout_ms;
    options.backward_timeout_ms = s->timeout_ms;
    options.timeout_after_k_min_ms = s->timeout_ms / STRAGGLERS;
    options.allow_missing = true;
    options.in_features = FEATURES;
    options.seed = 1;
    if (skep_moe_new(client, &options, &m->layer, &err) != SKEP_OK) {
        complain(&err);
        return false;
    }
    size_t coordinates = (size_t)skep_moe_bias(m->layer)->shape[0];
    m->weight_m = calloc(coordinates * FEATURES, sizeof(float));
    m->weight_v = calloc(coordinates * FEATURES, sizeof(float));
    m->bias_m = calloc(coordinates, sizeof(float));
    m->bias_v = calloc(coordinates, sizeof(float));
    return m->weight_m != NULL && m->weight_v != NULL && m->bias_m != NULL && m->bias_v != NULL;
}

/* Until all of the grid has been read once. */
static bool wait_ready(const struct mixture *m)
{
    struct skep_error err;

    for (int waited_ms = 0; waited_ms < JOIN_TIMEOUT_MS && !interrupted; waited_ms += LOOK_MS)
        if (skep_watch_wait_ready(m->watch, LOOK_MS, &err) == SKEP_OK)
            return true;
    if (!interrupted)
        fprintf(stderr, "digits: the DHT has not told in %d s who serves %s\n",
                JOIN_TIMEOUT_MS / 1000, m->prefix);
    return false;
}

static bool start_watching(struct mixture *m, struct skep_client *client)
{
    const struct settings *s = m->settings;
    struct skep_error err;

    if (skep_watch_new(client, m->prefix, NULL, NULL, &m->watch, &err) != SKEP_OK) {
        complain(&err);
        return false;
    }
    if (!wait_ready(m))
        return false;
    look_around(m);
    if (m->known == 0)
        fprintf(stderr, "digits: no expert of %s[0:%d].[0:%d] was found in the swarm\n", m->prefix,
                s->rows, s->columns);
    else
        printf("a mixture of the best %d of %zu experts; a pass has %.1f s\n", K_BEST, m->known,
               1e-3 * s->timeout_ms);
    return m->known > 0;
}

struct model *mixture_new(struct skep_client *client, const struct settings *s)
{
    struct mixture *m = calloc(1, sizeof(*m));

    if (m == NULL)
        return NULL;
    m->model = (struct model){mixture_forward,   mixture_backward, mixture_tell,
                              mixture_tell_json, mixture_report,   mixture_free};
    m->settings = s;
    snprintf(m->prefix, sizeof(m->prefix), "%s.", s->name);
    if (start_watching(m, client) && make_layer(m, client))
        return &m->model;
    mixture_free(&m->model);
    return NULL;
}
