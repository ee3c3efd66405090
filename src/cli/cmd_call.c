/* skep call: one forward or backward pass of a remote expert, tensors from and to files. */
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "cli/call_tensors.h"
#include "cli/client_options.h"
#include "cli/command.h"
#include "cli/compression.h"
#include "cli/options.h"
#include "cli/output.h"
#include "dht/record/uid.h"

static const struct option_spec specs[] = {
    {.name = "input",
     .kind = OPTION_STRING,
     .placeholder = "FILE",
     .help = "input tensors: .npy, or .safetensors with input.0, input.1, ... or in the "
             "order of their names",
     .unset = "none; the expert's schema is shown"},
    {.name = "output",
     .kind = OPTION_STRING,
     .placeholder = "FILE",
     .help = "file for the result, .safetensors or .npy",
     .unset = "a summary is shown"},
    {.name = "grad",
     .kind = OPTION_STRING,
     .placeholder = "FILE",
     .help = "gradients of the outputs, for a backward pass, which trains the expert; the "
             "result is the gradients of the inputs"},
    {.name = "no-cast",
     .kind = OPTION_FLAG,
     .help = "refuse inputs and gradients in Fortran order or of another type than the "
             "expert's; without this option, floats of other widths are cast to F32, with a "
             "note"},
    {.name = "request-id",
     .kind = OPTION_STRING,
     .placeholder = "HEX",
     .help = "32 hex digits that identify this backward pass: a repeat with the same "
             "--identity, --endpoint, input and gradients trains only once",
     .unset = "random"},
    {.name = "endpoint",
     .kind = OPTION_ENDPOINT,
     .help = "call the node at this address instead of looking the expert up"},
    {.name = "peer-id",
     .kind = OPTION_STRING,
     .placeholder = "HEX",
     .check = options_check_peer_id,
     .help = "with --endpoint: peer id that the node must prove"},
    {.name = "match-key",
     .kind = OPTION_STRING,
     .placeholder = "KEY",
     .help = "with --endpoint: lease the node for this call, with the match key that a "
             "tracker issued for it"},
    {.name = "hedge-after",
     .kind = OPTION_INT,
     .min = 1,
     .max = 3600000,
     .unit = "ms",
     .help = "if a forward call has no reply after this time, call a second node that serves"
             " the expert too, and take the first good reply",
     .unset = "half of --timeout"},
    COMPRESSION_OPTION_SPECS("compression of F32 inputs and outputs: none, float16, bfloat16, "
                             "meanstd16, uniform8, quantile8 or blockwise8",
                             "the same for gradients", "the node's choice"),
    CLIENT_OPTION_SPECS,
};

static const struct option_table table = {
    .command = "call",
    .summary = "Calls an expert: forward, or backward with --grad. Without --input, shows the "
               "expert's schema.",
    .example = "skep call ffn.0.0 --initial-peers 192.0.2.10:4222 --input x.safetensors "
               "--output y.safetensors\n"
               "skep call ffn.0.0 --initial-peers 192.0.2.10:4222 --input x.npy\n"
               "skep call ffn.0.0 --initial-peers 192.0.2.10:4222 --input x.npy --grad g.npy "
               "--output gx.npy",
    .specs = specs,
    .count = OPTION_COUNT(specs),
    .positional = "UID",
    .positional_min = 1,
    .positional_max = 1,
};
const struct option_table *const cmd_call_options = &table;

struct call {
    const struct options *o;
    uint64_t deadline_us;            /* when --timeout is over */
    struct skep_client_lease *lease; /* NULL: without */
    struct skep_remote_expert *expert;
    struct call_tensors input, grad;
    json_t *notes; /* owned: see call_tensors.h */
    uint8_t request_id[SKEP_REQUEST_ID_BYTES];
    DLManagedTensor *results[TENSOR_FILE_MAX]; /* owned */
    size_t result_count;
    bool answered; /* what fails then is the output file */
    double elapsed_ms;
    enum skep_compression compression; /* of the answer */
    struct skep_client_stats stats;    /* of the client that made this one call */
    char peer_id[SKEP_PEER_ID_TEXT_BYTES];
};

/* Options of what this call does not do, or has no use for. */
static int check_parts(struct options *o)
{
    static const struct {
        const char *name, *needs;
    } rows[] = {
        {"output", "input"},    {"no-cast", "input"},    {"grad", "input"},
        {"request-id", "grad"}, {"peer-id", "endpoint"}, {"match-key", "endpoint"},
    };
    int code = client_options_check_direct(o);

    for (size_t i = 0; i < OPTION_COUNT(rows) && code == CLI_DONE; i++)
        code = options_needs(o, rows[i].name, rows[i].needs);
    return code;
}

