/*
 * Trains a classifier of handwritten digits through a swarm.
 *
 * The trainer joins the DHT as a peer of its own, looks up the experts of a grid by UID, and sends
 * each batch to all that it finds. The mean of their outputs goes into a softmax layer kept here;
 * the gradient of the loss goes back through the experts, whose nodes train them (Adam). An expert
 * that fails is left out of that step and asked again in the next.
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <skep/skep.h>

#include "classifier.h"

enum {
    MAX_EXPERTS = 64,
    MAX_PEERS = 16,
    BATCH = 32,
    JOIN_TIMEOUT_MS = 15000,
    CALL_TIMEOUT_MS = 5000,
};

struct settings {
    const char *peers[MAX_PEERS];
    size_t peer_count;
    const char *data;
    const char *swarm;
    const char *swarm_key;
    const char *name; /* of the grid: name.i.j */
    int rows, columns;
    int epochs;
    double target; /* percent of the test set; below it the exit code is 1 */
};

struct dataset {
    size_t train_count, test_count;
    float *train, *test;                 /* owned: free(); [count, FEATURES], 0 to 1 */
    uint8_t *train_labels, *test_labels; /* the same */
};

struct trainer {
    struct skep_client *client;
    struct skep_remote_expert *experts[MAX_EXPERTS];
    uint64_t calls[MAX_EXPERTS], failures[MAX_EXPERTS];
    size_t expert_count;
    struct classifier head;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

static int complain(const struct skep_error *err)
{
    fprintf(stderr, "digits: %s: %s\n", skep_status_name(err->status), err->message);
    return 1;
}

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static DLTensor view(float *data, int64_t shape[static 2])
{
    return (DLTensor){
        .data = data,
        .device = {.device_type = kDLCPU},
        .ndim = 2,
        .dtype = {.code = kDLFloat, .bits = 32, .lanes = 1},
        .shape = shape,
    };
}

/* ---- data */

static bool load_part(const struct skep_safetensors *file, const char *part, float **x,
                      uint8_t **labels, size_t *count)
{
    char name[32];

    snprintf(name, sizeof(name), "%s.images", part);
    const DLTensor *images = skep_safetensors_find(file, name);
    snprintf(name, sizeof(name), "%s.labels", part);
    const DLTensor *classes = skep_safetensors_find(file, name);
    if (images == NULL || classes == NULL || images->ndim != 2 || images->shape[1] != FEATURES ||
        images->dtype.bits != 8 || classes->ndim != 1 || classes->dtype.bits != 8 ||
        classes->shape[0] != images->shape[0])
        return false;
    *count = (size_t)images->shape[0];
    *x = malloc(*count * FEATURES * sizeof(**x));
    *labels = malloc(*count);
    if (*x == NULL || *labels == NULL)
        return false;
    const uint8_t *pixels = skep_tensor_data(images);
    for (size_t i = 0; i < *count * FEATURES; i++)
        (*x)[i] = (float)pixels[i] / 16.0f;
    const uint8_t *values = skep_tensor_data(classes);
    for (size_t i = 0; i < *count; i++) {
        if (values[i] >= CLASSES)
            return false;
        (*labels)[i] = values[i];
    }
    return true;
}

static void dataset_fini(struct dataset *d)
{
    free(d->train);
    free(d->test);
    free(d->train_labels);
    free(d->test_labels);
}

static bool load_dataset(struct dataset *d, const char *path)
{
    struct skep_error err;
    struct skep_safetensors *file;

    if (skep_safetensors_open(path, &file, &err) != SKEP_OK) {
        complain(&err);
        return false;
    }
    bool ok = load_part(file, "train", &d->train, &d->train_labels, &d->train_count) &&
              load_part(file, "test", &d->test, &d->test_labels, &d->test_count) &&
              d->train_count >= BATCH && d->test_count > 0;
    if (!ok)
        fprintf(stderr,
                "digits: %s: expected U8 tensors train.images [n, 64], train.labels [n] (0 to 9) "
                "and the same for test, at least %d training samples\n",
                path, BATCH);
    skep_safetensors_close(file);
    return ok;
}

/* ---- the swarm */

/* One call to each expert at once; entry i of outputs is owned, NULL where the expert failed. */
static size_t call_all(struct trainer *t, float *x, float *grad, int rows,
                       DLManagedTensor *outputs[MAX_EXPERTS])
{
    int64_t shape[2] = {rows, FEATURES};
    DLTensor input = view(x, shape);
    DLTensor gradient = view(grad, shape);
    const DLTensor *inputs[1] = {&input};
    const DLTensor *gradients[1] = {&gradient};
    struct skep_call_options options = {.timeout_ms = CALL_TIMEOUT_MS};
    struct skep_call *calls[MAX_EXPERTS] = {NULL};
    size_t answered = 0;

    for (size_t i = 0; i < t->expert_count; i++) {
        skep_status rc;
        if (grad == NULL)
            rc = skep_remote_expert_forward_start(t->experts[i], inputs, 1, &options, NULL, NULL,
                                                  &calls[i], NULL);
        else
            rc = skep_remote_expert_backward_start(t->experts[i], inputs, 1, gradients, 1, &options,
                                                   NULL, NULL, &calls[i], NULL);
        if (rc != SKEP_OK)
            calls[i] = NULL;
    }
    for (size_t i = 0; i < t->expert_count; i++) {
        struct skep_error err;
        size_t count = 0;
        outputs[i] = NULL;
        t->calls[i]++;
        if (calls[i] != NULL && skep_call_wait(calls[i], 2 * CALL_TIMEOUT_MS) &&
            skep_call_result(calls[i], &outputs[i], 1, &count, &err) == SKEP_OK && count == 1) {
            answered++;
        } else {
            if (t->failures[i]++ == 0 && calls[i] != NULL && !interrupted)
                complain(&err);
        }
        skep_call_free(calls[i]);
    }
    return answered;
}

/* The mean of what the experts answer, [rows, FEATURES]. False if none did. */
static bool forward(struct trainer *t, float *x, int rows, float *mean)
{
    DLManagedTensor *outputs[MAX_EXPERTS];
    size_t answered = call_all(t, x, NULL, rows, outputs);
    size_t n = (size_t)rows * FEATURES;

    memset(mean, 0, n * sizeof(*mean));
    for (size_t i = 0; i < t->expert_count; i++) {
        if (outputs[i] == NULL)
            continue;
        const float *y = skep_tensor_data(&outputs[i]->dl_tensor);
        for (size_t k = 0; k < n; k++)
            mean[k] += y[k] / (float)answered;
        skep_tensor_free(outputs[i]);
    }
    return answered > 0;
}

/* Sends the gradient of the mean back: each expert's share of it. */
static void backward(struct trainer *t, float *x, float *grad, int rows)
{
    DLManagedTensor *outputs[MAX_EXPERTS];

    for (size_t k = 0; k < (size_t)rows * FEATURES; k++)
        grad[k] /= (float)t->expert_count;
    call_all(t, x, grad, rows, outputs);
    for (size_t i = 0; i < t->expert_count; i++)
        skep_tensor_free(outputs[i]);
}

static bool find_experts(struct trainer *t, const struct settings *s)
{
    static char text[MAX_EXPERTS][SKEP_UID_BYTES];
    const char *uids[MAX_EXPERTS];
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
    if (skep_client_find_many(t->client, uids, count, JOIN_TIMEOUT_MS, found, NULL, &err) !=
        SKEP_OK)
        complain(&err);
    for (size_t i = 0; i < count; i++)
        if (found[i] != NULL)
            t->experts[t->expert_count++] = found[i];
    if (t->expert_count == 0)
        fprintf(stderr, "digits: no expert of %s.[0:%d].[0:%d] was found in the swarm\n", s->name,
                s->rows, s->columns);
    return t->expert_count > 0;
}

static bool connect_to_swarm(struct trainer *t, const struct settings *s)
{
    struct skep_client_options options;
    struct skep_error err;

    skep_client_options_init(&options);
    options.initial_peers = s->peers;
    options.initial_peer_count = s->peer_count;
    options.swarm = s->swarm;
    options.swarm_key_path = s->swarm_key;
    if (skep_client_new(&options, &t->client, &err) != SKEP_OK ||
        skep_client_wait_joined(t->client, JOIN_TIMEOUT_MS, &err) != SKEP_OK) {
        complain(&err);
        return false;
    }
    printf("joined the swarm as %.12s; %u DHT peers answer\n", skep_client_peer_id(t->client),
           skep_client_peer_count(t->client));
    return find_experts(t, s);
}

static void print_table(struct trainer *t)
{
    printf("\n%-12s %-14s %-22s %10s %8s %9s %8s\n", "expert", "node", "endpoint", "parameters",
           "updates", "calls", "failed");
    for (size_t i = 0; i < t->expert_count; i++) {
        struct skep_provider p = {.expires_at = 0};
        struct skep_expert_info info = {.parameter_count = 0};
        skep_remote_expert_providers(t->experts[i], &p, 1);
        bool known =
            skep_remote_expert_info(t->experts[i], CALL_TIMEOUT_MS, &info, NULL) == SKEP_OK;
        printf("%-12s %-14.12s %-22s ", skep_remote_expert_uid(t->experts[i]), p.peer_id,
               p.endpoint);
        if (known)
            printf("%10" PRIu64 " %8" PRIu64 " ", info.parameter_count, info.update_count);
        else
            printf("%10s %8s ", "?", "?");
        printf("%9" PRIu64 " %8" PRIu64 "\n", t->calls[i], t->failures[i]);
    }
}

/* ---- training */

static void shuffle(size_t *order, size_t n, uint64_t *state)
{
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t i = n - 1; i > 0; i--) {
        *state = *state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
        size_t k = (size_t)(*state >> 33) % (i + 1);
        size_t swap = order[i];
        order[i] = order[k];
        order[k] = swap;
    }
}

