skep_unit_test(test_once MODULES node)
skep_unit_test(test_node_parts MODULES node)
