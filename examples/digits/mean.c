/*
 * Each batch goes to all experts of the grid; the mean of what they answer is the model's output.
 * An expert that fails is left out of that step and asked again in the next.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "digits.h"

struct mean {
    struct model model;
    struct skep_remote_expert *experts[MAX_EXPERTS];
    uint64_t calls[MAX_EXPERTS], failures[MAX_EXPERTS];
    size_t expert_count, answered; /* of the last forward */
    uint32_t timeout_ms;
};

/* Whether the call has ended in time; not if training is interrupted meanwhile. */
static bool wait_call(const struct mean *m, struct skep_call *call)
{
    uint64_t waited_ms = 0;
    bool ended = false;

    /* A call ends by its timeout; this is only for one that does not. */
    for (; !ended && !interrupted && waited_ms < 2 * (uint64_t)m->timeout_ms; waited_ms += LOOK_MS)
        ended = skep_call_wait(call, LOOK_MS);
    return ended;
}

/* One call to each expert at once; entry i of outputs is owned, NULL where the expert failed. */
static size_t call_all(struct mean *m, float *x, float *grad, int rows,
                       DLManagedTensor *outputs[MAX_EXPERTS])
{
    int64_t shape[2] = {rows, FEATURES};
    DLTensor input = matrix(x, shape);
    DLTensor gradient = matrix(grad, shape);
    const DLTensor *inputs[1] = {&input};
    const DLTensor *gradients[1] = {&gradient};
    struct skep_call_options options = {.timeout_ms = m->timeout_ms};
    struct skep_call *calls[MAX_EXPERTS] = {NULL};
    size_t answered = 0;

    for (size_t i = 0; i < m->expert_count; i++) {
        skep_status rc;
        if (grad == NULL)
            rc = skep_remote_expert_forward_start(m->experts[i], inputs, 1, &options, NULL, NULL,
                                                  &calls[i], NULL);
        else
            rc = skep_remote_expert_backward_start(m->experts[i], inputs, 1, gradients, 1, &options,
                                                   NULL, NULL, &calls[i], NULL);
        if (rc != SKEP_OK)
            calls[i] = NULL;
    }
    for (size_t i = 0; i < m->expert_count; i++) {
        struct skep_error err = {.status = SKEP_DEADLINE_EXCEEDED, .message = "it does not end"};
        size_t count = 0;
        outputs[i] = NULL;
        m->calls[i]++;
        if (calls[i] != NULL && wait_call(m, calls[i]) &&
            skep_call_result(calls[i], &outputs[i], 1, &count, &err) == SKEP_OK && count == 1) {
            answered++;
        } else {
            if (m->failures[i]++ == 0 && calls[i] != NULL && !interrupted)
                complain(&err);
        }
        skep_call_free(calls[i]);
    }
    return answered;
}

static bool mean_forward(struct model *model, float *x, int rows, float *out, bool *answered)
{
    struct mean *m = (struct mean *)model;
    DLManagedTensor *outputs[MAX_EXPERTS];
    size_t n = (size_t)rows * FEATURES;

    m->answered = call_all(m, x, NULL, rows, outputs);
    memset(out, 0, n * sizeof(*out));
    for (size_t i = 0; i < m->expert_count; i++) {
        if (outputs[i] == NULL)
            continue;
        const float *y = skep_tensor_data(&outputs[i]->dl_tensor);
        for (size_t k = 0; k < n; k++)
            out[k] += y[k] / (float)m->answered;
        skep_tensor_free(outputs[i]);
    }
    for (int i = 0; i < rows; i++)
        answered[i] = m->answered > 0;
    return m->answered == m->expert_count;
}

/* Sends the gradient of the mean back: each expert's share of it. */
static bool mean_backward(struct model *model, float *x, float *grad, int rows)
{
    struct mean *m = (struct mean *)model;
    DLManagedTensor *outputs[MAX_EXPERTS];

    if (m->answered == 0)
        return false;
    for (size_t k = 0; k < (size_t)rows * FEATURES; k++)
        grad[k] /= (float)m->expert_count;
    call_all(m, x, grad, rows, outputs);
    for (size_t i = 0; i < m->expert_count; i++)
        skep_tensor_free(outputs[i]);
    return true;
}

