/* Epochs over a model: shuffling, the classifier's steps, testing, and telling how it goes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "digits.h"

struct run {
    struct model *model;
    const struct dataset *data;
    const struct settings *settings;
    struct classifier head;
    uint64_t random;
    size_t *order;  /* owned: the training samples, shuffled */
    FILE *progress; /* owned; or NULL */
};

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

/* One step of classifier and experts, on the samples that were answered. Their mean loss; NaN if
 * there is no use in going on. */
static float train_batch(struct run *r, const size_t *samples)
{
    float x[BATCH * FEATURES], out[BATCH * FEATURES], grad[BATCH * FEATURES] = {0};
    float dense[BATCH * FEATURES], dense_grad[BATCH * FEATURES], loss = 0.0f;
    size_t row_bytes = FEATURES * sizeof(*x);
    uint8_t labels[BATCH];
    bool answered[BATCH];
    int count = 0;

    for (size_t i = 0; i < BATCH; i++)
        memcpy(x + i * FEATURES, r->data->train + samples[i] * FEATURES, row_bytes);
    r->model->forward(r->model, x, BATCH, out, answered);
    for (size_t i = 0; i < BATCH; i++) {
        if (!answered[i])
            continue;
        memcpy(dense + count * FEATURES, out + i * FEATURES, row_bytes);
        labels[count++] = r->data->train_labels[samples[i]];
    }
    if (count > 0)
        loss = classifier_train(&r->head, dense, labels, count, dense_grad);
    count = 0;
    for (size_t i = 0; i < BATCH; i++)
        if (answered[i])
            memcpy(grad + i * FEATURES, dense_grad + count++ * FEATURES, row_bytes);
    return r->model->backward(r->model, x, grad, BATCH) ? loss : NAN;
}

static void show_step(int epoch, int epochs, size_t done, size_t total, float loss)
{
    if (isatty(fileno(stdout)))
        printf("\repoch %2d/%d [%-20.*s] loss %.4f ", epoch, epochs, (int)(20 * done / total),
               "####################", (double)loss);
    fflush(stdout);
}

/* One pass over the training data; the mean loss, or NaN if there is no use in going on. */
static float train_epoch(struct run *r, int epoch)
{
    size_t steps = r->data->train_count / BATCH;
    float total = 0.0f;

    shuffle(r->order, r->data->train_count, &r->random);
    for (size_t step = 0; step < steps && !interrupted && !isnan(total); step++) {
        total += train_batch(r, r->order + step * BATCH);
        show_step(epoch, r->settings->epochs, step + 1, steps, total / (float)(step + 1));
    }
    return total / (float)steps;
}

/* How many of these the classifier gets right; what nothing answered for is wrong. What was asked
 * while a node failed is asked once more: it is the model that is tested here. */
static int count_right(struct run *r, float *x, const uint8_t *labels, int rows)
{
    float out[TEST_BATCH * FEATURES];
    uint8_t classes[TEST_BATCH];
    bool answered[TEST_BATCH];
    int right = 0;

    if (!r->model->forward(r->model, x, rows, out, answered) && !interrupted)
        r->model->forward(r->model, x, rows, out, answered);
    classifier_predict(&r->head, out, rows, classes);
    for (int i = 0; i < rows; i++)
        right += answered[i] && classes[i] == labels[i];
    return right;
}

static double test_accuracy(struct run *r)
{
    const struct dataset *d = r->data;
    int right = 0;

    for (size_t at = 0; at < d->test_count && !interrupted; at += TEST_BATCH) {
        size_t left = d->test_count - at;
        right += count_right(r, d->test + at * FEATURES, d->test_labels + at,
                             left < TEST_BATCH ? (int)left : TEST_BATCH);
    }
    return 100.0 * (double)right / (double)d->test_count;
}

static void show_epoch(struct run *r, int epoch, float loss, double accuracy, double rate)
{
    char words[160];

    r->model->tell(r->model, words, sizeof(words));
    printf("\repoch %2d/%d  loss %.4f  test accuracy %.2f%%  %.0f samples/s%s          \n", epoch,
           r->settings->epochs, (double)loss, accuracy, rate, words);
    fflush(stdout);
    if (r->progress == NULL)
        return;
    fprintf(r->progress, "{\"epoch\":%d,\"epochs\":%d,\"loss\":%.6f,\"accuracy\":%.4f,", epoch,
            r->settings->epochs, (double)loss, accuracy);
    r->model->tell_json(r->model, r->progress);
    fprintf(r->progress, "}\n");
    fflush(r->progress); /* whoever follows the file sees whole lines */
}

/* The exit code, unless it is interrupted. */
static int train(struct run *r)
{
    const struct settings *s = r->settings;
    double accuracy = 0.0;

    for (int epoch = 1; epoch <= s->epochs && !interrupted; epoch++) {
        double start = seconds_now();
        float loss = train_epoch(r, epoch);
        double elapsed = seconds_now() - start;
        if (isnan(loss) && !interrupted) {
            fprintf(stderr, "digits: no expert answers any more, or the loss is no number\n");
            return 1;
        }
        accuracy = test_accuracy(r);
        if (!interrupted)
            show_epoch(r, epoch, loss, accuracy, (double)r->data->train_count / elapsed);
    }
    r->model->report(r->model);
    if (interrupted)
        return 1;
    printf("\ntest accuracy %.2f%% (%.0f%% was to be reached)\n", accuracy, s->target);
    return accuracy >= s->target ? 0 : 1;
}

int training_run(struct model *model, const struct dataset *d, const struct settings *s)
{
    struct run r = {.model = model, .data = d, .settings = s, .random = 1};
    int code = 1;

    r.order = malloc(d->train_count * sizeof(*r.order));
    if (s->progress != NULL)
        r.progress = fopen(s->progress, "w");
    if (s->progress != NULL && r.progress == NULL) {
        perror(s->progress);
    } else if (r.order != NULL) {
        printf("training on %zu digits, testing on %zu others\n", d->train_count, d->test_count);
        classifier_init(&r.head, 1);
        code = train(&r);
    }
    if (r.progress != NULL)
        fclose(r.progress);
    free(r.order);
    return code;
}
