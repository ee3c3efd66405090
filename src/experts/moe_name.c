/* See moe_name.h. */
#include "experts/moe_name.h"

#include <stdbool.h>
#include <string.h>

enum {
    MAX_PARTS = 32,
    MAX_NUMBER = 1000000, /* layers, and experts of a layer */
};

struct part {
    const char *text;
    size_t len;
};

struct parts {
    struct part at[MAX_PARTS];
    size_t count;
    bool cut; /* there are more */
};

static struct parts split(const char *name)
{
    struct parts parts = {0};

    for (const char *p = name;; p++) {
        size_t len = strcspn(p, ".");
        if (parts.count == MAX_PARTS) {
            parts.cut = true;
            return parts;
        }
        parts.at[parts.count++] = (struct part){p, len};
        p += len;
        if (*p == '\0')
            return parts;
    }
}

static bool is(const struct part *part, const char *text)
{
    return strlen(text) == part->len && memcmp(part->text, text, part->len) == 0;
}

static bool holds(const struct part *part, const char *text)
{
    return memmem(part->text, part->len, text, strlen(text)) != NULL;
}

/* Decimal digits without leading zeros. */
static bool read_number(const struct part *part, uint64_t *out)
{
    uint64_t value = 0;

    if (part->len == 0 || part->len > 7 || (part->text[0] == '0' && part->len > 1))
        return false;
    for (size_t i = 0; i < part->len; i++) {
        if (part->text[i] < '0' || part->text[i] > '9')
            return false;
        value = value * 10 + (uint64_t)(part->text[i] - '0');
    }
    *out = value;
    return value <= MAX_NUMBER;
}

/* The layer is the last number before part `end`; attention may have experts of its own kind. */
static bool find_layer(const struct parts *parts, size_t end, struct moe_name *out)
{
    const char *name = parts->at[0].text;

    for (size_t i = end; i-- > 1;) {
        if (!read_number(&parts->at[i], &out->layer))
            continue;
        out->stack_len = (size_t)(parts->at[i].text - name) - 1;
        out->block_at = out->stack_len + 1 + parts->at[i].len;
        out->block_len = (size_t)(parts->at[end].text - name) - out->block_at;
        out->has_layer = 1;
        return true;
    }
    return false;
}

static bool is_of_attention(const struct parts *parts, size_t end)
{
    for (size_t i = 0; i < end; i++)
        if (holds(&parts->at[i], "attn") || holds(&parts->at[i], "attention"))
            return true;
    return false;
}

static bool find_role(const struct part *part, bool fused, enum moe_role *out)
{
    static const struct {
        const char *name;
        enum moe_role role;
        bool fused_only;
    } rows[] = {
        {"gate_proj", MOE_GATE, false},
        {"w1", MOE_GATE, false},
        {"up_proj", MOE_UP, false},
        {"w3", MOE_UP, false},
        {"down_proj", MOE_DOWN, false},
        {"w2", MOE_DOWN, false},
        {"gate_up_proj", MOE_GATE_UP, true},
        {"fc1", MOE_GATE_UP, true},
        {"fc2", MOE_DOWN, true}, /* Aria */
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (is(part, rows[i].name) && (fused || !rows[i].fused_only)) {
            *out = rows[i].role;
            return true;
        }
    return false;
}

static bool ends_after(const struct parts *parts, size_t i, bool needs_weight)
{
    bool has_weight = i + 2 == parts->count && is(&parts->at[i + 1], "weight");

    return has_weight || (!needs_weight && i + 1 == parts->count);
}

/* `<stack>.<layer>.ffn.experts.mlp.w1`, v1, w2 */
static bool read_rows(const struct parts *parts, size_t i, struct moe_name *out)
{
    static const char *const names[] = {[MOE_GATE] = "w1", [MOE_UP] = "v1", [MOE_DOWN] = "w2"};

    if (i + 1 >= parts->count || !is(&parts->at[i], "mlp") || !ends_after(parts, i + 1, false))
        return false;
    for (int r = MOE_GATE; r <= MOE_DOWN; r++)
        if (is(&parts->at[i + 1], names[r])) {
            out->role = (enum moe_role)r;
            out->form = MOE_ROWS;
            return true;
        }
    return false;
}

/* What stands behind "experts": part i and those after it. */
static bool read_matrix(const struct parts *parts, size_t i, struct moe_name *out)
{
    if (i >= parts->count || parts->cut)
        return false;
    if (read_number(&parts->at[i], &out->number)) {
        out->form = MOE_SINGLE;
        return i + 1 < parts->count && find_role(&parts->at[i + 1], false, &out->role) &&
               ends_after(parts, i + 1, true);
    }
    if (find_role(&parts->at[i], true, &out->role) && ends_after(parts, i, false)) {
        out->form = MOE_STACKED;
        return true;
    }
    return read_rows(parts, i, out);
}

/* Layers that keep all experts in one tensor without saying "experts". */
static bool read_unnamed(const struct parts *parts, struct moe_name *out)
{
    static const char *const linears[] = {
        [MOE_DOWN] = "output_linear", [MOE_GATE_UP] = "input_linear"};
    size_t last = parts->count;

    if (last < 4 || parts->cut || !is(&parts->at[last - 1], "weight"))
        return false;
    const struct part *block = &parts->at[last - 3];
    const struct part *leaf = &parts->at[last - 2];
    out->form = MOE_LINEAR;
    if (is(block, "moe") && find_role(leaf, false, &out->role)) /* Step */
        return find_layer(parts, last - 2, out);
    if (is(block, "block_sparse_moe") || is(block, "mlp") || is(block, "moe"))
        for (int r = MOE_DOWN; r <= MOE_GATE_UP; r++) /* GraniteMoE, JetMoE */
            if (is(leaf, linears[r])) {
                out->role = (enum moe_role)r;
                return find_layer(parts, last - 2, out);
            }
    return false;
}

struct moe_name moe_name_read(const char *name)
{
    struct parts parts = split(name);
    struct moe_name out = {0};
    size_t anchor = 0;

    while (anchor < parts.count && !is(&parts.at[anchor], "experts"))
        anchor++;
    if (is_of_attention(&parts, anchor))
        return out;
    if (anchor < parts.count) {
        bool good = find_layer(&parts, anchor, &out) && read_matrix(&parts, anchor + 1, &out);
        out.kind = good ? MOE_MATRIX : MOE_STRANGER;
        return out;
    }
    if (parts.cut)
        return out;
    if (read_unnamed(&parts, &out)) {
        out.kind = MOE_MATRIX;
        return out;
    }
    for (size_t i = 1; i < parts.count; i++)
        if ((is(&parts.at[i], "gate") || is(&parts.at[i], "router")) &&
            is(&parts.at[parts.count - 1], "weight") && find_layer(&parts, i, &out)) {
            out.kind = MOE_ROUTER;
            return out;
        }
    return (struct moe_name){0};
}

int moe_name_layer(const char *name, const char *stack, size_t stack_len, uint64_t *layer)
{
    if (strncmp(name, stack, stack_len) != 0 || name[stack_len] != '.')
        return 0;
    const char *number = name + stack_len + 1;
    struct part part = {number, strcspn(number, ".")};
    return read_number(&part, layer);
}
