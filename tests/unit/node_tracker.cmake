skep_unit_test(test_lease MODULES client node TIMEOUT 360)
set_property(TEST test_lease APPEND PROPERTY LABELS threads)
skep_unit_test(test_node_tracker MODULES node TIMEOUT 360)
