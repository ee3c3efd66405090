skep_unit_test(test_task_pool MODULES runtime)
