/*
 * A hosted expert: parameters, forward, and backward with its optimizer step.
 * Formulas and parameter names: tests/golden/README.md, sections 3 and 4.
 *
 * Threads: forward and backward of one expert by one thread at a time; the counters and the schema
 * may be read by any thread at any time.
 */
#ifndef SKEP_EXPERTS_EXPERT_H
#define SKEP_EXPERTS_EXPERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/expert.h>
#include <skep/status.h>

struct expert;

/*
 * Creates an expert with seeded parameters (as PyTorch initializes its modules).
 * @return SKEP_INVALID_ARGUMENT for an unknown class (the known ones are listed), a hidden_dim out
 * of range, an unknown optimizer or a hyper-parameter out of range; SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status expert_new(const struct skep_expert_options *options,
                                       struct expert **out, struct skep_error *err);
void expert_free(struct expert *expert); /* NULL is allowed */

/*
 * The bytes that expert_new() would allocate for parameters and optimizer state with these options
 * (a call needs scratch memory besides). Errors as expert_new(), nothing is allocated.
 */
SKEP_MUST_CHECK skep_status expert_memory(const struct skep_expert_options *options,
                                          uint64_t *bytes, struct skep_error *err);

/* What expert_new() would make of options. Errors as there, nothing is allocated. */
struct expert_description {
    struct skep_expert_schema schema;
    uint64_t parameters;
    uint64_t bytes;          /* as expert_memory() gives them */
    uint64_t gradient_bytes; /* for the length of a backward pass */
};
SKEP_MUST_CHECK skep_status expert_describe(const struct skep_expert_options *options,
                                            struct expert_description *out, struct skep_error *err);

/* Options with texts of their own, which they point to: not to be copied as a whole. */
struct expert_settings {
    struct skep_expert_options options;
    char cls[SKEP_EXPERT_NAME_BYTES];
    char optimizer[SKEP_EXPERT_NAME_BYTES];
    char schedule[SKEP_EXPERT_NAME_BYTES];
    char precision[SKEP_EXPERT_NAME_BYTES];
    char argument[SKEP_EXPERT_ARGUMENT_BYTES];
};
/* @return SKEP_INVALID_ARGUMENT for a text that is too long for any name. */
SKEP_MUST_CHECK skep_status expert_settings_init(struct expert_settings *out,
                                                 const struct skep_expert_options *options,
                                                 struct skep_error *err);

const struct skep_expert_schema *expert_schema(const struct expert *expert);
const char *expert_class_name(const struct expert *expert);
/* What its matrix products are computed in: "float32" or "bfloat16". */
const char *expert_precision_name(const struct expert *expert);
uint64_t expert_parameter_count(const struct expert *expert);
uint64_t expert_update_count(const struct expert *expert);
/* Steps that were not done because a gradient was not finite. */
uint64_t expert_skipped_count(const struct expert *expert);
/* Whether its compute time is bounded by its rows and it never blocks: true for built-in classes
 * except the transformer, whose time depends on the length of sequences too. */
bool expert_is_bounded(const struct expert *expert);

/*
 * outputs[i] are allocated by the caller: expert_output_spec() shapes with the inputs' rows.
 * Inputs have been checked against the schema (schema_check()).
 */
SKEP_MUST_CHECK skep_status expert_forward(struct expert *expert, const DLTensor *inputs,
                                           DLTensor *outputs, struct skep_error *err);
/*
 * Runs forward again, computes gradients, writes input gradients (those of the parameters before
 * the step), then does one optimizer step. A step whose gradients are not finite is not done: it is
 * counted and answered SKEP_INVALID_ARGUMENT, parameters and optimizer state stay as they were.
 */
SKEP_MUST_CHECK skep_status expert_backward(struct expert *expert, const DLTensor *inputs,
                                            const DLTensor *grad_outputs, DLTensor *grad_inputs,
                                            struct skep_error *err);

/*
 * The gradients of one backward pass without the step, for tests.
 * @param grads  one array for each parameter, in order, of its size; written whole.
 */
SKEP_MUST_CHECK skep_status expert_gradients(struct expert *expert, const DLTensor *inputs,
                                             const DLTensor *grad_outputs, DLTensor *grad_inputs,
                                             float *const *grads, struct skep_error *err);

