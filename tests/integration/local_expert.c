/*
 * The expert that `skep node` would make of a UID, a width and a seed, run here: what a call over
 * the network must equal bit for bit.
 *   local_expert UID HIDDEN SEED INPUT [GRAD STEPS]
 * It prints, as lines of hex, the output for INPUT; with GRAD then, STEPS times, the input
 * gradients of one backward pass (which trains) and the output after it. The input is tensor
 * "input.0" of INPUT, the gradient "grad_output.0" of GRAD.
 */
#include <stdio.h>
#include <stdlib.h>

#include <skep/node.h>
#include <skep/safetensors.h>
#include "experts/expert.h"

static int fail(const char *what, const struct skep_error *err)
{
    fprintf(stderr, "local_expert: %s: %s\n", what, err->message);
    return EXIT_FAILURE;
}

static void print_tensor(const DLTensor *t)
{
    struct skep_error err;
    size_t size = 0;
    const uint8_t *bytes = skep_tensor_data(t);

    if (skep_tensor_bytes(t, &size, &err) != SKEP_OK)
        size = 0;
    for (size_t i = 0; i < size; i++)
        printf("%02x", bytes[i]);
    putchar('\n');
}

static skep_status forward(struct expert *expert, const DLTensor *x, DLTensor *y,
                           struct skep_error *err)
{
    skep_status rc = expert_forward(expert, x, y, err);

    if (rc == SKEP_OK)
        print_tensor(y);
    return rc;
}

static skep_status run(struct expert *expert, const DLTensor *x, const DLTensor *grad, int steps,
                       struct skep_error *err)
{
    DLManagedTensor *y = NULL;
    skep_status rc = skep_tensor_new(x->dtype, x->ndim, x->shape, &y, err);

    if (rc == SKEP_OK)
        rc = forward(expert, x, &y->dl_tensor, err);
    for (int i = 0; i < steps && rc == SKEP_OK; i++) {
        rc = expert_backward(expert, x, grad, &y->dl_tensor, err);
        if (rc != SKEP_OK)
            break;
        print_tensor(&y->dl_tensor);
        rc = forward(expert, x, &y->dl_tensor, err);
    }
    skep_tensor_free(y);
    return rc;
}

int main(int argc, char **argv)
{
    struct skep_expert_options options;
    struct skep_safetensors *input = NULL, *grad = NULL;
    struct expert *expert = NULL;
    struct skep_error err = {0};
    int code = EXIT_SUCCESS;

    if (argc != 5 && argc != 7) {
        fputs("usage: local_expert UID HIDDEN SEED INPUT [GRAD STEPS]\n", stderr);
        return EXIT_FAILURE;
    }
    skep_expert_options_init(&options);
    options.cls = "ffn";
    options.hidden_dim = atoll(argv[2]);
    options.seed = skep_expert_seed(strtoull(argv[3], NULL, 10), argv[1]);
    skep_status rc = expert_new(&options, &expert, &err);
    if (rc == SKEP_OK)
        rc = skep_safetensors_open(argv[4], &input, &err);
    if (rc == SKEP_OK && argc == 7)
        rc = skep_safetensors_open(argv[5], &grad, &err);
    if (rc == SKEP_OK)
        rc = run(expert, skep_safetensors_find(input, "input.0"),
                 grad != NULL ? skep_safetensors_find(grad, "grad_output.0") : NULL,
                 argc == 7 ? atoi(argv[6]) : 0, &err);
    if (rc != SKEP_OK)
        code = fail(argv[1], &err);
    skep_safetensors_close(grad);
    skep_safetensors_close(input);
    expert_free(expert);
    return code;
}
