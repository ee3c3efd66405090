skep_unit_test(test_uid MODULES dht LIBS PkgConfig::JANSSON)
