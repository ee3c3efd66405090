skep_unit_test(test_runner_types MODULES dht LIBS PkgConfig::SODIUM)
set_property(TEST test_runner_types APPEND PROPERTY LABELS threads)
