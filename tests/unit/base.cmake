skep_unit_test(test_bytes MODULES base)
skep_unit_test(test_error MODULES base)
skep_unit_test(test_tensor MODULES base)
