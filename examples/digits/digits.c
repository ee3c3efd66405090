/*
 * Trains a classifier of handwritten digits through a swarm.
 *
 * The trainer joins the DHT as a peer of its own and finds the experts of a grid. Digits go to
 * them, what they answer goes into a softmax layer kept here, and the gradient of the loss goes
 * back through the experts, whose nodes train them (Adam). Either each digit goes to all experts,
 * and the mean counts (mean.c), or, with --moe, to the four that a gating network prefers
 * (mixture.c).
 */
#include "digits.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    EXIT_INTERRUPTED = 130, /* as of a shell's command that Ctrl-C has ended */
    GRACE_S = 3,            /* for ending in order */
};

volatile sig_atomic_t interrupted;

/* The first signal asks for an end in order. A second one, or the alarm where that takes too long
 * (a pass through the mixture cannot be called back, and nodes may hang), ends it at once. */
static void on_signal(int number)
{
    static const char words[] = "\ninterrupted\n";

    if (interrupted || number == SIGALRM) {
        ssize_t written = write(STDOUT_FILENO, words, sizeof(words) - 1);
        (void)written; /* it ends either way */
        _exit(EXIT_INTERRUPTED);
    }
    interrupted = 1;
    alarm(GRACE_S);
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
}

int complain(const struct skep_error *err)
{
    fprintf(stderr, "digits: %s: %s\n", skep_status_name(err->status), err->message);
    return 1;
}

double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

DLTensor matrix(float *data, int64_t shape[static 2])
{
    return (DLTensor){
        .data = data,
        .device = {.device_type = kDLCPU},
        .ndim = 2,
        .dtype = {.code = kDLFloat, .bits = 32, .lanes = 1},
        .shape = shape,
    };
}

static bool wait_joined(struct skep_client *client, const struct settings *s)
{
    struct skep_error err;

    for (int waited_ms = 0; waited_ms < JOIN_TIMEOUT_MS && !interrupted; waited_ms += LOOK_MS) {
        skep_status rc = skep_client_wait_joined(client, LOOK_MS, &err);
        if (rc == SKEP_OK)
            return true;
        if (rc != SKEP_DEADLINE_EXCEEDED) {
            complain(&err);
            return false;
        }
    }
    if (!interrupted)
        fprintf(stderr, "digits: no DHT peer of swarm %s has answered in %d s\n", s->swarm,
                JOIN_TIMEOUT_MS / 1000);
    return false;
}

static struct skep_client *join(const struct settings *s)
{
    struct skep_client_options options;
    struct skep_client *client = NULL;
    struct skep_error err;

    skep_client_options_init(&options);
    options.initial_peers = s->peers;
    options.initial_peer_count = s->peer_count;
    options.swarm = s->swarm;
    options.swarm_key_path = s->swarm_key;
    if (skep_client_new(&options, &client, &err) != SKEP_OK) {
        complain(&err);
        return NULL;
    }
    if (!wait_joined(client, s)) {
        skep_client_free(client);
        return NULL;
    }
    printf("joined the swarm as %.12s; %u DHT peers answer\n", skep_client_peer_id(client),
           skep_client_peer_count(client));
    return client;
}

/* ---- options */

static void usage(FILE *to)
{
    fprintf(to,
            "digits --initial-peers 127.0.0.1:4222 --data tests/golden/digits.safetensors\n\n"
            "  --initial-peers HOST:PORT[,...]   DHT peers to join by (needed)\n"
            "  --data FILE                       the digits, safetensors (needed)\n"
            "  --expert-pattern NAME.[0:R].[0:C] grid of experts (default digits.[0:4].[0:4])\n"
            "  --swarm NAME                      (default skep)\n"
            "  --swarm-key FILE                  key of a private swarm\n"
            "  --epochs N                        (default 10)\n"
            "  --target PERCENT                  test accuracy to reach (default 96)\n"
            "  --moe                             each digit to the best 4 experts, chosen by a\n"
            "                                    gating network; without: to all\n"
            "  --timeout SECONDS                 of a call; with --moe, of a pass through the\n"
            "                                    mixture (default 5, with --moe 2)\n"
            "  --progress FILE                   gets a line of JSON for each epoch\n"
            "\nExit codes: 0 the accuracy was reached, 1 it was not, 2 bad usage, 130 "
            "interrupted (a second\nCtrl-C ends it at once).\n");
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

static bool parse_timeout(struct settings *s, const char *text)
{
    double seconds = atof(text);

    if (!(seconds >= 0.01 && seconds <= 3600)) {
        fprintf(stderr, "digits: --timeout %s: expected 0.01 to 3600 seconds\n", text);
        return false;
    }
    s->timeout_ms = (uint32_t)(1000 * seconds);
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
        {"moe", no_argument, NULL, 'm'},
        {"timeout", required_argument, NULL, 'w'},
        {"progress", required_argument, NULL, 'o'},
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
        case 'm':
            s->moe = true;
            break;
        case 'w':
            ok = parse_timeout(s, optarg);
            break;
        case 'o':
            s->progress = optarg;
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
    if (s->timeout_ms == 0)
        s->timeout_ms = s->moe ? 2000 : 5000;
    return 0;
}

int main(int argc, char **argv)
{
    struct settings settings = {
        .name = "digits", .rows = 4, .columns = 4, .epochs = 10, .target = 96.0, .swarm = "skep"};
    struct dataset data = {0};
    struct skep_client *client = NULL;
    struct model *model = NULL;
    int code = parse_options(&settings, argc, argv);

    if (code != 0)
        return code - 1;
    catch_signals();
    code = 1;
    if (dataset_load(&data, settings.data))
        client = join(&settings);
    if (client != NULL)
        model = settings.moe ? mixture_new(client, &settings) : mean_new(client, &settings);
    if (model != NULL) {
        code = training_run(model, &data, &settings);
        model->free(model);
    }
    skep_client_free(client);
    dataset_fini(&data);
    if (!interrupted)
        return code;
    printf("\ninterrupted\n");
    return EXIT_INTERRUPTED;
}
