/* See product.h. */
#include "experts/product.h"

#include <pthread.h>
#include <string.h>
#include <dnnl.h>

#include "base/alloc.h"
#include "base/error.h"
#include "experts/parallel.h"

/* Rows by which the packed layout is chosen: oneDNN 2.6.3 picks it by n and k alone. */
enum { PACK_ROWS = 32 };

/*
 * Large products are made in pieces, since oneDNN 2.6.3 cuts them badly itself. [2048, 4096] by
 * [4096, 4096]^T took 187 ms of one thread's time and 160 in pieces of 512 rows; a [512, 4096] by
 * [4096, 4096] 45 ms and 38 in pieces of 1024 columns. (Zen 5, AVX-512 BF16.)
 */
enum { PIECE_ROWS = 512, PIECE_COLS = 1024 };

struct key {
    enum product_kind kind;
    bool accumulate;
    bool has_bias;
    int threads;
    size_t m, n, k;
    size_t stride; /* from row to row of c, and of b in PRODUCT_NN: n or, for a piece, more */
};

struct entry {
    struct key key;
    dnnl_primitive_t primitive; /* NULL: a free place */
    dnnl_memory_desc_t a, b, bias, c;
    dnnl_memory_desc_t scratch; /* what it writes to on the way; of size 0 if nothing */
    unsigned users;
    uint64_t used_at;
};

/*
 * Memory for a primitive's work, which whoever runs it brings along: oneDNN's own is one for all
 * primitives that a thread has made, and ours are run by other threads too, at the same time.
 */
struct scratch {
    void *data; /* owned; NULL: a free place */
    size_t size;
};
enum { SCRATCH_MAX = 8 /* kept for the next ones */, SCRATCH_ALIGNMENT = 4096 };

static struct {
    pthread_mutex_t lock; /* guards all below */
    struct entry entries[PRODUCT_CACHE_MAX];
    struct scratch scratch[SCRATCH_MAX];
    uint64_t clock;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Made once, never freed: oneDNN's engine and stream of a CPU hold nothing but themselves, and its
 * streams may be used from several threads at once. */
static struct {
    pthread_once_t once;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bool works;
} library = {.once = PTHREAD_ONCE_INIT};

static void open_library(void)
{
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    bool has_bf16 = (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;

    library.works = has_bf16 && dnnl_engine_create(&library.engine, dnnl_cpu, 0) == dnnl_success &&
                    dnnl_stream_create(&library.stream, library.engine,
                                       dnnl_stream_default_flags) == dnnl_success;
}

bool product_available(void)
{
    pthread_once(&library.once, open_library);
    return library.works;
}

static skep_status failed(dnnl_status_t rc, const struct key *key, struct skep_error *err)
{
    return error_set(err, rc == dnnl_out_of_memory ? SKEP_RESOURCE_EXHAUSTED : SKEP_INTERNAL,
                     "bfloat16 product of [%zu, %zu] and [%zu, %zu]: oneDNN status %d", key->m,
                     key->k, key->k, key->n, (int)rc);
}

/* --- making primitives --------------------------------------------------------------------- */

static dnnl_status_t describe_matrix(dnnl_memory_desc_t *out, size_t rows, size_t cols,
                                     dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    const dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)cols};

    return dnnl_memory_desc_init_by_tag(out, 2, dims, type, tag);
}

static dnnl_status_t describe_piece(dnnl_memory_desc_t *out, size_t rows, size_t cols,
                                    dnnl_data_type_t type, size_t stride)
{
    const dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)cols};
    const dnnl_dims_t strides = {(dnnl_dim_t)stride, 1};

    return dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides);
}

/* The layout of a packed b. False if oneDNN likes the plain one best, or has none at all. */
static bool describe_packed(size_t n, size_t k, dnnl_memory_desc_t *out)
{
    dnnl_memory_desc_t a;
    dnnl_memory_desc_t b;
    dnnl_memory_desc_t c;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd;

    if (describe_matrix(&a, PACK_ROWS, k, dnnl_bf16, dnnl_ab) != dnnl_success ||
        describe_matrix(&b, k, n, dnnl_bf16, dnnl_format_tag_any) != dnnl_success ||
        describe_matrix(&c, PACK_ROWS, n, dnnl_f32, dnnl_ab) != dnnl_success ||
        dnnl_matmul_desc_init(&desc, &a, &b, NULL, &c) != dnnl_success ||
        dnnl_primitive_desc_create(&pd, &desc, NULL, library.engine, NULL) != dnnl_success)
        return false;
    *out = *dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    dnnl_primitive_desc_destroy(pd);
    return out->format_desc.blocking.inner_nblks > 0;
}

