skep_unit_test(test_record MODULES dht)
