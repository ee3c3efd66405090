/* Checkpoints: what is loaded is what was saved, and nothing else is loaded. */
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "base/bytes.h"
#include "checkpoint_fixture.h"
#include "experts/checkpoint_internal.h"
#include "experts/digest.h"

static void training_goes_on_as_if_it_had_never_stopped(void **state)
{
    (void)state;
    static const struct {
        const char *cls, *optimizer, *schedule;
        double momentum;
    } cases[] = {
        {"ffn", "adam", "linear", 0.0},     {"ffn", "adamw", "none", 0.0},
        {"ffn", "sgd", "constant", 0.9},    {"ffn", "sgd", "none", 0.0},
        {"swiglu", "adam", "none", 0.0},    {"ffn", "none", "none", 0.0},
        {"swiglu", "sgd", "linear", 0.875}, {"nop", "adam", "none", 0.0},
    };
    struct tempdir dir;
    char path[512];

    tempdir_make(&dir);
    tempdir_file(&dir, "c.safetensors", path);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct skep_expert_options o = default_options(cases[i].cls);
        struct skep_error err;

        o.optimizer = cases[i].optimizer;
        o.schedule = cases[i].schedule;
        o.momentum = cases[i].momentum;
        o.warmup_steps = 3;
        o.training_steps = 20;
        o.seed = 1;
        struct expert *a = create(&o);
        train(a, 0, 5);
        must(save_expert(path, a, &err), &err);
        o.seed = 2;
        struct expert *b = create(&o);
        must(load_expert(path, b, &err), &err);
        assert_int_equal(expert_update_count(b), 5);
        assert_true(same_state(a, b));
        train(a, 5, 9);
        train(b, 5, 9);
        assert_true(same_state(a, b));
        expert_free(a);
        expert_free(b);
    }
    tempdir_remove(&dir);
}

static void an_untrained_expert_is_small_and_starts_with_zero_state(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    struct skep_error err;
    size_t len;

    tempdir_make(&dir);
    struct expert *a = create_default(1);
    struct expert *b = create_default(2);
    must(save_expert(tempdir_file(&dir, "c", path), a, &err), &err);
    free(read_file(path, &len));
    assert_true(len < expert_parameter_count(a) * sizeof(float) + 4096);
    must(load_expert(path, b, &err), &err);
    assert_true(same_state(a, b));
    expert_free(a);
    expert_free(b);
    tempdir_remove(&dir);
}

static void settings_are_kept(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    struct skep_error err;
    struct skep_expert_options o = default_options("swiglu");
    struct checkpoint *c;

    o.intermediate_dim = 40;
    o.optimizer = "adamw";
    o.learning_rate = 0.1 + 0.2;
    o.weight_decay = 0.02;
    o.clip_grad_norm = 0.5;
    o.schedule = "linear-with-warmup";
    o.warmup_steps = 7;
    o.training_steps = UINT64_MAX;
    tempdir_make(&dir);
    struct expert *e = create(&o);
    must(save_expert(tempdir_file(&dir, "c", path), e, &err), &err);
    must(checkpoint_open(path, &c, &err), &err);
    const struct checkpoint_header *h = checkpoint_header(c);
    assert_string_equal(h->uid, "ffn.0.1");
    assert_string_equal(h->options.cls, "swiglu");
    assert_string_equal(h->options.optimizer, "adamw");
    assert_string_equal(h->options.schedule, "linear-with-warmup");
    assert_true(h->has_training);
    assert_int_equal(h->options.hidden_dim, HIDDEN);
    assert_int_equal(h->options.intermediate_dim, 40);
    assert_true(memcmp(&h->options.learning_rate, &o.learning_rate, sizeof(double)) == 0);
    assert_true(memcmp(&h->options.weight_decay, &o.weight_decay, sizeof(double)) == 0);
    assert_int_equal(h->options.training_steps, UINT64_MAX);
    /* The same expert can be made from what the file says. */
    struct expert *again = create(&h->options);
    must(checkpoint_apply(c, path, again, &err), &err);
    assert_true(same_state(e, again));
    checkpoint_close(c);
    expert_free(e);
    expert_free(again);
    tempdir_remove(&dir);
}

