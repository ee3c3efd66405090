skep_unit_test(test_once MODULES node)
skep_unit_test(test_node_parts MODULES node)
skep_unit_test(test_node MODULES node TIMEOUT 240)
set_property(TEST test_node APPEND PROPERTY LABELS threads)
