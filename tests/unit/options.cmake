skep_unit_test(test_options MODULES cli)
skep_unit_test(test_output MODULES cli LIBS PkgConfig::JANSSON)
skep_test_in_locales(test_options test_output)