/* --- what is refused ----------------------------------------------------------------------- */

/* An expert's file in memory; `path` is where it was. */
static uint8_t *sample(const struct tempdir *dir, char path[512], struct expert *e, size_t *len)
{
    struct skep_error err;

    must(save_expert(tempdir_file(dir, "sample", path), e, &err), &err);
    return read_file(path, len);
}

static struct expert *small_expert(uint64_t seed)
{
    struct skep_expert_options o = default_options("ffn");

    o.hidden_dim = 2;
    o.seed = seed;
    return create(&o);
}

static void train_small(struct expert *e)
{
    DLManagedTensor *x = tensor_of(ROWS, 2, 1);
    DLManagedTensor *dy = tensor_of(ROWS, 2, 2);
    DLManagedTensor *dx = tensor_of(ROWS, 2, 0);

    assert_int_equal(expert_backward(e, &x->dl_tensor, &dy->dl_tensor, &dx->dl_tensor, NULL),
                     SKEP_OK);
    skep_tensor_free(x);
    skep_tensor_free(dy);
    skep_tensor_free(dx);
}

/* Loading must fail and leave the expert alone, or give exactly what was saved (a byte that means
 * nothing, such as padding, was changed). */
static bool refused_or_equal(const uint8_t *data, size_t len, struct expert *original)
{
    struct checkpoint *c;
    struct skep_error err = {0};
    struct expert *e = small_expert(7);
    struct expert *untouched = small_expert(7);
    skep_status rc = checkpoint_parse(data, len, &c, &err);
    bool ok;

    if (rc == SKEP_OK)
        rc = checkpoint_apply(c, "changed", e, &err);
    checkpoint_close(c);
    if (rc == SKEP_OK)
        ok = same_state(e, original);
    else
        ok = same_state(e, untouched) && err.message[0] != '\0';
    expert_free(e);
    expert_free(untouched);
    return ok;
}

static void every_damaged_byte_is_noticed(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    size_t len;
    size_t refused = 0;

    tempdir_make(&dir);
    struct expert *e = small_expert(1);
    train_small(e);
    uint8_t *data = sample(&dir, path, e, &len);
    for (size_t i = 0; i < len; i++) {
        struct checkpoint *c;
        uint8_t old = data[i];

        data[i] ^= (uint8_t)(1u << i % 8);
        if (!refused_or_equal(data, len, e))
            fail_msg("byte %zu of %zu was changed without being noticed", i, len);
        refused += checkpoint_parse(data, len, &c, NULL) != SKEP_OK;
        checkpoint_close(c);
        data[i] = old;
    }
    /* All of the data and nearly all of the header. */
    assert_true(refused > len * 9 / 10);
    free(data);
    expert_free(e);
    tempdir_remove(&dir);
}

static void every_truncation_is_noticed(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    size_t len;

    tempdir_make(&dir);
    struct expert *e = small_expert(1);
    train_small(e);
    uint8_t *data = sample(&dir, path, e, &len);
    for (size_t n = 0; n < len; n++) {
        struct checkpoint *c;
        struct skep_error err = {0};

        assert_int_equal(checkpoint_parse(data, n, &c, &err), SKEP_DATA_LOSS);
        assert_null(c);
        assert_true(err.message[0] != '\0');
    }
    data = realloc(data, len + 2);
    data[len] = 0; /* and one byte too many */
    struct checkpoint *c;
    assert_int_equal(checkpoint_parse(data, len + 1, &c, NULL), SKEP_DATA_LOSS);
    free(data);
    expert_free(e);
    tempdir_remove(&dir);
}