static void progress(int epoch, int epochs, size_t done, size_t total, float loss)
{
    if (isatty(fileno(stdout)))
        printf("\repoch %2d/%d [%-20.*s] loss %.4f ", epoch, epochs, (int)(20 * done / total),
               "####################", (double)loss);
    fflush(stdout);
}

/* One pass over the training data; the mean loss, or NaN if no expert answers any more. */
static float train_epoch(struct trainer *t, const struct dataset *d, const struct settings *s,
                         int epoch, uint64_t *random)
{
    size_t *order = malloc(d->train_count * sizeof(*order));
    size_t steps = d->train_count / BATCH;
    float total = 0.0f;

    if (order == NULL)
        return NAN;
    shuffle(order, d->train_count, random);
    for (size_t step = 0; step < steps && !interrupted; step++) {
        float x[BATCH * FEATURES], mean[BATCH * FEATURES], grad[BATCH * FEATURES];
        uint8_t labels[BATCH];
        for (size_t i = 0; i < BATCH; i++) {
            size_t sample = order[step * BATCH + i];
            memcpy(x + i * FEATURES, d->train + sample * FEATURES, FEATURES * sizeof(*x));
            labels[i] = d->train_labels[sample];
        }
        if (!forward(t, x, BATCH, mean)) {
            total = NAN;
            break;
        }
        total += classifier_train(&t->head, mean, labels, BATCH, grad);
        backward(t, x, grad, BATCH);
        progress(epoch, s->epochs, step + 1, steps, total / (float)(step + 1));
    }
    free(order);
    return total / (float)steps;
}

