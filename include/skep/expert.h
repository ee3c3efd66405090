/**
 * @file skep/expert.h
 * Experts: their schema, the settings from which a node creates them, and what a class of experts
 * is. Classes of your own come to a node as plugins: skep/plugin.h.
 */
#ifndef SKEP_EXPERT_H
#define SKEP_EXPERT_H

#include <skep/safetensors.h>
#include <skep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SKEP_EXPERT_MAX_TENSORS 8
#define SKEP_EXPERT_NAME_BYTES 32

/**
 * One input or output. Dimension 0 is the batch (`shape[0]` is -1); any other -1 means "any size
 * from 1, the same for all tasks of a batch". `ndim` counts all of them.
 */
struct skep_tensor_spec {
    char name[SKEP_EXPERT_NAME_BYTES];
    DLDataType dtype;
    int ndim;
    int64_t shape[SKEP_TENSOR_MAX_DIMS];
};

/** What an expert takes and gives. Gradients have the shapes and types of what they belong to. */
struct skep_expert_schema {
    size_t input_count;
    struct skep_tensor_spec inputs[SKEP_EXPERT_MAX_TENSORS];
    size_t output_count;
    struct skep_tensor_spec outputs[SKEP_EXPERT_MAX_TENSORS];
};

/** Settings of one expert. Fill with skep_expert_options_init(), then change what differs. */
struct skep_expert_options {
    size_t size;     /**< sizeof of this struct, set by _init: for later versions. */
    const char *cls; /**< class name: "ffn", "transformer", "det_dropout", "swiglu", "nop". Strings
                        are borrowed for the call. */
    int64_t hidden_dim;    /**< width of inputs and outputs; 1 to 65536. Default 1024. */
    uint64_t seed;         /**< of the initial parameters: equal seeds give equal experts. */
    const char *optimizer; /**< "adam" (default), "adamw", "sgd" or "none". */
    double learning_rate;  /**< default 1e-3 */
    double beta1;          /**< of Adam; default 0.9 */
    double beta2;          /**< of Adam; default 0.999 */
    double eps;            /**< of Adam; default 1e-8 */
    /** Decoupled in adamw, added to the gradient in adam and sgd, as PyTorch does. Negative (the
     * default) takes PyTorch's own: 0.01 for adamw, 0 for the others. */
    double weight_decay;
    double momentum; /**< of sgd; default 0. Without dampening or Nesterov. */
    /** If above 0: gradients whose L2 norm over all parameters is larger are scaled down to it. */
    double clip_grad_norm;
    /** "none" (default), "constant-with-warmup", "linear-with-warmup" (falls to 0 after the
     * warm-up), or short "constant", "linear". The learning rate rises from 0, at the first step,
     * over warmup_steps. */
    const char *schedule;
    uint64_t warmup_steps;   /**< default 0 */
    uint64_t training_steps; /**< of "linear": the step at which it reaches 0; 1 or more. */
    /** Width inside "swiglu", 1 to 1048576; 0 (default) is 4 * hidden_dim. */
    int64_t intermediate_dim;
    /** "transformer" takes a second input, BOOL [batch, sequence]: keys to ignore where true. */
    bool padding_mask;
    /** Longest sequence that "transformer" accepts, as its work grows with the square; default
     * 32768. */
    int64_t max_sequence;
    bool float_mask; /**< "det_dropout" takes its mask as F32 instead of I64. */
    bool evaluation; /**< "det_dropout" ignores its mask and scales nothing. */
    /** What matrix products are computed in: "float32" (default) or "bfloat16". Parameters,
     * optimizer state, normalizations, residuals and attention inside heads stay float32, and so
     * does what travels. On a CPU without bfloat16 the results are the same, but not faster. */
    const char *precision;
    /** What the class's create() needs to know of this expert alone, such as a file's path; NULL
     * (default): nothing, unless `cls` is "class:argument". At most SKEP_EXPERT_ARGUMENT_BYTES - 1
     * bytes. Built-in classes refuse one. */
    const char *argument;
};

#define SKEP_EXPERT_ARGUMENT_BYTES 1024

SKEP_API void skep_expert_options_init(struct skep_expert_options *options);

#define SKEP_PARAMETER_NAME_BYTES 64
#define SKEP_PARAMETER_MAX_DIMS 4
#define SKEP_EXPERT_MAX_PARAMETERS 64

/** First values of a parameter. */
enum skep_parameter_init {
    SKEP_INIT_ZEROS = 0,
    SKEP_INIT_ONES = 1,
    SKEP_INIT_UNIFORM = 2 /**< in [-bound, bound), from the expert's seed */
};

