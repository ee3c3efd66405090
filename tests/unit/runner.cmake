skep_unit_test(test_runner MODULES dht TIMEOUT 180)
