/* Forward, backward and info: what they send, and waiting for them. */
#include "client/client_internal.h"

#include <string.h>

#include "base/error.h"

static const struct skep_call_options default_options;

static skep_status check_given(const struct skep_remote_expert *expert,
                               const DLTensor *const *tensors, size_t count, const char *name,
                               struct skep_error *err)
{
    skep_status rc = error_if_null_in(tensors, count, name, err);

    if (rc != SKEP_OK)
        error_prefix(err, "expert %s", expert->uid);
    return rc;
}

skep_status skep_remote_expert_forward_start(struct skep_remote_expert *expert,
                                             const DLTensor *const *inputs, size_t count,
                                             const struct skep_call_options *options,
                                             skep_call_fn done, void *arg, struct skep_call **out,
                                             struct skep_error *err)
{
    *out = NULL;
    skep_status rc = check_given(expert, inputs, count, "inputs", err);
    if (rc != SKEP_OK)
        return rc;
    if (options == NULL)
        options = &default_options;
    struct call_request request = {
        .method = "forward",
        .tensors = inputs,
        .tensor_count = count,
        .compression = options->compression,
        .grad_compression = options->grad_compression,
        .timeout_ms = options->timeout_ms,
        .hedge_after_ms = options->hedge_after_ms,
        .peer_id = options->peer_id,
    };
    return call_start(expert, &request, done, arg, out, err);
}

skep_status skep_remote_expert_backward_start(
    struct skep_remote_expert *expert, const DLTensor *const *inputs, size_t input_count,
    const DLTensor *const *grad_outputs, size_t grad_count, const struct skep_call_options *options,
    skep_call_fn done, void *arg, struct skep_call **out, struct skep_error *err)
{
    const DLTensor *tensors[MESSAGE_MAX_TENSORS];

    *out = NULL;
    if (options == NULL)
        options = &default_options;
    if (input_count > MESSAGE_MAX_TENSORS || grad_count > MESSAGE_MAX_TENSORS - input_count)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "expert %s: %zu inputs and %zu gradients, expected at most %d tensors",
                         expert->uid, input_count, grad_count, MESSAGE_MAX_TENSORS);
    skep_status rc = check_given(expert, inputs, input_count, "inputs", err);
    if (rc == SKEP_OK)
        rc = check_given(expert, grad_outputs, grad_count, "grad_outputs", err);
    if (rc != SKEP_OK)
        return rc;
    for (size_t i = 0; i < input_count; i++)
        tensors[i] = inputs[i];
    for (size_t i = 0; i < grad_count; i++)
        tensors[input_count + i] = grad_outputs[i];
    struct call_request request = {
        .method = "backward",
        .changes_weights = true,
        .request_id = options->request_id,
        .tensors = tensors,
        .tensor_count = input_count + grad_count,
        .gradient_count = grad_count,
        .compression = options->compression,
        .grad_compression = options->grad_compression,
        .timeout_ms = options->timeout_ms,
        .peer_id = options->peer_id,
    };
    return call_start(expert, &request, done, arg, out, err);
}

/* Waits for a started call and takes its result. */
static skep_status wait_and_take(struct skep_call *call, DLManagedTensor **outputs, size_t cap,
                                 size_t *count, struct skep_error *err)
{
    skep_call_wait(call, UINT32_MAX); /* the call has a deadline of its own */
    skep_status rc = skep_call_result(call, outputs, cap, count, err);
    skep_call_free(call);
    return rc;
}

skep_status skep_remote_expert_forward(struct skep_remote_expert *expert,
                                       const DLTensor *const *inputs, size_t count,
                                       const struct skep_call_options *options,
                                       DLManagedTensor **outputs, size_t output_cap,
                                       size_t *output_count, struct skep_error *err)
{
    struct skep_call *call;
    skep_status rc =
        skep_remote_expert_forward_start(expert, inputs, count, options, NULL, NULL, &call, err);

    return rc != SKEP_OK ? rc : wait_and_take(call, outputs, output_cap, output_count, err);
}

skep_status skep_remote_expert_backward(struct skep_remote_expert *expert,
                                        const DLTensor *const *inputs, size_t input_count,
                                        const DLTensor *const *grad_outputs, size_t grad_count,
                                        const struct skep_call_options *options,
                                        DLManagedTensor **grad_inputs, size_t grad_cap,
                                        size_t *grad_input_count, struct skep_error *err)
{
    struct skep_call *call;
    skep_status rc = skep_remote_expert_backward_start(expert, inputs, input_count, grad_outputs,
                                                       grad_count, options, NULL, NULL, &call, err);

    return rc != SKEP_OK ? rc : wait_and_take(call, grad_inputs, grad_cap, grad_input_count, err);
}
