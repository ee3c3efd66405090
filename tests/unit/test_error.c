#include "unit.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

static void every_status_has_name_and_text(void **state)
{
    (void)state;
    assert_string_equal(skep_status_name(SKEP_OK), "OK");
    assert_string_equal(skep_status_name(SKEP_UNAUTHENTICATED), "UNAUTHENTICATED");
    assert_string_equal(skep_status_name((skep_status)99), "UNKNOWN_STATUS");
    assert_string_equal(skep_status_text((skep_status)-1), "unknown status");
}

static void set_returns_status_and_cuts_long_sentences(void **state)
{
    (void)state;
    struct skep_error err = {.outcome_unknown = true};
    char longer[2 * SKEP_ERROR_MESSAGE_BYTES];

    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    assert_int_equal(error_set(&err, SKEP_NOT_FOUND, "%s", longer), SKEP_NOT_FOUND);
    assert_int_equal(strlen(err.message), SKEP_ERROR_MESSAGE_BYTES - 1);
    assert_false(err.outcome_unknown);
    assert_int_equal(error_set(NULL, SKEP_INTERNAL, "no one asks"), SKEP_INTERNAL);
}

static void set_may_quote_its_own_message(void **state)
{
    (void)state;
    struct skep_error err;

    error_set(&err, SKEP_INTERNAL, "inner");
    error_set(&err, SKEP_INTERNAL, "outer: %s", err.message);
    assert_string_equal(err.message, "outer: inner");
}

static void prefix_goes_before_the_sentence(void **state)
{
    (void)state;
    struct skep_error err;

    error_set(&err, SKEP_NOT_FOUND, "no such file");
    error_prefix(&err, "expert %s", "ffn.3");
    assert_string_equal(err.message, "expert ffn.3: no such file");
    assert_int_equal(err.status, SKEP_NOT_FOUND);
}

static void errno_is_mapped_by_meaning(void **state)
{
    (void)state;
    assert_int_equal(status_from_errno(ENOENT), SKEP_NOT_FOUND);
    assert_int_equal(status_from_errno(EACCES), SKEP_PERMISSION_DENIED);
    assert_int_equal(status_from_errno(ENOSPC), SKEP_RESOURCE_EXHAUSTED);
    assert_int_equal(status_from_errno(EIO), SKEP_INTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_name_and_text),
        cmocka_unit_test(set_returns_status_and_cuts_long_sentences),
        cmocka_unit_test(set_may_quote_its_own_message),
        cmocka_unit_test(prefix_goes_before_the_sentence),
        cmocka_unit_test(errno_is_mapped_by_meaning),
    };
    return cmocka_run_group_tests_name("error", tests, NULL, NULL);
}