/* Options that would do nothing in this call. */
static int check_idle(struct options *o)
{
    bool has_input = options_string(o, "input") != NULL;
    bool has_grad = options_string(o, "grad") != NULL;
    int code = CLI_DONE;

    if (has_grad)
        code = options_idle(o, "hedge-after",
                            "does nothing with --grad: a backward call, which "
                            "trains, is never sent twice");
    else if (!has_input || options_endpoint(o, "endpoint") != NULL)
        code = options_idle(o, "hedge-after",
                            "needs --input, and a swarm of nodes to "
                            "choose from: not --endpoint");
    if (code == CLI_DONE)
        code = options_needs(o, "compression", "input");
    if (code == CLI_DONE)
        code = options_needs(o, "grad-compression", "grad");
    return code;
}

static int check_usage(struct options *o)
{
    struct uid parsed;
    struct skep_error err;
    uint8_t id[SKEP_REQUEST_ID_BYTES];
    int code;

    if (uid_parse(&parsed, o->positional[0], &err) != SKEP_OK)
        return cli_usage_error(table.command, "%s", err.message);
    code = check_parts(o);
    if (code != CLI_DONE)
        return code;
    const char *request_id = options_string(o, "request-id");
    if (options_string(o, "output") != NULL &&
        !tensor_file_name_is_known(options_string(o, "output")))
        return cli_usage_error(table.command,
                               "--output %s: expected a name that ends in .npy or .safetensors",
                               options_string(o, "output"));
    /* A node knows a repeat by id and peer; without an identity each run is another peer. */
    if (request_id != NULL && options_string(o, "identity") == NULL)
        return cli_usage_error(table.command, "--request-id needs --identity: a call is a repeat "
                                              "only if it comes from the same peer");
    if (request_id != NULL &&
        (strlen(request_id) != 2 * sizeof(id) || !hex_decode(id, sizeof(id), request_id)))
        return cli_usage_error(table.command, "--request-id %s: expected 32 hex digits",
                               request_id);
    if (request_id != NULL && options_endpoint(o, "endpoint") == NULL)
        return cli_usage_error(table.command,
                               "--request-id needs --endpoint: another node that serves the expert "
                               "would do the same once more");
    return check_idle(o);
}

static skep_status locate(struct call *c, struct skep_client *client, struct skep_error *err)
{
    const struct endpoint *endpoint = options_endpoint(c->o, "endpoint");
    const char *uid = c->o->positional[0];
    const char *match_key = options_string(c->o, "match-key");
    char text[ENDPOINT_TEXT_BYTES];

    if (endpoint == NULL)
        return skep_client_find(client, uid, client_left_ms(c->deadline_us), &c->expert, err);
    endpoint_format(endpoint, text);
    if (match_key == NULL)
        return skep_client_expert_at(client, uid, text, options_string(c->o, "peer-id"), &c->expert,
                                     err);
    skep_status rc =
        skep_client_lease_begin(client, text, options_string(c->o, "peer-id"), match_key, 0,
                                client_left_ms(c->deadline_us), &c->lease, err);
    return rc == SKEP_OK ? skep_client_lease_expert(c->lease, uid, &c->expert, err) : rc;
}

/* ---- showing the schema */

static json_t *json_of_specs(const struct skep_tensor_spec *list, size_t count)
{
    json_t *all = json_array();

    for (size_t i = 0; i < count; i++) {
        json_t *shape = json_array();
        for (int d = 0; d < list[i].ndim; d++)
            json_array_append_new(shape, json_integer((json_int_t)list[i].shape[d]));
        json_array_append_new(all, json_pack("{s:s, s:s, s:o}", "name", list[i].name, "dtype",
                                             skep_dtype_name(list[i].dtype), "shape", shape));
    }
    return all;
}

static void print_specs(const char *role, const struct skep_tensor_spec *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        printf("%-12s%s: [", i == 0 ? role : "", list[i].name);
        for (int d = 0; d < list[i].ndim; d++) {
            if (list[i].shape[d] < 0)
                printf("%s%s", d == 0 ? "" : ", ", d == 0 ? "rows" : "any");
            else
                printf("%s%" PRId64, d == 0 ? "" : ", ", list[i].shape[d]);
        }
        printf("] %s\n", skep_dtype_name(list[i].dtype));
    }
}

