/*
 * The C side of python/bench.py: what a C program reaches against the same nodes. It reads commands
 * from standard input and answers each with one line of seconds:
 *
 *     call ROWS WIDTH COUNT   COUNT forward calls of bench.0, one after the other
 *     moe COUNT FILE          COUNT passes, forward and backward, of a mixture over grid.; the file
 *                             holds float32: input [64, 64], weight [8, 64] and bias [8] of the
 * gate
 *
 *     bench_baseline SWARM PEER
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <skep/skep.h>

enum { SAMPLES = 64, FEATURES = 64, SIDE = 4, K_BEST = 4 };

static void check(skep_status rc, const struct skep_error *err)
{
    if (rc == SKEP_OK)
        return;
    fprintf(stderr, "bench_baseline: %s\n", err->message);
    exit(1);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static DLManagedTensor *new_tensor(int64_t rows, int64_t width)
{
    const int64_t shape[2] = {rows, width};
    const DLDataType f32 = {kDLFloat, 32, 1};
    DLManagedTensor *t;
    struct skep_error err;

    check(skep_tensor_new(f32, 2, shape, &t, &err), &err);
    float *x = skep_tensor_data(&t->dl_tensor);
    for (int64_t i = 0; i < rows * width; i++)
        x[i] = (float)rand() / (float)RAND_MAX * 4.0f - 2.0f;
    return t;
}

static double calls(struct skep_remote_expert *expert, int64_t rows, int64_t width, int count)
{
    DLManagedTensor *x = new_tensor(rows, width);
    const DLTensor *input = &x->dl_tensor;
    double start = now();

    for (int i = 0; i < count; i++) {
        DLManagedTensor *y;
        size_t outputs;
        struct skep_error err;

        check(skep_remote_expert_forward(expert, &input, 1, NULL, &y, 1, &outputs, &err), &err);
        skep_tensor_free(y);
    }
    double seconds = now() - start;
    skep_tensor_free(x);
    return seconds;
}

static void fill(FILE *file, const DLTensor *t)
{
    size_t bytes;
    struct skep_error err;

    check(skep_tensor_bytes(t, &bytes, &err), &err);
    if (fread(skep_tensor_data(t), 1, bytes, file) != bytes) {
        fprintf(stderr, "bench_baseline: the file of the gate is too short\n");
        exit(1);
    }
}

static double passes(struct skep_client *client, int count, const char *path)
{
    FILE *file = fopen(path, "rb");

    struct skep_moe_options options;
    struct skep_moe *moe;
    struct skep_error err;
    DLManagedTensor *x = new_tensor(SAMPLES, FEATURES), *g = new_tensor(SAMPLES, FEATURES);

    skep_moe_options_init(&options);
    options.grid = (struct skep_grid){.prefix = "grid.", .dims = 2, .sizes = {SIDE, SIDE}};
    options.k_best = K_BEST;
    options.in_features = FEATURES;
    options.seed = 1;
    check(skep_moe_new(client, &options, &moe, &err), &err);
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    fill(file, &x->dl_tensor);
    fill(file, skep_moe_weight(moe));
    fill(file, skep_moe_bias(moe));
    fclose(file);
    double start = now();
    for (int i = 0; i < count; i++) {
        struct skep_moe_pass *pass;
        struct skep_moe_grads grads;
        DLManagedTensor *y;

        check(skep_moe_forward(moe, &x->dl_tensor, NULL, &pass, &y, &err), &err);
        check(skep_moe_backward(pass, &g->dl_tensor, &grads, &err), &err);
        skep_moe_grads_free(&grads);
        skep_moe_pass_free(pass);
        skep_tensor_free(y);
    }
    double seconds = now() - start;
    skep_moe_free(moe);
    skep_tensor_free(x);
    skep_tensor_free(g);
    return seconds;
}

int main(int argc, char **argv)
{
    struct skep_client_options options;
    struct skep_client *client;
    struct skep_remote_expert *expert;
    struct skep_error err;
    char line[512], path[256];
    long rows, width;
    int count;

    if (argc != 3) {
        fprintf(stderr, "usage: bench_baseline SWARM PEER\n");
        return 2;
    }
    skep_client_options_init(&options);
    const char *peer = argv[2];
    options.swarm = argv[1];
    options.initial_peers = &peer;
    options.initial_peer_count = 1;
    check(skep_client_new(&options, &client, &err), &err);
    check(skep_client_wait_joined(client, 10000, &err), &err);
    check(skep_client_find(client, "bench.0", 10000, &expert, &err), &err);
    while (fgets(line, sizeof(line), stdin) != NULL) {
        double seconds = -1.0;

        if (sscanf(line, "call %ld %ld %d", &rows, &width, &count) == 3)
            seconds = calls(expert, rows, width, count);
        else if (sscanf(line, "moe %d %255s", &count, path) == 2)
            seconds = passes(client, count, path);
        printf("%.9f\n", seconds);
        fflush(stdout);
    }
    skep_remote_expert_free(expert);
    skep_client_free(client);
    return 0;
}