static bool find_experts(struct mean *m, struct skep_client *client, const struct settings *s)
{
    static char text[MAX_EXPERTS][SKEP_UID_BYTES];
    const char *uids[MAX_EXPERTS] = {NULL};
    struct skep_remote_expert *found[MAX_EXPERTS];
    struct skep_error err;
    size_t count = 0;

    for (int i = 0; i < s->rows; i++) {
        for (int k = 0; k < s->columns; k++) {
            snprintf(text[count], sizeof(text[count]), "%s.%d.%d", s->name, i, k);
            uids[count] = text[count];
            count++;
        }
    }
    if (skep_client_find_many(client, uids, count, JOIN_TIMEOUT_MS, found, NULL, &err) != SKEP_OK &&
        !interrupted)
        complain(&err);
    for (size_t i = 0; i < count; i++)
        if (found[i] != NULL)
            m->experts[m->expert_count++] = found[i];
    if (m->expert_count == 0 && !interrupted)
        fprintf(stderr, "digits: no expert of %s.[0:%d].[0:%d] was found in the swarm\n", s->name,
                s->rows, s->columns);
    else if (m->expert_count > 0)
        printf("found %zu experts\n", m->expert_count);
    return m->expert_count > 0;
}

static size_t count_failing(const struct mean *m)
{
    size_t failing = 0;

    for (size_t i = 0; i < m->expert_count; i++)
        failing += m->failures[i] > 0;
    return failing;
}

static void mean_tell(struct model *model, char *words, size_t cap)
{
    struct mean *m = (struct mean *)model;
    size_t failing = count_failing(m);

    words[0] = '\0';
    if (failing > 0)
        snprintf(words, cap, "  %zu of %zu experts have failed", failing, m->expert_count);
}

static void mean_tell_json(struct model *model, FILE *to)
{
    struct mean *m = (struct mean *)model;

    fprintf(to, "\"known\":%zu,\"failing\":%zu", m->expert_count, count_failing(m));
}

static void mean_report(struct model *model)
{
    struct mean *m = (struct mean *)model;

    if (interrupted)
        return; /* asking nodes may take long */
    printf("\n%-12s %-14s %-22s %10s %8s %9s %8s\n", "expert", "node", "endpoint", "parameters",
           "updates", "calls", "failed");
    for (size_t i = 0; i < m->expert_count; i++) {
        struct skep_provider p = {.expires_at = 0};
        struct skep_expert_info info = {.parameter_count = 0};
        skep_remote_expert_providers(m->experts[i], &p, 1);
        bool known = skep_remote_expert_info(m->experts[i], m->timeout_ms, &info, NULL) == SKEP_OK;
        printf("%-12s %-14.12s %-22s ", skep_remote_expert_uid(m->experts[i]), p.peer_id,
               p.endpoint);
        if (known)
            printf("%10" PRIu64 " %8" PRIu64 " ", info.parameter_count, info.update_count);
        else
            printf("%10s %8s ", "?", "?");
        printf("%9" PRIu64 " %8" PRIu64 "\n", m->calls[i], m->failures[i]);
    }
}

static void mean_free(struct model *model)
{
    struct mean *m = (struct mean *)model;

    for (size_t i = 0; i < m->expert_count; i++)
        skep_remote_expert_free(m->experts[i]);
    free(m);
}

struct model *mean_new(struct skep_client *client, const struct settings *s)
{
    struct mean *m = calloc(1, sizeof(*m));

    if (m == NULL)
        return NULL;
    m->model = (struct model){mean_forward,   mean_backward, mean_tell,
                              mean_tell_json, mean_report,   mean_free};
    m->timeout_ms = s->timeout_ms;
    if (find_experts(m, client, s))
        return &m->model;
    mean_free(&m->model);
    return NULL;
}
