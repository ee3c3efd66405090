/* Remote experts: a UID and the nodes that serve it, as last looked up. */
#include "client/client_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

bool provider_list_copy(struct provider_list *out, const struct provider *items, size_t count)
{
    *out = (struct provider_list){0};
    if (count == 0)
        return true;
    out->items = mem_alloc(count * sizeof(*items));
    if (out->items == NULL)
        return false;
    memcpy(out->items, items, count * sizeof(*items));
    out->count = count;
    return true;
}

/* NULL if memory is short. */
static struct skep_remote_expert *new_expert(struct skep_client *client, const char *uid,
                                             struct skep_error *err)
{
    struct skep_remote_expert *expert = mem_calloc(1, sizeof(*expert));

    if (expert == NULL) {
        error_no_memory(err, uid, sizeof(*expert));
        return NULL;
    }
    atomic_init(&expert->refs, 1);
    pthread_mutex_init(&expert->lock, NULL);
    expert->client = client;
    size_t len = strnlen(uid, sizeof(expert->uid) - 1);
    memcpy(expert->uid, uid, len);
    return expert;
}

skep_status remote_expert_adopt(struct skep_client *client, struct beam_expert *found,
                                struct skep_remote_expert **out, struct skep_error *err)
{
    struct skep_remote_expert *expert = new_expert(client, found->uid, err);

    *out = expert;
    if (expert == NULL)
        return SKEP_RESOURCE_EXHAUSTED;
    expert->providers =
        (struct provider_list){.items = found->providers, .count = found->provider_count};
    expert->view = found->view;
    expert->named_at = found->named_at;
    expert->found_at_s = found->found_at_s;
    found->providers = NULL;
    found->view = NULL;
    return SKEP_OK;
}

skep_status remote_expert_new(struct skep_client *client, const char *uid,
                              const struct provider *providers, size_t count,
                              struct skep_remote_expert **out, struct skep_error *err)
{
    struct provider_list copy;

    *out = NULL;
    if (!provider_list_copy(&copy, providers, count))
        return error_no_memory(err, uid, count * sizeof(*providers));
    *out = new_expert(client, uid, err);
    if (*out == NULL) {
        mem_free(copy.items);
        return SKEP_RESOURCE_EXHAUSTED;
    }
    (*out)->providers = copy;
    return SKEP_OK;
}

void remote_expert_ref(struct skep_remote_expert *expert)
{
    /* Relaxed: whoever adds a reference holds one already. */
    atomic_fetch_add_explicit(&expert->refs, 1, memory_order_relaxed);
}

void remote_expert_unref(struct skep_remote_expert *expert)
{
    if (expert == NULL || atomic_fetch_sub_explicit(&expert->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&expert->lock);
    mem_free(expert->providers.items);
    prefix_view_unref(expert->view);
    mem_free(expert);
}

void skep_remote_expert_free(struct skep_remote_expert *expert)
{
    remote_expert_unref(expert);
}

const char *skep_remote_expert_uid(const struct skep_remote_expert *expert)
{
    return expert->uid;
}

/* Who serves it. False if memory is short. With the lock held. */
static bool copy_providers(const struct skep_remote_expert *expert, struct provider_list *out)
{
    struct provider named[DIRECTORY_MAX_PROVIDERS];

    if (expert->view == NULL)
        return provider_list_copy(out, expert->providers.items, expert->providers.count);
    size_t count = prefix_view_providers(expert->view, expert->named_at, expert->found_at_s, named,
                                         DIRECTORY_MAX_PROVIDERS);
    return provider_list_copy(out, named, count);
}

bool remote_expert_snapshot(struct skep_remote_expert *expert, struct provider_list *out)
{
    int64_t now_s = clock_wall_ms() / 1000;

    pthread_mutex_lock(&expert->lock);
    bool ok = copy_providers(expert, out);
    pthread_mutex_unlock(&expert->lock);
    if (!ok || expert->fixed)
        return ok;
    size_t kept = 0;
    for (size_t i = 0; i < out->count; i++)
        if (out->items[i].expires_at > now_s)
            out->items[kept++] = out->items[i];
    out->count = kept;
    return true;
}

void remote_expert_update(struct skep_remote_expert *expert, const struct provider *providers,
                          size_t count)
{
    struct provider_list fresh;
    struct provider *old = NULL;
    struct prefix_view *old_view = NULL;

    if (!provider_list_copy(&fresh, providers, count))
        return;
    pthread_mutex_lock(&expert->lock);
    old = expert->providers.items;
    expert->providers = fresh;
    old_view = expert->view;
    expert->view = NULL;
    pthread_mutex_unlock(&expert->lock);
    mem_free(old);
    prefix_view_unref(old_view);
}

void provider_publish(const struct provider *p, struct skep_provider *out)
{
    *out = (struct skep_provider){.expires_at = p->expires_at};
    peer_id_hex(p->peer_id, out->peer_id);
    if (p->endpoint_count > 0)
        endpoint_format(&p->endpoints[0], out->endpoint);
    snprintf(out->cls, sizeof(out->cls), "%s", p->cls);
}

size_t skep_remote_expert_providers(const struct skep_remote_expert *expert,
                                    struct skep_provider *out, size_t cap)
{
    struct skep_remote_expert *shared = (struct skep_remote_expert *)expert;
    struct provider named[DIRECTORY_MAX_PROVIDERS];

    pthread_mutex_lock(&shared->lock);
    const struct provider *items = shared->providers.items;
    size_t count = shared->providers.count;
    if (shared->view != NULL) {
        items = named;
        count = prefix_view_providers(shared->view, shared->named_at, shared->found_at_s, named,
                                      DIRECTORY_MAX_PROVIDERS);
    }
    for (size_t i = 0; i < count && i < cap; i++) {
        provider_publish(&items[i], &out[i]);
        if (expert->any_peer)
            out[i].peer_id[0] = '\0';
    }
    pthread_mutex_unlock(&shared->lock);
    return count;
}
