/* Weights of other types, and files that do not fit. */
#include <math.h>

#include "checkpoint_fixture.h"
#include "experts/weights.h"

/* The definition of binary16, slowly. */
static double half_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31;
    int fraction = bits & 1023;
    double size = exponent == 0    ? ldexp(fraction, -24)
                  : exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                                   : ldexp(1024 + fraction, exponent - 25);

    return bits >> 15 != 0 ? -size : size;
}

static void every_half_is_read_exactly(void **state)
{
    (void)state;
    enum { COUNT = 1 << 16 };
    uint16_t *halves = malloc(COUNT * sizeof(*halves));
    float *floats = malloc(COUNT * sizeof(*floats));
    int64_t shape[1] = {COUNT};
    const DLTensor t = {
        .data = halves,
        .device = {.device_type = kDLCPU},
        .ndim = 1,
        .dtype = {.code = kDLFloat, .bits = 16, .lanes = 1},
        .shape = shape,
    };

    for (unsigned i = 0; i < COUNT; i++)
        halves[i] = (uint16_t)i;
    assert_int_equal(weights_to_f32(&t, floats, NULL), SKEP_OK);
    for (unsigned i = 0; i < COUNT; i++) {
        double want = half_value((uint16_t)i);

        if (isnan(want) ? !isnan(floats[i])
                        : (double)floats[i] != want || !signbit(floats[i]) != !signbit(want))
            fail_msg("half %04x became %g, expected %g", i, (double)floats[i], want);
    }
    free(halves);
    free(floats);
}

static void other_types_are_converted_or_refused(void **state)
{
    (void)state;
    uint16_t brain[3] = {0x3f80, 0xc040, 0x0001};
    double wide[3] = {1.0, -3.0, 1e300};
    int64_t whole[3] = {1, 2, 3};
    int64_t shape[1] = {3};
    float out[3];
    struct skep_error err = {0};
    DLTensor t = {.data = brain,
                  .device = {.device_type = kDLCPU},
                  .ndim = 1,
                  .dtype = {.code = kDLBfloat, .bits = 16, .lanes = 1},
                  .shape = shape};

    assert_int_equal(weights_to_f32(&t, out, &err), SKEP_OK);
    assert_true(out[0] == 1.0f && out[1] == -3.0f && out[2] > 0.0f && out[2] < 1e-39f);
    t.data = wide;
    t.dtype = (DLDataType){.code = kDLFloat, .bits = 64, .lanes = 1};
    assert_int_equal(weights_to_f32(&t, out, &err), SKEP_OK);
    assert_true(out[0] == 1.0f && out[1] == -3.0f && isinf(out[2]));
    t.data = whole;
    t.dtype = DTYPE_I64;
    assert_int_equal(weights_to_f32(&t, out, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "I64"));
    shape[0] = 0;
    t.data = NULL;
    t.dtype = DTYPE_F32;
    assert_int_equal(weights_to_f32(&t, out, &err), SKEP_OK);
}

/* A checkpoint's weights, written to and read from a file. */
static struct skep_safetensors *exported(struct expert *e, const struct tempdir *dir)
{
    char from[512];
    char to[512];
    struct checkpoint *c;
    struct skep_safetensors *file;
    struct skep_error err;

    must(save_expert(tempdir_file(dir, "c", from), e, &err), &err);
    must(checkpoint_open(from, &c, &err), &err);
    must(weights_export(c, tempdir_file(dir, "w", to), &err), &err);
    checkpoint_close(c);
    must(skep_safetensors_open(to, &file, &err), &err);
    return file;
}

static void parameters_leave_and_come_back(void **state)
{
    (void)state;
    static const char *const classes[] = {"ffn", "transformer", "det_dropout", "swiglu"};
    struct tempdir dir;

    tempdir_make(&dir);
    for (size_t i = 0; i < 4; i++) {
        struct skep_expert_options o = default_options(classes[i]);
        struct skep_expert_options inferred;
        struct skep_error err;

        o.seed = 1;
        o.intermediate_dim = i == 3 ? 31 : 0;
        struct expert *a = create(&o);
        struct skep_safetensors *file = exported(a, &dir);
        assert_int_equal(skep_safetensors_count(file), expert_parameters(a, NULL, NULL, 0));
        skep_expert_options_init(&inferred);
        inferred.cls = classes[i];
        inferred.seed = 2;
        assert_true(weights_infer(file, classes[i], &inferred));
        assert_int_equal(inferred.hidden_dim, HIDDEN);
        struct expert *b = create(&inferred);
        assert_false(same_parameters(a, b));
        must(weights_load(file, b, &err), &err);
        assert_true(same_parameters(a, b));
        skep_safetensors_close(file);
        expert_free(a);
        expert_free(b);
    }
    tempdir_remove(&dir);
}

