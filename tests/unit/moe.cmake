skep_unit_test(test_moe MODULES client LIBS PkgConfig::JANSSON PkgConfig::SODIUM TIMEOUT 120)
skep_unit_test(test_switch_moe MODULES client LIBS PkgConfig::SODIUM TIMEOUT 120)
set_property(TEST test_moe test_switch_moe APPEND PROPERTY LABELS threads)
