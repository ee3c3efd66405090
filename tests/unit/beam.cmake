skep_unit_test(test_beam MODULES dht LIBS PkgConfig::JANSSON TIMEOUT 120)