static void print_info(const struct skep_expert_info *info)
{
    printf("%-12s%s\n%-12s%s\n%-12s%s\n%-12s%s\n", "expert", info->uid, "node",
           info->peer_id[0] != '\0' ? info->peer_id : "(not asked who it is: --peer-id)", "class",
           info->cls, "precision", info->precision);
    print_specs("inputs", info->schema.inputs, info->schema.input_count);
    print_specs("outputs", info->schema.outputs, info->schema.output_count);
    printf("%-12s%" PRIu64 "\n%-12s%" PRIu64 " (%" PRIu64 " skipped)\n%-12s%" PRId64 " rows\n",
           "parameters", info->parameter_count, "updates", info->update_count, info->skipped_steps,
           "batch up to", info->max_batch_size);
    printf("%-12s%.0f examples/s, %" PRIu64 " task%s waiting%s\n", "load",
           info->examples_per_second, info->queued_tasks, info->queued_tasks == 1 ? "" : "s",
           info->stalled ? "; STALLED: its last batch takes too long" : "");
    printf("%-12s%s, gradients %s\n", "compression", skep_compression_name(info->compression),
           skep_compression_name(info->grad_compression));
}

static skep_status show_info(struct call *c, struct skep_error *err)
{
    struct skep_expert_info info;
    skep_status rc = skep_remote_expert_info(c->expert, client_left_ms(c->deadline_us), &info, err);

    if (rc != SKEP_OK)
        return rc;
    if (!options_flag(c->o, "json")) {
        print_info(&info);
        return SKEP_OK;
    }
    json_print(
        json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:f, s:I, s:b, s:s, s:s}",
                  "uid", info.uid, "peer_id", info.peer_id, "class", info.cls, "precision",
                  info.precision, "inputs",
                  json_of_specs(info.schema.inputs, info.schema.input_count), "outputs",
                  json_of_specs(info.schema.outputs, info.schema.output_count), "parameters",
                  (json_int_t)info.parameter_count, "updates", (json_int_t)info.update_count,
                  "skipped_steps", (json_int_t)info.skipped_steps, "max_batch_size",
                  (json_int_t)info.max_batch_size, "examples_per_s", info.examples_per_second,
                  "queued_tasks", (json_int_t)info.queued_tasks, "stalled", info.stalled,
                  "compression", skep_compression_name(info.compression), "grad_compression",
                  skep_compression_name(info.grad_compression)),
        stdout);
    return SKEP_OK;
}

/* ---- calling */

static skep_status open_files(struct call *c, struct skep_error *err)
{
    const char *grad = options_string(c->o, "grad");
    const char *output = options_string(c->o, "output");
    bool no_cast = options_flag(c->o, "no-cast");
    skep_status rc = call_tensors_open(&c->input, options_string(c->o, "input"), "input", no_cast,
                                       c->notes, err);

    /* Before the call: a backward whose result is lost has trained all the same. */
    if (rc == SKEP_OK && output != NULL)
        rc = output_file_check(output, err);
    if (rc == SKEP_OK && grad != NULL)
        rc = call_tensors_open(&c->grad, grad, "grad_output", no_cast, c->notes, err);
    return rc;
}

/* NumPy makes float64 by default. Only then does this ask what the expert takes. */
static skep_status cast_files(struct call *c, struct skep_error *err)
{
    struct skep_expert_info info;

    if (options_flag(c->o, "no-cast") ||
        (!call_tensors_may_need_cast(&c->input) && !call_tensors_may_need_cast(&c->grad)))
        return SKEP_OK;
    skep_status rc = skep_remote_expert_info(c->expert, client_left_ms(c->deadline_us), &info, err);
    if (rc == SKEP_OK)
        rc = call_tensors_cast(&c->input, "input", info.schema.inputs, info.schema.input_count,
                               c->notes, err);
    if (rc == SKEP_OK)
        rc = call_tensors_cast(&c->grad, "grad_output", info.schema.outputs,
                               info.schema.output_count, c->notes, err);
    return rc;
}

static const char *result_role(const struct call *c)
{
    return options_string(c->o, "grad") != NULL ? "grad_input" : "output";
}