static double test_accuracy(struct trainer *t, const struct dataset *d)
{
    float *mean = malloc(d->test_count * FEATURES * sizeof(*mean));
    uint8_t *classes = malloc(d->test_count);
    size_t right = 0;

    if (mean != NULL && classes != NULL && forward(t, d->test, (int)d->test_count, mean)) {
        classifier_predict(&t->head, mean, (int)d->test_count, classes);
        for (size_t i = 0; i < d->test_count; i++)
            right += classes[i] == d->test_labels[i];
    }
    free(mean);
    free(classes);
    return 100.0 * (double)right / (double)d->test_count;
}

static int train(struct trainer *t, const struct dataset *d, const struct settings *s)
{
    double accuracy = 0.0;
    uint64_t random = 1;

    printf("training %zu experts on %zu digits, testing on %zu others\n", t->expert_count,
           d->train_count, d->test_count);
    classifier_init(&t->head, 1);
    for (int epoch = 1; epoch <= s->epochs && !interrupted; epoch++) {
        double start = seconds_now();
        float loss = train_epoch(t, d, s, epoch, &random);
        double elapsed = seconds_now() - start;
        if (isnan(loss)) {
            fprintf(stderr, "digits: no expert answers any more\n");
            return 1;
        }
        if (interrupted)
            break;
        accuracy = test_accuracy(t, d);
        printf("\repoch %2d/%d  loss %.4f  test accuracy %.2f%%  %.0f samples/s          \n", epoch,
               s->epochs, (double)loss, accuracy, (double)d->train_count / elapsed);
        fflush(stdout);
    }
    if (interrupted) {
        printf("\ninterrupted\n");
        return 130;
    }
    print_table(t);
    printf("\ntest accuracy %.2f%% (%.0f%% was to be reached)\n", accuracy, s->target);
    return accuracy >= s->target ? 0 : 1;
}

