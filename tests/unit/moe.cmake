skep_unit_test(test_moe MODULES client LIBS PkgConfig::SODIUM TIMEOUT 360)
skep_unit_test(test_golden_moe MODULES client LIBS PkgConfig::JANSSON PkgConfig::SODIUM TIMEOUT 360)
skep_unit_test(test_switch_moe MODULES client LIBS PkgConfig::SODIUM TIMEOUT 360)
skep_unit_test(test_moe_faults MODULES client LIBS PkgConfig::SODIUM TIMEOUT 600)
skep_unit_test(test_search_faults MODULES client LIBS PkgConfig::SODIUM TIMEOUT 480)
skep_unit_test(test_replicas MODULES client LIBS PkgConfig::SODIUM TIMEOUT 360)
set_property(TEST test_moe test_golden_moe test_switch_moe test_moe_faults
  test_search_faults test_replicas APPEND PROPERTY LABELS threads)