/** One trained parameter: float32, row-major. */
struct skep_parameter_spec {
    char name[SKEP_PARAMETER_NAME_BYTES]; /**< as PyTorch would name it, "linear.weight" */
    int ndim;                             /**< 1 to SKEP_PARAMETER_MAX_DIMS */
    int64_t shape[SKEP_PARAMETER_MAX_DIMS];
    enum skep_parameter_init init;
    float bound; /**< of SKEP_INIT_UNIFORM; finite, 0 or more */
};

/**
 * One class. `state` is what create() made, and is handed to all others. A function that fails
 * returns a status other than SKEP_OK and may fill in `err`, which is never NULL here; whatever it
 * has written by then is thrown away.
 *
 * There are two kinds. Usually Skep owns an expert's parameters: it draws, hands in, updates, saves
 * and loads them. With `owns_state` the class owns them and takes the optimizer's step itself, as a
 * framework with its own optimizers does; it then implements save() and load().
 */
struct skep_expert_class {
    /** For `--expert-cls`: 1 to 31 letters, digits, `_` or `-`; none that Skep has already. */
    const char *name;

    /** Whether the time of a pass is bounded by its rows and it never waits: short passes may then
     * run in the thread that received the request. If in doubt, false. */
    bool is_bounded;

    /**
     * Checks the options and makes the state of one expert; no parameters yet.
     * @param options  borrowed for the call. What it does not know, a class ignores.
     * @param state    set on success; may stay NULL. Freed by destroy().
     */
    skep_status (*create)(const struct skep_expert_options *options, void **state,
                          struct skep_error *err);
    /** May be NULL if there is nothing to free. */
    void (*destroy)(void *state);

    /** Fills in the zeroed schema: 1 to SKEP_EXPERT_MAX_TENSORS inputs and outputs, each with a
     * name, a type of SKEP_DTYPE_MAP, and -1 as dimension 0, the batch. An output's other
     * dimensions of -1 are those of input 0 at the same place. */
    skep_status (*describe)(const void *state, struct skep_expert_schema *schema,
                            struct skep_error *err);

    /** Fills in `specs`, zeroed and of room for SKEP_EXPERT_MAX_PARAMETERS, and their number, which
     * may be 0. Names differ from each other. NULL: none. */
    skep_status (*parameters)(const void *state, struct skep_parameter_spec *specs, size_t *count,
                              struct skep_error *err);

    /**
     * @param params   the parameters in the order of parameters(); read only. With owns_state
     *                 NULL, as `grads` is below.
     * @param inputs   as the schema says: types, dimensions and equal rows were checked.
     * @param outputs  memory is there; every element is to be written.
     */
    skep_status (*forward)(void *state, const float *const *params, const DLTensor *inputs,
                           DLTensor *outputs, struct skep_error *err);

    /**
     * @param grad_outputs  like outputs: the gradients that come from above.
     * @param grad_inputs   like inputs, zeroed: to be written.
     * @param grads         like params, zeroed: to be written, or added to. Skep takes the
     *                      optimizer's step with them. With owns_state the class takes the step
     *                      before it returns SKEP_OK, which Skep counts as one update. If gradients
     *                      are not finite it takes none and returns SKEP_INVALID_ARGUMENT, which
     *                      Skep counts as a skipped step.
     */
    skep_status (*backward)(void *state, const float *const *params, const DLTensor *inputs,
                            const DLTensor *grad_outputs, DLTensor *grad_inputs,
                            float *const *grads, struct skep_error *err);

    /** Whether the class owns parameters and optimizer. Then parameters() is NULL, and save() and
     * load() are not. */
    bool owns_state;

    /** With owns_state: how many numbers backward() trains, for statistics. May be NULL: 0. */
    uint64_t (*parameter_count)(const void *state);

    /**
     * With owns_state: lists all that load() needs to continue training: parameters under the names
     * PyTorch gives them, and the optimizer's state under names that begin with "optimizer.".
     * Never runs beside backward(), but may beside forward().
     * @param tensors  array and data are the class's. They stay as they are until the next save()
     *                 or destroy(), whatever backward() does meanwhile: a copy.
     */
    skep_status (*save)(void *state, const struct skep_named_tensor **tensors, size_t *count,
                        struct skep_error *err);

    /**
     * With owns_state: takes over what save() listed. Called before the first pass.
     * @param tensors  borrowed for the call. On failure (a tensor missing, too many, of another
     *                 shape or type) the expert stays as it was.
     */
    skep_status (*load)(void *state, const struct skep_named_tensor *tensors, size_t count,
                        struct skep_error *err);
};

#ifdef __cplusplus
}
#endif
#endif
