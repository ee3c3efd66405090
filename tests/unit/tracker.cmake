skep_unit_test(test_tracker_protocol MODULES tracker)
skep_unit_test(test_scheduler MODULES tracker)
skep_unit_test(test_tracker_server MODULES tracker TIMEOUT 120)
set_property(TEST test_tracker_server APPEND PROPERTY LABELS threads)