static dnnl_status_t describe_operands(struct entry *e)
{
    const struct key *k = &e->key;
    dnnl_status_t rc =
        describe_matrix(&e->a, k->m, k->k, dnnl_bf16, k->kind == PRODUCT_TN ? dnnl_ba : dnnl_ab);

    if (rc == dnnl_success && k->kind == PRODUCT_PACKED)
        rc = describe_packed(k->n, k->k, &e->b) ? dnnl_success : dnnl_unimplemented;
    else if (rc == dnnl_success && k->kind == PRODUCT_NN)
        rc = describe_piece(&e->b, k->k, k->n, dnnl_bf16, k->stride);
    else if (rc == dnnl_success)
        rc = describe_matrix(&e->b, k->k, k->n, dnnl_bf16,
                             k->kind == PRODUCT_NT ? dnnl_ba : dnnl_ab);
    if (rc == dnnl_success)
        rc = describe_matrix(&e->bias, 1, k->n, dnnl_f32, dnnl_ab);
    if (rc == dnnl_success)
        rc = describe_piece(&e->c, k->m, k->n, dnnl_f32, k->stride);
    return rc;
}

/* Attributes: the scratch memory is ours; and what makes c += of c =. */
static dnnl_status_t make_attributes(bool accumulate, dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t rc = dnnl_primitive_attr_create(out);

    if (rc == dnnl_success)
        rc = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (rc == dnnl_success && accumulate)
        rc = dnnl_post_ops_create(&ops);
    if (rc == dnnl_success && accumulate)
        rc = dnnl_post_ops_append_sum(ops, 1.0f);
    if (rc == dnnl_success && accumulate)
        rc = dnnl_primitive_attr_set_post_ops(*out, ops);
    if (ops != NULL)
        dnnl_post_ops_destroy(ops);
    return rc;
}

static skep_status make_primitive(struct entry *e, struct skep_error *err)
{
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_matmul_desc_t desc;
    dnnl_status_t rc = describe_operands(e);

    if (rc == dnnl_success)
        rc = make_attributes(e->key.accumulate, &attributes);
    if (rc == dnnl_success)
        rc = dnnl_matmul_desc_init(&desc, &e->a, &e->b, e->key.has_bias ? &e->bias : NULL, &e->c);
    if (rc == dnnl_success)
        rc = dnnl_primitive_desc_create(&pd, &desc, attributes, library.engine, NULL);
    if (rc == dnnl_success)
        rc = dnnl_primitive_create(&e->primitive, pd);
    if (rc == dnnl_success)
        e->scratch = *dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    if (attributes != NULL)
        dnnl_primitive_attr_destroy(attributes);
    if (rc == dnnl_success)
        return SKEP_OK;
    e->primitive = NULL;
    return failed(rc, &e->key, err);
}

/* --- keeping them -------------------------------------------------------------------------- */

static bool same_key(const struct key *a, const struct key *b)
{
    return a->kind == b->kind && a->accumulate == b->accumulate && a->has_bias == b->has_bias &&
           a->threads == b->threads && a->m == b->m && a->n == b->n && a->k == b->k &&
           a->stride == b->stride;
}

/* The entry of a key, with a user more; NULL if there is none. The lock is held. */
static struct entry *find_entry(const struct key *key)
{
    for (int i = 0; i < PRODUCT_CACHE_MAX; i++) {
        struct entry *e = &cache.entries[i];
        if (e->primitive == NULL || !same_key(&e->key, key))
            continue;
        e->users++;
        e->used_at = ++cache.clock;
        return e;
    }
    return NULL;
}

/* A free place, or the one whose use is longest ago; NULL if all are in use. The lock is held. */
static struct entry *find_place(void)
{
    struct entry *oldest = NULL;

    for (int i = 0; i < PRODUCT_CACHE_MAX; i++) {
        struct entry *e = &cache.entries[i];
        if (e->primitive == NULL)
            return e;
        if (e->users == 0 && (oldest == NULL || e->used_at < oldest->used_at))
            oldest = e;
    }
    return oldest;
}

/* Puts a new primitive into the cache, with one user; what it replaces comes back in its place.
 * The same entry if there is no room: the caller's own, to be destroyed after use. */
