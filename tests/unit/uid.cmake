skep_unit_test(test_uid MODULES dht LIBS PkgConfig::JANSSON)
skep_test_in_locales(test_uid)
