/*
 * What a tensor of a mixture-of-experts model is, by its name alone. Names are read by their parts
 * between dots: `<stack>.<layer>.<block>.experts...`, as in
 * `model.layers.3.mlp.experts.5.w1.weight`. Text in, a description out. Thread: any.
 */
#ifndef SKEP_EXPERTS_MOE_NAME_H
#define SKEP_EXPERTS_MOE_NAME_H

#include <stddef.h>
#include <stdint.h>

enum moe_kind {
    MOE_OTHER,    /* none of an expert's: attention, norms, shared experts, embeddings */
    MOE_MATRIX,   /* one or all experts' gate, up or down matrix */
    MOE_ROUTER,   /* where it is, experts have to be */
    MOE_STRANGER, /* an expert's, and not what class swiglu computes with: a bias, a scale */
};

enum moe_role { MOE_GATE, MOE_UP, MOE_DOWN, MOE_GATE_UP /* gate above up, in one */ };

/* How a layer keeps its experts. */
enum moe_form {
    MOE_SINGLE,  /* each alone: experts.5.gate_proj.weight, [out, in] */
    MOE_STACKED, /* all in one of three dimensions, [experts, out, in] or [experts, in, out] */
    MOE_LINEAR,  /* the same, always [experts, out, in] */
    MOE_ROWS,    /* DBRX: one above the other in two dimensions, [experts * wide, hidden] */
};

struct moe_name {
    enum moe_kind kind;
    enum moe_role role;
    enum moe_form form;
    size_t stack_len;           /* the name begins with the stack's: "model.layers" */
    size_t block_at, block_len; /* where between layer and expert: "mlp"; may be empty */
    uint64_t layer, number;     /* number: of the expert, with MOE_SINGLE */
    unsigned char has_layer;    /* not 0: stack, layer and block are set */
};

struct moe_name moe_name_read(const char *name);

/* The layer that a name has behind a stack ("model.layers" of stack_len bytes). 0: it has none. */
int moe_name_layer(const char *name, const char *stack, size_t stack_len, uint64_t *layer);

#endif
