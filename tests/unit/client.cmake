skep_unit_test(test_avoid MODULES client)
skep_unit_test(test_client MODULES client node LIBS PkgConfig::SODIUM TIMEOUT 120)