/* A type that Skep does not have is refused where it is needed, and nowhere else. */
static void other_types_beside_the_parameters_do_not_matter(void **state)
{
    (void)state;
    static const char header[] =
        "{\"gate_proj.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]},"
        "\"up_proj.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[4,8]},"
        "\"down_proj.weight\":{\"dtype\":\"%s\",\"shape\":[1,1],\"data_offsets\":[8,12]},"
        "\"optimizer.x\":{\"dtype\":\"F8_E8M0\",\"shape\":[4],\"data_offsets\":[12,16]}}";
    static const char *const types[] = {"F32", "C64"};

    for (size_t i = 0; i < 2; i++) {
        uint8_t raw[512] = {0};
        struct skep_safetensors *file;
        struct skep_expert_options o;
        struct skep_error err = {0};
        int len = snprintf((char *)raw + 8, sizeof(raw) - 8, header, types[i]);

        memcpy(raw, &(uint64_t){(uint64_t)len}, 8);
        must(skep_safetensors_parse(raw, 8 + (size_t)len + 16, &file, &err), &err);
        skep_expert_options_init(&o);
        o.cls = "swiglu";
        assert_true(weights_infer(file, "swiglu", &o));
        struct expert *e = create(&o);
        skep_status rc = weights_load(file, e, &err);
        assert_int_equal(rc, i == 0 ? SKEP_OK : SKEP_INVALID_ARGUMENT);
        if (i == 1)
            assert_non_null(strstr(err.message, "tensor \"down_proj.weight\": dtype \"C64\""));
        expert_free(e);
        skep_safetensors_close(file);
    }
}

static void missing_and_unknown_parameters_are_named(void **state)
{
    (void)state;
    struct tempdir dir;
    struct skep_error err = {0};
    struct skep_expert_options o = default_options("swiglu");
    struct skep_expert_options untold;

    tempdir_make(&dir);
    struct expert *ffn = create_default(1);
    struct expert *swiglu = create(&o);
    struct skep_safetensors *file = exported(ffn, &dir);
    assert_int_equal(weights_load(file, swiglu, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "are those of class ffn, expected those of class swiglu"));
    assert_int_equal(weights_explain(file, "transformer", &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "class ffn"));
    assert_int_equal(weights_explain(file, "ffn", &err), SKEP_OK);
    assert_false(weights_infer(file, "swiglu", &untold));
    assert_false(weights_infer(file, "nop", &untold));
    skep_safetensors_close(file);
    o = default_options("nop");
    struct expert *nop = create(&o);
    file = exported(nop, &dir);
    assert_int_equal(weights_load(file, ffn, &err), SKEP_INVALID_ARGUMENT);
    skep_safetensors_close(file);

    char path[512];
    DLManagedTensor *t = tensor_of(2, 2, 1);
    const struct skep_named_tensor partial[] = {{"gate_proj.weight", &t->dl_tensor},
                                                {"down_proj.weight", &t->dl_tensor}};
    must(skep_safetensors_save(tempdir_file(&dir, "x", path), partial, 2, NULL, &err), &err);
    must(skep_safetensors_open(path, &file, &err), &err);
    assert_int_equal(weights_explain(file, "swiglu", &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "has no parameter up_proj.weight"));
    assert_non_null(strstr(err.message, "2 of its 3"));
    assert_int_equal(weights_explain(file, "ffn", &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "layers.0.weight, nor any other"));
    assert_non_null(strstr(err.message, "it holds \"gate_proj.weight\", \"down_proj.weight\""));
    skep_safetensors_close(file);
    const int64_t none[1] = {0};
    DLManagedTensor *empty;
    assert_int_equal(skep_tensor_new(DTYPE_F32, 1, none, &empty, NULL), SKEP_OK);
    const struct skep_named_tensor named[] = {
        {"w", &empty->dl_tensor}, {"optimizer.exp_avg.w", &empty->dl_tensor}, {"v", &t->dl_tensor}};
    must(skep_safetensors_save(tempdir_file(&dir, "x", path), named, 3, NULL, &err), &err);
    must(skep_safetensors_open(path, &file, &err), &err);
    assert_int_equal(weights_load(file, nop, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "holds \"v\""));
    skep_safetensors_close(file);
    must(skep_safetensors_save(path, named, 2, NULL, &err), &err);
    must(skep_safetensors_open(path, &file, &err), &err);
    must(weights_load(file, nop, &err), &err); /* optimizer state is left out */
    skep_safetensors_close(file);
    skep_tensor_free(t);
    skep_tensor_free(empty);
    expert_free(ffn);
    expert_free(swiglu);
    expert_free(nop);
    tempdir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_is_read_exactly),
        cmocka_unit_test(other_types_are_converted_or_refused),
        cmocka_unit_test(parameters_leave_and_come_back),
        cmocka_unit_test(other_types_beside_the_parameters_do_not_matter),
        cmocka_unit_test(missing_and_unknown_parameters_are_named),
    };
    return cmocka_run_group_tests_name("weights", tests, NULL, NULL);
}
