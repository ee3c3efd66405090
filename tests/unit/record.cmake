skep_unit_test(test_record MODULES dht)
skep_test_in_locales(test_record)