/* ---- options */

static void usage(FILE *to)
{
    fprintf(to, "digits --initial-peers 127.0.0.1:4222 --data tests/golden/digits.safetensors\n\n"
                "  --initial-peers HOST:PORT[,...]   DHT peers to join by (needed)\n"
                "  --data FILE                       the digits, safetensors (needed)\n"
                "  --expert-pattern NAME.[0:R].[0:C] grid of experts (default digits.[0:4].[0:4])\n"
                "  --swarm NAME                      (default skep)\n"
                "  --swarm-key FILE                  key of a private swarm\n"
                "  --epochs N                        (default 10)\n"
                "  --target PERCENT                  test accuracy to reach (default 96)\n");
}

static bool parse_pattern(struct settings *s, char *text)
{
    int end = 0;
    char *dot = strchr(text, '.');

    if (dot == NULL || sscanf(dot, ".[0:%d].[0:%d]%n", &s->rows, &s->columns, &end) != 2 ||
        dot[end] != '\0' || s->rows < 1 || s->columns < 1 || s->rows > MAX_EXPERTS ||
        s->columns > MAX_EXPERTS / s->rows) {
        fprintf(stderr,
                "digits: --expert-pattern %s: expected NAME.[0:R].[0:C] with at most %d UIDs\n",
                text, MAX_EXPERTS);
        return false;
    }
    *dot = '\0';
    s->name = text;
    return true;
}

static bool parse_peers(struct settings *s, char *text)
{
    for (char *peer = strtok(text, ","); peer != NULL; peer = strtok(NULL, ",")) {
        if (s->peer_count == MAX_PEERS) {
            fprintf(stderr, "digits: more than %d initial peers\n", MAX_PEERS);
            return false;
        }
        s->peers[s->peer_count++] = peer;
    }
    return true;
}

/* 0: go on; otherwise the exit code plus 1. */
static int parse_options(struct settings *s, int argc, char **argv)
{
    static const struct option options[] = {
        {"initial-peers", required_argument, NULL, 'p'},
        {"data", required_argument, NULL, 'd'},
        {"expert-pattern", required_argument, NULL, 'e'},
        {"swarm", required_argument, NULL, 's'},
        {"swarm-key", required_argument, NULL, 'k'},
        {"epochs", required_argument, NULL, 'n'},
        {"target", required_argument, NULL, 't'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    bool ok = true;
    int option;

    while (ok && (option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'p':
            ok = parse_peers(s, optarg);
            break;
        case 'd':
            s->data = optarg;
            break;
        case 'e':
            ok = parse_pattern(s, optarg);
            break;
        case 's':
            s->swarm = optarg;
            break;
        case 'k':
            s->swarm_key = optarg;
            break;
        case 'n':
            s->epochs = atoi(optarg);
            ok = s->epochs >= 1;
            break;
        case 't':
            s->target = atof(optarg);
            break;
        case 'h':
            usage(stdout);
            return 1;
        default:
            ok = false;
        }
    }
    if (!ok || optind != argc || s->peer_count == 0 || s->data == NULL) {
        usage(stderr);
        return 3;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct settings settings = {
        .name = "digits", .rows = 4, .columns = 4, .epochs = 10, .target = 96.0, .swarm = "skep"};
    struct dataset data = {0};
    struct trainer trainer = {0};
    int code = parse_options(&settings, argc, argv);

    if (code != 0)
        return code - 1;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);

    code = 1;
    if (load_dataset(&data, settings.data) && connect_to_swarm(&trainer, &settings))
        code = train(&trainer, &data, &settings);
    for (size_t i = 0; i < trainer.expert_count; i++)
        skep_remote_expert_free(trainer.experts[i]);
    skep_client_free(trainer.client);
    dataset_fini(&data);
    return code;
}
