skep_unit_test(test_checkpoint MODULES experts TIMEOUT 600)
skep_unit_test(test_checkpoint_dir MODULES experts)
skep_unit_test(test_weight_files MODULES experts)
skep_unit_test(test_snapshot MODULES experts)
