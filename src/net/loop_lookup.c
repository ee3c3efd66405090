/* See loop_lookup.h. */
#include "net/loop_lookup.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

struct loop_lookup {
    struct loop_job job; /* first, so that the pointers convert */
    struct loop *loop;
    struct lookup *lookup;
    loop_lookup_fn fn; /* NULL: ended */
    void *arg;
    struct lookup_answer answer;
};

static void tell(struct loop_job *job)
{
    struct loop_lookup *l = (struct loop_lookup *)job;

    if (l->fn != NULL) {
        lookup_end(l->lookup);
        l->fn(l->arg, &l->answer);
    }
    mem_free(l);
}

/* On the lookup's thread. Who has not ended the lookup still has its loop. */
static void on_looked_up(void *arg, const struct lookup_answer *answer)
{
    struct loop_lookup *l = arg;

    l->answer = *answer;
    l->job.run = tell;
    loop_post(l->loop, &l->job);
}

skep_status loop_lookup_start(struct loop *loop, const struct endpoint *name, bool foreign,
                              loop_lookup_fn fn, void *arg, struct loop_lookup **out,
                              struct skep_error *err)
{
    struct loop_lookup *l = mem_calloc(1, sizeof(*l));

    *out = NULL;
    if (l == NULL)
        return error_no_memory(err, "name to look up", sizeof(*l));
    l->loop = loop;
    l->fn = fn;
    l->arg = arg;
    skep_status rc = lookup_start(name, foreign, on_looked_up, l, &l->lookup, err);
    if (rc == SKEP_OK)
        *out = l;
    else
        mem_free(l);
    return rc;
}

void loop_lookup_end(struct loop_lookup *l)
{
    if (l == NULL)
        return;
    l->fn = NULL;
    if (!lookup_end(l->lookup)) /* else the job, which has been posted, frees it */
        mem_free(l);
}
