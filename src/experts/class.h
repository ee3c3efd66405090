/*
 * Expert classes: a class is a table of functions. It says what tensors and parameters its experts
 * have, and computes; the expert itself (expert.c) owns parameters, scratch memory and optimizer,
 * so that a class has no state and nothing to free. (Those of plugins may have one: plugin.h.)
 */
#ifndef SKEP_EXPERTS_CLASS_H
#define SKEP_EXPERTS_CLASS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/expert.h>
#include <skep/status.h>

#include "experts/kernels.h"
#include "experts/workspace.h"

enum {
    EXPERT_MAX_PARAMETERS = 64,
    EXPERT_PARAMETER_NAME_BYTES = 64,
    EXPERT_PARAMETER_MAX_DIMS = 4,
    EXPERT_PLAN_DIMS = 8,
    EXPERT_MAX_STATE_TENSORS = 1 << 16, /* of a class that owns its state */
};

enum expert_init { EXPERT_INIT_ZEROS, EXPERT_INIT_ONES, EXPERT_INIT_UNIFORM };

struct expert_parameter {
    char name[EXPERT_PARAMETER_NAME_BYTES]; /* PyTorch's */
    int ndim;
    int64_t shape[EXPERT_PARAMETER_MAX_DIMS];
    enum expert_init init;
    float bound; /* of EXPERT_INIT_UNIFORM */
};

/* What an expert is made of: filled in by its class's describe(), constant from then on. */
struct expert_plan {
    const struct expert_class *cls; /* set before describe() */
    void *state;                    /* a plugin's; release() frees it */
    uint64_t owned_parameters;      /* numbers that the class itself trains; see skep/expert.h */
    struct skep_expert_schema schema;
    size_t parameter_count;
    struct expert_parameter parameters[EXPERT_MAX_PARAMETERS]; /* in PyTorch's order */
    size_t dims[EXPERT_PLAN_DIMS];                             /* the class's own: widths, heads */
};

/* One forward or backward pass. All of it is borrowed for the call. */
struct expert_call {
    const struct expert_plan *plan;
    size_t rows;
    const float *const *params; /* in the plan's order, row-major */
    /* The same for computing in bfloat16; NULL: float32. */
    const struct half_matrix *half;
    const DLTensor *inputs; /* checked against the schema */
    DLTensor *outputs;      /* forward only; written whole */
    /* Backward only. */
    const DLTensor *grad_outputs;
    DLTensor *grad_inputs; /* written whole; zeros for inputs that are not floats */
    float *const *grads;   /* like params, written whole */
    struct workspace *ws;  /* holds what `layout` asked for; cut by layout again */
};

struct expert_class {
    const char *name;
    /* Fills in a zeroed plan. SKEP_INVALID_ARGUMENT for settings out of range. */
    skep_status (*describe)(const struct skep_expert_options *options, struct expert_plan *plan,
                            struct skep_error *err);
    /* Frees what describe() left in the plan, also after it failed. NULL: nothing. */
    void (*release)(struct expert_plan *plan);
    /* What a schema cannot say of the inputs' shapes; before anything is allocated for them.
     * SKEP_INVALID_ARGUMENT. NULL: nothing. */
    skep_status (*check)(const struct expert_call *call, struct skep_error *err);
    /* Cuts all scratch memory of a call from an empty workspace, to find out how much it is. */
    void (*measure)(const struct expert_call *call, bool backward);
    skep_status (*forward)(const struct expert_call *call, struct skep_error *err);
    skep_status (*backward)(const struct expert_call *call, struct skep_error *err);
    /* Both set: the class owns its parameters and takes the step in backward(); as in
     * skep/expert.h. NULL: the expert does. */
    skep_status (*save)(const struct expert_plan *plan, const struct skep_named_tensor **tensors,
                        size_t *count, struct skep_error *err);
    skep_status (*load)(const struct expert_plan *plan, const struct skep_named_tensor *tensors,
                        size_t count, struct skep_error *err);
    bool takes_argument;  /* else one in the options is refused */
    bool is_bounded;      /* see expert_is_bounded() */
    bool is_float32_only; /* other precisions are refused */
};

/* @return SKEP_INVALID_ARGUMENT, listing the known classes, if there is none of that name. */
SKEP_MUST_CHECK skep_status expert_class_find(const char *name, const struct expert_class **out,
                                              struct skep_error *err);

/* Built-in class number i; NULL behind the last one. */
const struct expert_class *expert_class_at(size_t i);

/* For describe(): appends to the plan. Running over a maximum is asserted. */
void plan_add_input(struct expert_plan *plan, const char *name, DLDataType dtype, int ndim,
                    const int64_t *shape);
void plan_add_output(struct expert_plan *plan, const char *name, DLDataType dtype, int ndim,
                     const int64_t *shape);
/* cols 0: a vector. */
void plan_add_parameter(struct expert_plan *plan, const char *name, int64_t rows, int64_t cols,
                        enum expert_init init, float bound);
/* `<name>.weight` [out, in] and `<name>.bias` [out], as nn.Linear initializes them. */
void plan_add_linear(struct expert_plan *plan, const char *name, int64_t in, int64_t out,
                     bool bias);
/* `<name>.weight` and `<name>.bias` [n], ones and zeros. */
void plan_add_norm(struct expert_plan *plan, const char *name, int64_t n);

/* The linear layer of parameter number `weight`, a matrix; with has_bias the next one is its bias.
 */
struct kernel_linear call_linear(const struct expert_call *call, size_t weight, bool has_bias,
                                 size_t rows, float *scratch);
/* kernel_linear_scratch() in the precision of the call. */
size_t call_linear_scratch(const struct expert_call *call, size_t rows, size_t in, size_t out);

/* Whether the call's products read bfloat16 as it is. */
bool call_takes_half(const struct expert_call *call);
/* Scratch memory for what an operation writes and a product reads: bfloat16 if the call takes it.
 */
struct kernel_values call_cut_values(const struct expert_call *call, size_t count);

#define EXPERT_NORM_EPS 1e-5f

extern const struct expert_class expert_class_det_dropout;
extern const struct expert_class expert_class_ffn;
extern const struct expert_class expert_class_nop;
extern const struct expert_class expert_class_swiglu;
extern const struct expert_class expert_class_transformer;

#endif