static void expect_refusal(const char *path, struct skep_expert_options o, const char *text)
{
    struct skep_error err = {0};

    o.seed = 3;
    struct expert *e = create(&o);
    struct expert *untouched = create(&o);
    assert_int_equal(load_expert(path, e, &err), SKEP_FAILED_PRECONDITION);
    if (strstr(err.message, text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.message, text);
    assert_true(same_state(e, untouched));
    expert_free(e);
    expert_free(untouched);
}

static void another_class_or_shape_is_refused(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    struct skep_error err;
    struct skep_expert_options o = default_options("ffn");

    tempdir_make(&dir);
    tempdir_file(&dir, "c", path);
    struct expert *e = create(&o);
    must(save_expert(path, e, &err), &err);
    expert_free(e);
    o.hidden_dim = 2 * HIDDEN;
    expect_refusal(path, o, "hidden_dim 24, the expert is of class ffn with hidden_dim 48");
    expect_refusal(path, default_options("swiglu"), "class \"ffn\"");

    o = default_options("swiglu");
    o.intermediate_dim = 10;
    e = create(&o);
    must(save_expert(path, e, &err), &err);
    expert_free(e);
    o.intermediate_dim = 11;
    expect_refusal(path, o, "gate_proj.weight is [10, 24] F32, the expert's is [11, 24] F32");
    tempdir_remove(&dir);
}

/* Writes a checkpoint's tensors anew, one of them with elements of another type, all zero, and with
 * a checksum that is right: what a program that converts files could leave. */
static void resave(const char *from, const char *to, const char *name, DLDataType dtype,
                   bool commas)
{
    char with_comma[HEADER_MAX_FIELDS][HEADER_TEXT_BYTES];
    struct skep_safetensors *file;
    struct checkpoint_header header;
    struct header_texts texts;
    struct skep_named_tensor named[64], sorted[64];
    const char *metadata[2 * HEADER_MAX_FIELDS + 3] = {"skep.checksum"};
    char checksum[2 * DIGEST_BYTES + 1];
    uint8_t digest[DIGEST_BYTES];
    DLManagedTensor *other = NULL;
    struct skep_error err;
    size_t bytes;

    must(skep_safetensors_open(from, &file, &err), &err);
    must(header_read(file, &header, &texts, &err), &err);
    size_t count = skep_safetensors_count(file);
    assert_true(count <= 64);
    for (size_t i = 0; i < count; i++) {
        const DLTensor *t = skep_safetensors_tensor(file, i);
        named[i] = (struct skep_named_tensor){skep_safetensors_name(file, i), t};
        if (strcmp(named[i].name, name) != 0)
            continue;
        must(skep_tensor_new(dtype, t->ndim, t->shape, &other, &err), &err);
        must(skep_tensor_bytes(&other->dl_tensor, &bytes, &err), &err);
        memset(skep_tensor_data(&other->dl_tensor), 0, bytes);
        named[i].tensor = &other->dl_tensor;
    }
    assert_true(other != NULL || name[0] == '\0');
    for (size_t i = 1; commas && texts.pairs[i - 1] != NULL; i += 2) {
        char *point;
        snprintf(with_comma[i / 2], HEADER_TEXT_BYTES, "%s", texts.pairs[i]);
        if (strspn(texts.pairs[i], "0123456789.") == strlen(texts.pairs[i]) &&
            (point = strchr(with_comma[i / 2], '.')) != NULL) {
            *point = ',';
            texts.pairs[i] = with_comma[i / 2];
        }
    }
    memcpy(sorted, named, sizeof(sorted));
    must(digest_make(texts.pairs, sorted, count, false, digest, &err), &err);
    hex_encode(checksum, digest, sizeof(digest));
    metadata[1] = checksum;
    for (size_t i = 0; texts.pairs[i] != NULL; i++)
        metadata[2 + i] = texts.pairs[i];
    must(skep_safetensors_save(to, named, count, metadata, &err), &err);
    skep_tensor_free(other);
    skep_safetensors_close(file);
}

static void save_with_dtype(const char *from, const char *to, const char *name, DLDataType dtype)
{
    resave(from, to, name, dtype, false);
}

/* As earlier versions wrote them inside a program that had set a German locale. */
static void numbers_with_a_comma_are_still_read(void **state)
{
    (void)state;
    struct tempdir dir;
    char from[512], to[512];
    struct checkpoint *c;
    struct skep_safetensors *file;
    struct skep_error err;

    tempdir_make(&dir);
    struct expert *e = create_default(1);
    must(save_expert(tempdir_file(&dir, "from", from), e, &err), &err);
    resave(from, tempdir_file(&dir, "to", to), "", DTYPE_F32, true);
    must(skep_safetensors_open(to, &file, &err), &err);
    assert_true(strncmp(skep_safetensors_metadata(file, "skep.beta2"), "0,99", 4) == 0);
    skep_safetensors_close(file);
    must(checkpoint_open(to, &c, &err), &err);
    assert_true(checkpoint_header(c)->options.beta2 == expert_settings(e)->beta2);
    assert_true(checkpoint_header(c)->options.learning_rate == expert_settings(e)->learning_rate);
    checkpoint_close(c);
    expert_free(e);
    tempdir_remove(&dir);
}

static void another_type_of_numbers_is_refused(void **state)
{
    (void)state;
    static const struct {
        DLDataType dtype;
        const char *name;
    } types[] = {{{kDLFloat, 64, 1}, "F64"},
                 {{kDLFloat, 16, 1}, "F16"},
                 {{kDLBfloat, 16, 1}, "BF16"},
                 {{kDLInt, 32, 1}, "I32"}};
    struct tempdir dir;
    char from[512], to[512], expected[128];
    struct skep_error err;
    struct skep_expert_options o = default_options("ffn");

    tempdir_make(&dir);
    tempdir_file(&dir, "from", from);
    tempdir_file(&dir, "to", to);
    struct expert *e = create(&o);
    train(e, 0, 1);
    must(save_expert(from, e, &err), &err);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        save_with_dtype(from, to, "layers.0.bias", types[i].dtype);
        snprintf(expected, sizeof(expected), "layers.0.bias is [96] %s, the expert's is [96] F32",
                 types[i].name);
        expect_refusal(to, o, expected);
    }
    /* The same way, with the type that it has: the file is good. */
    save_with_dtype(from, to, "layers.0.bias", DTYPE_F32);
    struct expert *same = create(&o);
    must(load_expert(to, same, &err), &err);
    assert_false(same_parameters(e, same)); /* its biases are zeros now */

    /* The optimizer's numbers cannot be used then, the parameters can. */
    struct expert_counters counters;
    save_with_dtype(from, to, "optimizer.exp_avg.layers.0.bias", (DLDataType){kDLFloat, 64, 1});
    must(load_expert(to, same, &err), &err);
    assert_true(same_parameters(e, same));
    mem_free(copy_of(same, &counters));
    assert_int_equal(counters.updates, 1);
    assert_int_equal(counters.steps, 0);
    expert_free(same);
    expert_free(e);
    tempdir_remove(&dir);
}

