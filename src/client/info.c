/* What a node says of an expert: the result of `info` (docs/methods.md) as a structure. */
#include "client/client_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mp.h"
#include "base/text.h"

/* It is shown to people, and printed as JSON. */
static bool read_text(const msgpack_object *o, char *out, size_t cap)
{
    bool ok = mp_str(o, out, cap);

    if (ok)
        text_tame(out);
    return ok;
}

static bool read_shape(const msgpack_object *o, struct skep_tensor_spec *spec)
{
    const msgpack_object *items;
    size_t count;

    if (!mp_array(o, &items, &count) || count > SKEP_TENSOR_MAX_DIMS)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!mp_i64(&items[i], &spec->shape[i]) || spec->shape[i] < -1)
            return false;
    spec->ndim = (int)count;
    return true;
}

static bool read_specs(const msgpack_object *o, struct skep_tensor_spec *specs, size_t *count)
{
    const msgpack_object *items;
    char dtype[16];

    if (!mp_array(o, &items, count) || *count > SKEP_EXPERT_MAX_TENSORS)
        return false;
    for (size_t i = 0; i < *count; i++)
        if (!read_text(mp_get(&items[i], "name"), specs[i].name, sizeof(specs[i].name)) ||
            !mp_str(mp_get(&items[i], "dtype"), dtype, sizeof(dtype)) ||
            !skep_dtype_from_name(dtype, &specs[i].dtype) ||
            !read_shape(mp_get(&items[i], "shape"), &specs[i]))
            return false;
    return true;
}

/* A node of before, or an encoding of later: as it is. */
static enum skep_compression read_compression(const msgpack_object *o)
{
    char name[32];
    enum tensor_encoding encoding = ENCODING_NONE;

    if (mp_str(o, name, sizeof(name)))
        (void)tensor_encoding_from_name(name, &encoding);
    return tensor_encoding_setting(encoding);
}

static bool read_info(const msgpack_object *root, struct skep_expert_info *info)
{
    const msgpack_object *load = mp_get(root, "load");

    /* These are a courtesy; the rest has to be there. */
    (void)mp_u64(mp_get(load, "queued_tasks"), &info->queued_tasks);
    (void)mp_f64(mp_get(load, "examples_per_s"), &info->examples_per_second);
    (void)mp_bool(mp_get(load, "stalled"), &info->stalled);
    (void)mp_u64(mp_get(root, "skipped_steps"), &info->skipped_steps);
    info->compression = read_compression(mp_get(root, "compression"));
    info->grad_compression = read_compression(mp_get(root, "grad_compression"));
    return read_text(mp_get(root, "uid"), info->uid, sizeof(info->uid)) &&
           read_text(mp_get(root, "class"), info->cls, sizeof(info->cls)) &&
           read_text(mp_get(root, "precision"), info->precision, sizeof(info->precision)) &&
           mp_u64(mp_get(root, "parameters"), &info->parameter_count) &&
           mp_u64(mp_get(root, "updates"), &info->update_count) &&
           mp_i64(mp_get(root, "max_batch_size"), &info->max_batch_size) &&
           read_specs(mp_get(root, "inputs"), info->schema.inputs, &info->schema.input_count) &&
           read_specs(mp_get(root, "outputs"), info->schema.outputs, &info->schema.output_count);
}

static skep_status parse_info(struct skep_call *call, const char *uid, struct skep_expert_info *out,
                              struct skep_error *err)
{
    const struct bytes *result = call_result_bytes(call);
    struct skep_expert_info info = {.parameter_count = 0};
    struct mp mp = {0};

    skep_status rc = mp_parse(&mp, result->data, result->len, "info", err);
    if (rc == SKEP_OK && !read_info(mp.root, &info))
        rc = error_set(err, SKEP_DATA_LOSS,
                       "expert %s: the node's answer to info is not as docs/methods.md says", uid);
    if (rc == SKEP_OK) {
        snprintf(info.peer_id, sizeof(info.peer_id), "%s", skep_call_peer_id(call));
        *out = info;
    }
    mp_free(&mp);
    return rc;
}

/* For mixtures, whose experts come from a search and never asked. */
static void learn(struct skep_remote_expert *expert, const struct skep_expert_info *info)
{
    struct skep_client *client = expert->client;
    uint8_t peer_id[PEER_ID_BYTES];

    if (!peer_id_parse(peer_id, info->peer_id)) /* whoever answered was good enough */
        return;
    pthread_mutex_lock(&client->lock);
    recommended_learn(&client->recommended, peer_id, expert->uid, false,
                      tensor_encoding_of(info->compression));
    recommended_learn(&client->recommended, peer_id, expert->uid, true,
                      tensor_encoding_of(info->grad_compression));
    pthread_mutex_unlock(&client->lock);
}

skep_status skep_remote_expert_info(struct skep_remote_expert *expert, uint32_t timeout_ms,
                                    struct skep_expert_info *out, struct skep_error *err)
{
    struct call_request request = {.method = "info", .timeout_ms = timeout_ms};
    struct skep_call *call;
    DLManagedTensor *outputs[MESSAGE_MAX_TENSORS];
    size_t count = 0;

    skep_status rc = call_start(expert, &request, NULL, NULL, &call, err);
    if (rc != SKEP_OK)
        return rc;
    skep_call_wait(call, UINT32_MAX); /* the call has a deadline of its own */
    rc = skep_call_result(call, outputs, MESSAGE_MAX_TENSORS, &count, err);
    for (size_t i = 0; i < count; i++)
        skep_tensor_free(outputs[i]);
    if (rc == SKEP_OK)
        rc = parse_info(call, expert->uid, out, err);
    if (rc == SKEP_OK) {
        atomic_store_explicit(&expert->compression, (int)out->compression, memory_order_relaxed);
        atomic_store_explicit(&expert->grad_compression, (int)out->grad_compression,
                              memory_order_relaxed);
        learn(expert, out);
    }
    skep_call_free(call);
    return rc;
}
