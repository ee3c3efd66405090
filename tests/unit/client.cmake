skep_unit_test(test_avoid MODULES client)
skep_unit_test(test_client MODULES client node LIBS PkgConfig::SODIUM TIMEOUT 120)
skep_unit_test(test_client_codecs MODULES client node TIMEOUT 120)
skep_unit_test(test_demotion MODULES client node TIMEOUT 120)
