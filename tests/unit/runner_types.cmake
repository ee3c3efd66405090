skep_unit_test(test_runner_types MODULES dht LIBS PkgConfig::SODIUM)
