skep_unit_test(test_avoid MODULES client)
skep_unit_test(test_client MODULES client node LIBS PkgConfig::SODIUM TIMEOUT 120)
set_property(TEST test_client APPEND PROPERTY LABELS threads)