static void weights_without_metadata_are_no_checkpoint(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    struct skep_error err = {0};
    struct checkpoint *c;
    DLManagedTensor *t = tensor_of(2, 2, 1);
    struct skep_named_tensor named = {.name = "layers.0.weight", .tensor = &t->dl_tensor};
    const char *const future[] = {"skep.format", "2", NULL};

    tempdir_make(&dir);
    tempdir_file(&dir, "c", path);
    must(skep_safetensors_save(path, &named, 1, NULL, &err), &err);
    assert_int_equal(checkpoint_open(path, &c, &err), SKEP_DATA_LOSS);
    assert_non_null(strstr(err.message, "skep.format"));
    must(skep_safetensors_save(path, &named, 1, future, &err), &err);
    assert_int_equal(checkpoint_open(path, &c, &err), SKEP_DATA_LOSS);
    assert_non_null(strstr(err.message, "format \"2\", expected 1"));
    skep_tensor_free(t);
    tempdir_remove(&dir);
}

static void another_optimizer_keeps_parameters_and_starts_anew(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    struct skep_error err;
    struct skep_expert_options o = default_options("ffn");
    struct expert_counters counters;

    tempdir_make(&dir);
    struct expert *a = create(&o);
    train(a, 0, 4);
    must(save_expert(tempdir_file(&dir, "c", path), a, &err), &err);
    o.optimizer = "sgd";
    o.momentum = 0.9;
    struct expert *b = create(&o);
    must(load_expert(path, b, &err), &err);
    assert_true(same_parameters(a, b));
    mem_free(copy_of(b, &counters));
    assert_int_equal(counters.updates, 4);
    assert_int_equal(counters.steps, 0);
    expert_free(a);
    expert_free(b);
    tempdir_remove(&dir);
}

