skep_unit_test(test_frame MODULES wire)
skep_unit_test(test_message MODULES wire)
