/*
 * What the files of this example share.
 *
 *   digits.c   options, the run
 *   training.c epochs over a model, whatever it is made of
 *   mean.c     the model that asks all experts for each sample and takes the mean
 *   mixture.c  the model that asks each sample's best experts (skep/moe.h)
 */
#ifndef DIGITS_DIGITS_H
#define DIGITS_DIGITS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <skep/skep.h>

#include "classifier.h"
#include "dataset.h"

enum {
    MAX_EXPERTS = 64,
    MAX_PEERS = 16,
    BATCH = 32,       /* of training */
    TEST_BATCH = 128, /* of testing, and the most rows a model is given */
    JOIN_TIMEOUT_MS = 15000,
    LOOK_MS = 100, /* how often a wait looks whether it was interrupted */
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
    double target;       /* percent of the test set; below it the exit code is 1 */
    uint32_t timeout_ms; /* of one call, or of one pass through the mixture */
    bool moe;
    const char *progress; /* a file that gets a line of JSON for each epoch, or NULL */
};

/*
 * What turns pixels into the features that the classifier reads. An implementation starts with this
 * struct.
 */
struct model {
    /*
     * Features [rows, FEATURES] of x, which is of the same shape. answered[i]: whether row i has
     * any; those that have none are zeros. False if anything that was asked has failed.
     */
    bool (*forward)(struct model *model, float *x, int rows, float *out, bool *answered);
    /* Trains by the gradient of the last forward's output (zeros where nothing answered). False if
     * there is no use in going on. */
    bool (*backward)(struct model *model, float *x, float *grad, int rows);
    /* A few words, and members of a JSON object, on how it fares. */
    void (*tell)(struct model *model, char *words, size_t cap);
    void (*tell_json)(struct model *model, FILE *to);
    /* At the end of training, for people. */
    void (*report)(struct model *model);
    void (*free)(struct model *model);
};

/* The models. NULL, after having said why, if there are no experts. */
struct model *mean_new(struct skep_client *client, const struct settings *s);
struct model *mixture_new(struct skep_client *client, const struct settings *s);

/* Trains and tests; returns the exit code. */
int training_run(struct model *model, const struct dataset *d, const struct settings *s);

/* Set by SIGINT or SIGTERM: what is under way ends, in order as long as that takes no more than a
 * few seconds (digits.c). */
extern volatile sig_atomic_t interrupted;

/* Says what went wrong; returns 1. */
int complain(const struct skep_error *err);
double seconds_now(void);
/* A float32 matrix in memory of the caller's. */
DLTensor matrix(float *data, int64_t shape[static 2]);

#endif
