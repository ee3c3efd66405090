/* Many calls at once. */
#include "client/fanout.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "base/thread.h"

struct fanout_shared {
    atomic_uint refs;     /* the fanout's, and one for each job */
    pthread_mutex_t lock; /* guards all jobs; taken before any lock of a call */
    pthread_cond_t changed;
    size_t open;   /* calls that have not ended */
    bool searched; /* one of them has begun to look for others to ask */
};

/* What a call under way needs, however long it takes. */
struct fanout_job {
    atomic_uint refs; /* the fanout's and the call's */
    struct fanout_shared *shared;
    DLManagedTensor *inputs[2];
    size_t rows;
    /* Guarded by shared->lock: */
    struct skep_call *call; /* NULL before the start and after the end */
    bool ended, checked;
    struct skep_error error;
    DLManagedTensor *outputs[MESSAGE_MAX_TENSORS];
    size_t output_count;
    char peer_id[PEER_ID_HEX_BYTES]; /* "" if unknown */
};

static void shared_unref(struct fanout_shared *shared)
{
    if (atomic_fetch_sub_explicit(&shared->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_cond_destroy(&shared->changed);
    pthread_mutex_destroy(&shared->lock);
    mem_free(shared);
}

static void job_unref(struct fanout_job *job)
{
    if (job == NULL || atomic_fetch_sub_explicit(&job->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (size_t i = 0; i < job->output_count; i++)
        skep_tensor_free(job->outputs[i]);
    skep_tensor_free(job->inputs[0]);
    skep_tensor_free(job->inputs[1]);
    shared_unref(job->shared);
    mem_free(job);
}

skep_status fanout_init(struct fanout *f, struct skep_client *client, size_t count,
                        struct skep_error *err)
{
    *f = (struct fanout){.client = client, .count = count};
    f->calls = mem_calloc(count + 1, sizeof(*f->calls));
    f->shared = mem_calloc(1, sizeof(*f->shared));
    if (f->calls == NULL || f->shared == NULL) {
        mem_free(f->calls);
        mem_free(f->shared);
        *f = (struct fanout){0};
        return error_no_memory(err, "calls", count * sizeof(*f->calls));
    }
    atomic_init(&f->shared->refs, 1);
    pthread_mutex_init(&f->shared->lock, NULL);
    cond_init(&f->shared->changed);
    return SKEP_OK;
}

skep_status fanout_add(struct fanout *f, size_t count, struct skep_error *err)
{
    size_t total = f->count + count;
    /* The threads of calls know jobs only, so their places may move. */
    struct fanout_call *calls = mem_realloc(f->calls, (total + 1) * sizeof(*calls));

    if (calls == NULL)
        return error_no_memory(err, "calls", total * sizeof(*calls));
    memset(calls + f->count, 0, (count + 1) * sizeof(*calls));
    f->calls = calls;
    f->count = total;
    return SKEP_OK;
}

/* ---- the end of a call, on one of the client's threads */

static void on_ended(struct skep_call *call, void *arg)
{
    struct fanout_job *job = arg;

    pthread_mutex_lock(&job->shared->lock);
    if (skep_call_result(call, job->outputs, MESSAGE_MAX_TENSORS, &job->output_count,
                         &job->error) == SKEP_OK)
        job->error = (struct skep_error){0};
    memcpy(job->peer_id, skep_call_peer_id(call), sizeof(job->peer_id));
    job->ended = true;
    job->call = NULL;
    job->shared->open--;
    pthread_cond_signal(&job->shared->changed);
    pthread_mutex_unlock(&job->shared->lock);
    skep_call_free(call);
    job_unref(job);
}

static void on_searching(void *arg)
{
    struct fanout_job *job = arg;

    pthread_mutex_lock(&job->shared->lock);
    job->shared->searched = true;
    pthread_cond_signal(&job->shared->changed);
    pthread_mutex_unlock(&job->shared->lock);
}

/* ---- starting */

static struct fanout_job *job_new(struct fanout *f, struct fanout_call *c)
{
    struct fanout_job *job = mem_calloc(1, sizeof(*job));

    if (job == NULL)
        return NULL;
    atomic_init(&job->refs, 1);
    job->shared = f->shared;
    atomic_fetch_add_explicit(&f->shared->refs, 1, memory_order_relaxed);
    job->inputs[0] = c->inputs[0];
    job->inputs[1] = c->inputs[1];
    job->rows = (size_t)c->inputs[0]->dl_tensor.shape[0];
    c->inputs[0] = c->inputs[1] = NULL;
    return job;
}

/* The call's reference is taken before it starts: it may have ended when this returns. */
static skep_status start_call(struct fanout_call *c, const struct fanout_manner *manner,
                              uint64_t deadline_us, struct skep_error *err)
{
    struct fanout_job *job = c->job;
    const DLTensor *tensors[2] = {&job->inputs[0]->dl_tensor};
    uint64_t left_ms = clock_left_ms(deadline_us);
    struct call_request request = {
        .method = c->backward ? "backward" : "forward",
        .changes_weights = c->backward,
        .tensors = tensors,
        .tensor_count = 1,
        .compression = manner->compression,
        .grad_compression = manner->grad_compression,
        .timeout_ms = left_ms == 0           ? 1
                      : left_ms > UINT32_MAX ? UINT32_MAX
                                             : (uint32_t)left_ms,
        .hedge_after_ms = manner->hedge_after_ms,
        .peer_id = c->peer_id,
        .judged_by_caller = true,
        .by_answers = true,
        .searching = on_searching,
    };

    if (c->backward) {
        tensors[1] = &job->inputs[1]->dl_tensor;
        request.tensor_count++;
        request.gradient_count = 1;
    }
    pthread_mutex_lock(&job->shared->lock);
    job->shared->open++;
    pthread_mutex_unlock(&job->shared->lock);
    atomic_fetch_add_explicit(&job->refs, 1, memory_order_relaxed);
    return call_start(c->expert, &request, on_ended, job, &job->call, err);
}

void fanout_start(struct fanout *f, size_t first, const struct fanout_manner *manner,
                  uint64_t deadline_us)
{
    pthread_mutex_lock(&f->client->lock);
    uint64_t failures_before = f->client->backoff.failures;
    pthread_mutex_unlock(&f->client->lock);
    for (size_t i = first; i < f->count; i++) {
        struct fanout_call *c = &f->calls[i];
        c->failures_before = failures_before;
        if (c->expert == NULL || c->inputs[0] == NULL)
            continue;
        c->status = SKEP_RESOURCE_EXHAUSTED;
        c->job = job_new(f, c);
        if (c->job == NULL) {
            error_no_memory(&c->error, "call", sizeof(*c->job));
            continue;
        }
        struct skep_error err = {0};
        if (start_call(c, manner, deadline_us, &err) == SKEP_OK)
            continue;
        pthread_mutex_lock(&f->shared->lock);
        c->job->error = err;
        c->job->ended = true;
        f->shared->open--;
        pthread_mutex_unlock(&f->shared->lock);
        job_unref(c->job); /* the reference of the call that never was */
    }
}

/* ---- waiting */

static bool has_shape(const DLTensor *t, const struct fanout_expect *e, size_t rows)
{
    if (!dtype_equal(t->dtype, e->dtype) || t->ndim != e->ndim + 1 || t->shape[0] != (int64_t)rows)
        return false;
    for (int i = 0; i < e->ndim; i++)
        if (t->shape[i + 1] != e->shape[i])
            return false;
    return true;
}

/* Why the answer of a call cannot be used. */
static skep_status refuse_answer(const struct fanout_call *c, const struct fanout_expect *e,
                                 struct skep_error *err)
{
    const struct fanout_job *job = c->job;
    const DLTensor *t = job->output_count > 0 ? &job->outputs[0]->dl_tensor : NULL;
    char text[128];

    if (job->output_count != 1)
        return error_set(err, SKEP_DATA_LOSS, "expert %s: answered %zu tensors, expected one",
                         c->expert->uid, job->output_count);
    if (!has_shape(t, e, job->rows))
        return error_set(err, SKEP_DATA_LOSS,
                         "expert %s: answered %s, expected %zu rows of %d dimensions as the layer "
                         "has them, %s",
                         c->expert->uid, tensor_describe(t, text, sizeof(text)), job->rows, e->ndim,
                         skep_dtype_name(e->dtype));
    if (e->finite && !tensor_is_finite(t))
        return error_set(err, SKEP_DATA_LOSS, "expert %s: answered NaN or infinity",
                         c->expert->uid);
    return SKEP_OK;
}

static void judge_node(struct fanout *f, const struct fanout_call *c, bool good)
{
    uint8_t peer_id[PEER_ID_BYTES];

    if (!peer_id_parse(peer_id, c->job->peer_id))
        return;
    pthread_mutex_lock(&f->client->lock);
    if (good)
        backoff_succeeded(&f->client->backoff, peer_id, c->expert->uid, c->failures_before);
    else
        backoff_expert_failed(&f->client->backoff, peer_id, c->expert->uid);
    pthread_mutex_unlock(&f->client->lock);
}

/* Looks at an answer, and judges its node by it. With the shared's lock held, which is let go while
 * numbers are looked at: the client's I/O thread takes it for each call that ends. What a job that
 * has ended holds is this thread's alone. */
static void check_answer(struct fanout *f, struct fanout_call *c, const struct fanout_expect *e)
{
    struct fanout_job *job = c->job;
    struct skep_error err = {0};

    job->checked = true;
    if (job->error.status != SKEP_OK)
        return;
    pthread_mutex_unlock(&f->shared->lock);
    bool good = refuse_answer(c, e, &err) == SKEP_OK;
    judge_node(f, c, good);
    pthread_mutex_lock(&f->shared->lock);
    if (!good)
        job->error = err;
}

/* Until there is none to check: then the lock has been held since the last one was looked for. */
static void check_answers(struct fanout *f, const struct fanout_expect *expect)
{
    bool any;

    do {
        any = false;
        for (size_t i = 0; i < f->count; i++) {
            const struct fanout_job *job = f->calls[i].job;
            if (job == NULL || !job->ended || job->checked)
                continue;
            check_answer(f, &f->calls[i], expect);
            any = true;
        }
    } while (any);
}

/* How many answers of a sample came, and how many still may. With the lock held. */
static void count_answers(const struct fanout *f, const struct fanout_policy *p, size_t sample,
                          size_t *answered, size_t *open, size_t *failed)
{
    *answered = *open = *failed = 0;
    for (size_t i = 0; i < p->counts[sample]; i++) {
        uint32_t at = p->pairs[sample * p->k + i];
        const struct fanout_job *job = at != FANOUT_NO_CALL ? f->calls[at].job : NULL;
        bool good = job != NULL && job->ended && job->error.status == SKEP_OK;
        *answered += good;
        *open += job != NULL && !job->ended;
        *failed += at != FANOUT_NO_CALL && !good && (job == NULL || job->ended);
    }
}

/* Whether every sample has k_min answers, or cannot get as many any more. */
static bool is_enough(const struct fanout *f, const struct fanout_policy *p)
{
    for (size_t s = 0; s < p->samples; s++) {
        size_t answered, open, failed;
        count_answers(f, p, s, &answered, &open, &failed);
        if (answered < p->k_min && answered + open >= p->k_min)
            return false;
    }
    return true;
}

/* With the lock held. */
static bool any_failed(const struct fanout *f)
{
    for (size_t i = 0; i < f->count; i++) {
        const struct fanout_job *job = f->calls[i].job;
        if (job == NULL || (job->ended && job->error.status != SKEP_OK))
            return true;
    }
    return false;
}

/* Whether samples are to be asked for elsewhere, and how often. With the lock held. */
static bool is_wanting(const struct fanout *f, struct fanout_policy *p)
{
    bool impatient = !p->impatient && clock_mono_us() >= p->impatient_us, any = false;

    if (p->wants == NULL || (!impatient && !any_failed(f)))
        return false;
    for (size_t s = 0; s < p->samples; s++) {
        size_t answered, open, failed;
        p->wants[s] = 0;
        if (p->spent[s])
            continue;
        count_answers(f, p, s, &answered, &open, &failed);
        if (impatient) {
            failed += open;
            open = 0;
        }
        if (failed > 0 && answered + open < p->k_min && answered + open < p->k_best)
            p->wants[s] = p->k_best - answered - open;
        any = any || p->wants[s] > 0;
    }
    p->impatient = p->impatient || (impatient && any);
    return any;
}

/* Whether no call under way asks anybody: their nodes have failed, and who else serves their
 * experts is not known yet. With the lock held. */
static bool only_search(const struct fanout *f)
{
    struct skep_error why;

    if (!f->shared->searched)
        return false;
    for (size_t i = 0; i < f->count; i++) {
        const struct fanout_job *job = f->calls[i].job;
        if (job != NULL && !job->ended && !call_is_searching(job->call, &why))
            return false;
    }
    return true;
}

/* Takes what came; what has not is given up. With the lock held. */
static void take_result(struct fanout_call *c)
{
    struct fanout_job *job = c->job;

    if (job == NULL)
        return;
    if (!job->ended) {
        c->status = error_set(&c->error, SKEP_DEADLINE_EXCEEDED, "expert %s: no answer in time",
                              c->expert->uid);
        c->error.outcome_unknown = c->backward;
        if (job->call != NULL) {
            if (call_is_searching(job->call, &c->error)) /* why it does says more */
                c->error.outcome_unknown = false;
            c->status = c->error.status;
            call_give_up(job->call);
        }
        return;
    }
    c->status = job->error.status;
    c->error = job->error;
    memcpy(c->peer_id, job->peer_id, sizeof(c->peer_id));
    if (c->status == SKEP_OK) {
        c->output = job->outputs[0];
        job->output_count = 0;
    }
}

bool fanout_wait(struct fanout *f, struct fanout_policy *p, const struct fanout_expect *expect)
{
    uint64_t until_us = p->deadline_us;
    bool enough = false, wanting;

    pthread_mutex_lock(&f->shared->lock);
    for (;;) {
        check_answers(f, expect);
        wanting = is_wanting(f, p);
        if (wanting || f->shared->open == 0 || (only_search(f) && is_enough(f, p)))
            break;
        if (!enough && p->after_k_min_ms > 0 && is_enough(f, p)) {
            uint64_t after_us = clock_deadline_us(p->after_k_min_ms);
            enough = true;
            until_us = after_us < until_us ? after_us : until_us;
        }
        bool impatient_later =
            p->wants != NULL && p->impatient_us < until_us && clock_mono_us() < p->impatient_us;
        if (!cond_wait_until(&f->shared->changed, &f->shared->lock,
                             impatient_later ? p->impatient_us : until_us) &&
            clock_mono_us() >= until_us)
            break;
    }
    if (!wanting) {
        check_answers(f, expect);
        for (size_t i = 0; i < f->count; i++)
            take_result(&f->calls[i]);
    }
    pthread_mutex_unlock(&f->shared->lock);
    return !wanting;
}

bool fanout_is_good(const struct fanout *f, size_t call, bool *open)
{
    const struct fanout_job *job = f->calls[call].job;

    pthread_mutex_lock(&f->shared->lock);
    bool good = job != NULL && job->ended && job->checked && job->error.status == SKEP_OK;
    *open = job != NULL && !job->ended;
    pthread_mutex_unlock(&f->shared->lock);
    return good;
}

void fanout_fini(struct fanout *f)
{
    if (f == NULL || f->calls == NULL)
        return;
    for (size_t i = 0; i < f->count; i++) {
        struct fanout_call *c = &f->calls[i];
        skep_tensor_free(c->output);
        skep_tensor_free(c->inputs[0]);
        skep_tensor_free(c->inputs[1]);
        job_unref(c->job);
    }
    mem_free(f->calls);
    shared_unref(f->shared);
    *f = (struct fanout){0};
}
