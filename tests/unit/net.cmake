skep_unit_test(test_loop MODULES net)
skep_unit_test(test_address_count MODULES net)
skep_unit_test(test_deadline_heap MODULES net)
skep_unit_test(test_listener MODULES net)
