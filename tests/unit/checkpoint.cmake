skep_unit_test(test_checkpoint MODULES experts TIMEOUT 120)
skep_unit_test(test_checkpoint_dir MODULES experts)
skep_unit_test(test_snapshot MODULES experts)
set_property(TEST test_snapshot APPEND PROPERTY LABELS threads)