static struct entry *keep_entry(struct entry *made)
{
    pthread_mutex_lock(&cache.lock);
    struct entry *place = find_entry(&made->key); /* another thread may have been faster */
    if (place == NULL && (place = find_place()) != NULL) {
        struct entry old = *place;
        *place = *made;
        place->users = 1;
        place->used_at = ++cache.clock;
        *made = old;
    }
    pthread_mutex_unlock(&cache.lock);
    return place != NULL ? place : made;
}

size_t product_cached(void)
{
    size_t count = 0;

    pthread_mutex_lock(&cache.lock);
    for (int i = 0; i < PRODUCT_CACHE_MAX; i++)
        count += cache.entries[i].primitive != NULL;
    pthread_mutex_unlock(&cache.lock);
    return count;
}

/* --- scratch memory ------------------------------------------------------------------------ */

/* Of at least so many bytes: one that is kept, the smallest that will do, or a new one. */
static bool take_scratch(size_t size, struct scratch *out)
{
    struct scratch *best = NULL;

    *out = (struct scratch){0};
    if (size == 0)
        return true;
    pthread_mutex_lock(&cache.lock);
    for (int i = 0; i < SCRATCH_MAX; i++) {
        struct scratch *s = &cache.scratch[i];
        if (s->data != NULL && s->size >= size && (best == NULL || s->size < best->size))
            best = s;
    }
    if (best != NULL) {
        *out = *best;
        *best = (struct scratch){0};
    }
    pthread_mutex_unlock(&cache.lock);
    if (out->data == NULL)
        *out = (struct scratch){mem_aligned(SCRATCH_ALIGNMENT, size), size};
    return out->data != NULL;
}

/* Keeps it, in place of the smallest if there is no room. */
static void give_scratch(struct scratch given)
{
    struct scratch *least = &cache.scratch[0];

    if (given.data == NULL)
        return;
    pthread_mutex_lock(&cache.lock);
    for (int i = 1; i < SCRATCH_MAX; i++)
        if (cache.scratch[i].size < least->size)
            least = &cache.scratch[i];
    if (least->size < given.size) {
        struct scratch gone = *least;
        *least = given;
        given = gone;
    }
    pthread_mutex_unlock(&cache.lock);
    mem_free(given.data);
}

/* --- running ------------------------------------------------------------------------------- */

struct operand {
    int argument;
    const dnnl_memory_desc_t *desc;
    const void *data;
};

/* oneDNN's memory objects take plain pointers; it only reads through those of inputs. */
static void *unconst(const void *p)
{
    return (void *)(uintptr_t)p;
}

static dnnl_status_t execute(dnnl_primitive_t primitive, const struct operand *operands, int count)
{
    dnnl_exec_arg_t args[5];
    dnnl_status_t rc = dnnl_success;
    int made = 0;

    for (; made < count && rc == dnnl_success; made++) {
        args[made].arg = operands[made].argument;
        args[made].memory = NULL;
        rc = dnnl_memory_create(&args[made].memory, operands[made].desc, library.engine,
                                unconst(operands[made].data));
    }
    if (rc == dnnl_success)
        rc = dnnl_primitive_execute(primitive, library.stream, count, args);
    for (int i = 0; i < made; i++)
        if (args[i].memory != NULL)
            dnnl_memory_destroy(args[i].memory);
    return rc;
}

static skep_status run_entry(const struct entry *e, const struct product *p, const uint16_t *a,
                             const void *b, float *c, struct skep_error *err)
{
    struct scratch scratch;
    struct operand operands[5] = {
        {DNNL_ARG_SRC, &e->a, a},
        {DNNL_ARG_WEIGHTS, &e->b, b},
        {DNNL_ARG_DST, &e->c, c},
    };
    int count = 3;

    if (!take_scratch(dnnl_memory_desc_get_size(&e->scratch), &scratch))
        return failed(dnnl_out_of_memory, &e->key, err);
    if (p->bias != NULL)
        operands[count++] = (struct operand){DNNL_ARG_BIAS, &e->bias, p->bias};
    if (scratch.data != NULL)
        operands[count++] = (struct operand){DNNL_ARG_SCRATCHPAD, &e->scratch, scratch.data};
    dnnl_status_t rc = execute(e->primitive, operands, count);
    give_scratch(scratch);
    return rc == dnnl_success ? SKEP_OK : failed(rc, &e->key, err);
}

