skep_unit_test(test_task_pool MODULES runtime)
skep_unit_test(test_lanes MODULES runtime)