static skep_status call_expert(struct call *c, struct skep_error *err)
{
    const char *request_id = options_string(c->o, "request-id");
    bool is_backward = options_string(c->o, "grad") != NULL;
    struct skep_call_options options = {
        .compression = compression_option(c->o, "compression"),
        .grad_compression = compression_option(c->o, "grad-compression"),
        .hedge_after_ms = (uint32_t)options_int(c->o, "hedge-after"),
    };
    struct skep_call *call;
    const char *output = options_string(c->o, "output");
    skep_status rc = cast_files(c, err);

    if (rc != SKEP_OK)
        return rc;
    options.timeout_ms = client_left_ms(c->deadline_us);
    uint64_t start_us = clock_mono_us();
    if (request_id != NULL && hex_decode(c->request_id, sizeof(c->request_id), request_id))
        options.request_id = c->request_id;
    if (is_backward)
        rc = skep_remote_expert_backward_start(c->expert, c->input.sent, c->input.file.count,
                                               c->grad.sent, c->grad.file.count, &options, NULL,
                                               NULL, &call, err);
    else
        rc = skep_remote_expert_forward_start(c->expert, c->input.sent, c->input.file.count,
                                              &options, NULL, NULL, &call, err);
    if (rc != SKEP_OK)
        return rc;
    skep_call_wait(call, UINT32_MAX);
    rc = skep_call_result(call, c->results, TENSOR_FILE_MAX, &c->result_count, err);
    c->elapsed_ms = (double)(clock_mono_us() - start_us) / 1000.0;
    snprintf(c->peer_id, sizeof(c->peer_id), "%s", skep_call_peer_id(call));
    c->compression = skep_call_compression(call);
    skep_call_free(call);
    c->answered = rc == SKEP_OK;
    if (rc == SKEP_OK && output != NULL)
        rc = tensor_file_save(output, result_role(c), c->results, c->result_count, err);
    return rc;
}

static void report(const struct call *c)
{
    const char *role = options_string(c->o, "grad") != NULL ? "backward" : "forward";
    const char *output = options_string(c->o, "output");
    json_t *shapes;
    char text[128];
    json_t *summary = json_array(); /* of what goes to no file */

    for (size_t i = 0; output == NULL && i < c->result_count; i++)
        json_array_append_new(summary,
                              call_tensor_summary(result_role(c), i, &c->results[i]->dl_tensor));
    if (!options_flag(c->o, "json")) {
        printf("%s %s: %.2f ms", c->o->positional[0], role, c->elapsed_ms);
        for (size_t i = 0; i < c->result_count; i++)
            printf(", %s", tensor_describe(&c->results[i]->dl_tensor, text, sizeof(text)));
        printf("%s%s%s\n", c->stats.hedges > 0 ? ", two nodes asked" : "",
               output != NULL ? " -> " : "", output != NULL ? output : "");
        for (size_t i = 0; i < json_array_size(summary); i++)
            call_tensor_print(json_array_get(summary, i));
        json_decref(summary);
        return;
    }
    shapes = json_array();
    for (size_t i = 0; i < c->result_count; i++)
        json_array_append_new(
            shapes, json_string(tensor_describe(&c->results[i]->dl_tensor, text, sizeof(text))));
    json_print(json_pack("{s:s, s:s, s:s, s:f, s:o, s:o, s:O, s:s, s:s?, s:I, s:I}", "uid",
                         c->o->positional[0], "method", role, "peer_id", c->peer_id, "elapsed_ms",
                         c->elapsed_ms, "tensors", shapes, "summary", summary, "notes", c->notes,
                         "compression", skep_compression_name(c->compression), "output", output,
                         "requests", (json_int_t)c->stats.requests, "hedges",
                         (json_int_t)c->stats.hedges),
               stdout);
}

static int run(struct call *c)
{
    struct skep_client *client = NULL;
    struct skep_error err = {0};
    bool has_input = options_string(c->o, "input") != NULL;
    skep_status rc = has_input ? open_files(c, &err) : SKEP_OK;

    if (rc != SKEP_OK)
        return cli_fail_before(table.command, &err);
    int code = client_from_options(table.command, c->o, options_endpoint(c->o, "endpoint") != NULL,
                                   &client, &c->deadline_us);
    if (code != CLI_DONE)
        return code;
    rc = locate(c, client, &err);
    if (rc == SKEP_OK)
        rc = has_input ? call_expert(c, &err) : show_info(c, &err);
    skep_client_stats(client, &c->stats);
    if (rc == SKEP_OK && has_input)
        report(c);
    skep_remote_expert_free(c->expert);
    skep_client_lease_free(c->lease);
    skep_client_free(client);
    if (rc == SKEP_OK)
        return CLI_DONE;
    code = c->answered ? cli_fail_before(table.command, &err) : cli_fail(table.command, &err);
    if (err.outcome_unknown)
        fprintf(stderr, "The expert may or may not have been trained by this call.\n");
    return code;
}

int cmd_call(int argc, char **argv)
{
    struct options o;
    int code;

    if (!options_begin(&o, &table, argc, argv, &code))
        return code;
    struct call c = {.o = &o, .notes = json_array()};
    code = check_usage(&o);
    if (code == CLI_DONE)
        code = run(&c);
    for (size_t i = 0; i < c.result_count; i++)
        skep_tensor_free(c.results[i]);
    call_tensors_close(&c.input);
    call_tensors_close(&c.grad);
    json_decref(c.notes);
    options_free(&o);
    return code;
}