/* @param stride  see struct key */
static skep_status run_cached(const struct product *p, size_t stride, const uint16_t *a,
                              const void *b, float *c, struct skep_error *err)
{
    /* A primitive divides its work by the number of threads at the time it is made. */
    const int threads = (int)parallel_parts(PARALLEL_MAX_PARTS, 1);
    struct entry made = {
        .key = {p->kind, p->accumulate, p->bias != NULL, threads, p->m, p->n, p->k, stride},
    };
    skep_status rc = SKEP_OK;

    pthread_mutex_lock(&cache.lock);
    struct entry *e = find_entry(&made.key);
    pthread_mutex_unlock(&cache.lock);
    if (e == NULL) {
        rc = make_primitive(&made, err);
        if (rc != SKEP_OK)
            return rc;
        e = keep_entry(&made);
    }
    rc = run_entry(e, p, a, b, c, err);
    if (e != &made) {
        pthread_mutex_lock(&cache.lock);
        e->users--;
        pthread_mutex_unlock(&cache.lock);
    }
    if (made.primitive != NULL)
        dnnl_primitive_destroy(made.primitive);
    return rc;
}

/* Pieces of the same size but the last one, so that two primitives serve all. */
static skep_status run_by_rows(const struct product *p, const uint16_t *a, const void *b, float *c,
                               struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    for (size_t row = 0; row < p->m && rc == SKEP_OK; row += PIECE_ROWS) {
        struct product piece = *p;
        piece.m = p->m - row < PIECE_ROWS ? p->m - row : PIECE_ROWS;
        rc = run_cached(&piece, p->n, a + row * p->k, b, c + row * p->n, err);
    }
    return rc;
}

static skep_status run_by_columns(const struct product *p, const uint16_t *a, const uint16_t *b,
                                  float *c, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    for (size_t col = 0; col < p->n && rc == SKEP_OK; col += PIECE_COLS) {
        struct product piece = *p;
        piece.n = p->n - col < PIECE_COLS ? p->n - col : PIECE_COLS;
        piece.bias = p->bias != NULL ? p->bias + col : NULL;
        rc = run_cached(&piece, p->n, a, b + col, c + col, err);
    }
    return rc;
}

skep_status product_run(const struct product *p, const uint16_t *a, const void *b, float *c,
                        struct skep_error *err)
{
    int restore = p->single ? parallel_single() : 0;
    skep_status rc;

    if (p->kind == PRODUCT_NN && p->n > PIECE_COLS)
        rc = run_by_columns(p, a, b, c, err);
    else if ((p->kind == PRODUCT_NT || p->kind == PRODUCT_PACKED) && p->m > PIECE_ROWS)
        rc = run_by_rows(p, a, b, c, err);
    else
        rc = run_cached(p, p->n, a, b, c, err);
    parallel_restore(restore);
    return rc;
}

/* --- packing ------------------------------------------------------------------------------- */

size_t product_packed_bytes(size_t n, size_t k)
{
    dnnl_memory_desc_t packed;

    return product_available() && describe_packed(n, k, &packed)
               ? dnnl_memory_desc_get_size(&packed)
               : 0;
}

skep_status product_pack(const uint16_t *b, size_t n, size_t k, void *packed,
                         struct skep_error *err)
{
    const struct key key = {.m = PACK_ROWS, .n = n, .k = k};
    dnnl_memory_desc_t from;
    dnnl_memory_desc_t to;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t reorder = NULL;

    if (!describe_packed(n, k, &to))
        return failed(dnnl_unimplemented, &key, err);
    dnnl_status_t rc = describe_matrix(&from, k, n, dnnl_bf16, dnnl_ba);
    if (rc == dnnl_success)
        rc = dnnl_reorder_primitive_desc_create(&pd, &from, library.engine, &to, library.engine,
                                                NULL);
    if (rc == dnnl_success)
        rc = dnnl_primitive_create(&reorder, pd);
    if (rc == dnnl_success) {
        parallel_prepare();
        const struct operand operands[2] = {{DNNL_ARG_FROM, &from, b}, {DNNL_ARG_TO, &to, packed}};
        rc = execute(reorder, operands, 2);
    }
    if (reorder != NULL)
        dnnl_primitive_destroy(reorder);
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    return rc == dnnl_success ? SKEP_OK : failed(rc, &key, err);
}
