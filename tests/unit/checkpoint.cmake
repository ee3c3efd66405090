skep_unit_test(test_checkpoint MODULES experts)