/* --- failures ------------------------------------------------------------------------------ */

static void failed_allocations_are_reported(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    struct expert *e = create_default(1);
    struct checkpoint_header header = {
        .uid = "ffn.0.1", .options = *expert_settings(e), .has_training = true};
    float *copy = copy_of(e, &header.counters);
    bool done = false;

    tempdir_make(&dir);
    tempdir_file(&dir, "c", path);
    for (long nth = 1; !done; nth++) {
        struct skep_error err = {0};
        mem_fail_at(nth);
        skep_status rc = checkpoint_save(path, &header, e, copy, &err);
        done = mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(rc, done ? SKEP_OK : SKEP_RESOURCE_EXHAUSTED);
        assert_int_equal(tempdir_count(&dir, 0), done ? 1 : 0);
    }
    done = false;
    for (long nth = 1; !done; nth++) {
        struct skep_error err = {0};
        struct checkpoint *c;
        mem_fail_at(nth);
        skep_status rc = checkpoint_open(path, &c, &err);
        done = mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(rc, done ? SKEP_OK : SKEP_RESOURCE_EXHAUSTED);
        checkpoint_close(c);
    }
    mem_free(copy);
    expert_free(e);
    tempdir_remove(&dir);
}

/* A full disk, played by a limit on the size of files. */
static void a_full_disk_leaves_the_old_file_whole(void **state)
{
    (void)state;
    struct tempdir dir;
    char path[512];
    struct skep_error err = {0};
    struct rlimit old;

    tempdir_make(&dir);
    tempdir_file(&dir, "c", path);
    struct expert *a = create_default(1);
    struct expert *b = create_default(2);
    struct expert *loaded = create_default(3);
    must(save_expert(path, a, &err), &err);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    struct rlimit low = {.rlim_cur = 20000, .rlim_max = old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    skep_status rc = save_expert(path, b, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rc, SKEP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(tempdir_count(&dir, 0), 1);
    must(load_expert(path, loaded, &err), &err);
    assert_true(same_state(a, loaded));
    expert_free(a);
    expert_free(b);
    expert_free(loaded);
    tempdir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_goes_on_as_if_it_had_never_stopped),
        cmocka_unit_test(an_untrained_expert_is_small_and_starts_with_zero_state),
        cmocka_unit_test(settings_are_kept),
        cmocka_unit_test(every_damaged_byte_is_noticed),
        cmocka_unit_test(every_truncation_is_noticed),
        cmocka_unit_test(another_class_or_shape_is_refused),
        cmocka_unit_test(numbers_with_a_comma_are_still_read),
        cmocka_unit_test(another_type_of_numbers_is_refused),
        cmocka_unit_test(weights_without_metadata_are_no_checkpoint),
        cmocka_unit_test(another_optimizer_keeps_parameters_and_starts_anew),
        cmocka_unit_test(failed_allocations_are_reported),
        cmocka_unit_test(a_full_disk_leaves_the_old_file_whole),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
