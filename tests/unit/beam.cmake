skep_unit_test(test_beam MODULES dht LIBS PkgConfig::JANSSON TIMEOUT 360)
skep_unit_test(test_prefix_view MODULES dht)