/*
 * Checks counts, types, dimensions and equal rows of a task's tensors against specs, the number
 * expected and got in the sentence, that no dimension is 0, and that elements are aligned to their
 * size. Rows (at least 1) are given back.
 * @param what  "input" or "grad_output", for messages.
 */
SKEP_MUST_CHECK skep_status schema_check(const struct skep_tensor_spec *specs, size_t spec_count,
                                         const DLTensor *const *tensors, size_t tensor_count,
                                         const char *what, int64_t *rows, struct skep_error *err);
/* 16 bytes of BLAKE2b over the canonical form of a schema, for records and `info`. */
void schema_digest(const struct skep_expert_schema *schema, uint8_t out[static 16]);

/*
 * Parameters by PyTorch name, in PyTorch order; float32, contiguous. Writes at most `cap` of them,
 * either array may be NULL; returns how many there are. Views of the expert, only while nothing
 * runs.
 */
size_t expert_parameters(struct expert *expert, const char **names, DLTensor *views, size_t cap);
/*
 * Copies a value into a parameter.
 * @return SKEP_NOT_FOUND for a name it does not have; SKEP_INVALID_ARGUMENT if type or shape
 * differ.
 */
SKEP_MUST_CHECK skep_status expert_set_parameter(struct expert *expert, const char *name,
                                                 const DLTensor *value, struct skep_error *err);

/* --- state, for checkpoints ---------------------------------------------------------------- */

/* What changes with the steps of an expert, besides its arrays. */
struct expert_counters {
    uint64_t updates; /* optimizer steps since it was made */
    uint64_t skipped; /* see expert_skipped_count() */
    uint64_t steps;   /* of the optimizer: its bias correction, and the place in the schedule */
};

/* The settings it was made with. Texts are views of the expert; the seed is kept as given. */
const struct skep_expert_options *expert_settings(const struct expert *expert);

/*
 * The state is one array of all parameters, number 0, and those that the optimizer keeps of equal
 * layout. Name of an array: "" for the parameters, else PyTorch's, such as "exp_avg"; NULL if there
 * is none of that number.
 */
const char *expert_state_array(const struct expert *expert, size_t array);

/*
 * Whether the class owns the state (skep/expert.h). Then there are no arrays, and the state that
 * expert_snapshot() took is what expert_saved_state() lists, until the next snapshot.
 */
bool expert_owns_state(const struct expert *expert);
size_t expert_saved_state(const struct expert *expert, const struct skep_named_tensor **tensors);
/* Only of those: takes it over, while nothing else uses the expert. @return what load() says. */
SKEP_MUST_CHECK skep_status expert_load_state(struct expert *expert,
                                              const struct skep_named_tensor *tensors, size_t count,
                                              struct skep_error *err);

/* Room that expert_snapshot() needs. */
size_t expert_state_bytes(const struct expert *expert);

/*
 * Copies the state as it is between two optimizer steps. Forward goes on meanwhile; a step that
 * falls due helps to finish the copy first. Any thread, one at a time.
 * @param copy  expert_state_bytes() of room, aligned for floats.
 * @return SKEP_DEADLINE_EXCEEDED if a step under way does not end in time.
 */
SKEP_MUST_CHECK skep_status expert_snapshot(struct expert *expert, float *copy,
                                            struct expert_counters *counters, uint64_t deadline_us,
                                            struct skep_error *err);

/* Parameter number `parameter` of an array in such a copy. Shape is a view of the expert. */
DLTensor expert_state_view(struct expert *expert, float *copy, size_t array, size_t parameter);

/* The longest that a step has waited for a copy, in microseconds. Any thread. */
uint64_t expert_snapshot_wait_us(struct expert *expert);

/* Restores a part of the state, while nothing else uses the expert. Errors as
 * expert_set_parameter(). */
SKEP_MUST_CHECK skep_status expert_set_state(struct expert *expert, size_t array, size_t parameter,
                                             const DLTensor *value, struct skep_error *err);
void expert_set_counters(struct expert *expert, const struct expert_counters *counters);

#endif
