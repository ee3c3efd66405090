skep_unit_test(test_task_pool MODULES runtime)
set_property(TEST test_task_pool APPEND PROPERTY LABELS threads)
