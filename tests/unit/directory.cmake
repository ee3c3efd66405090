skep_unit_test(test_directory MODULES dht TIMEOUT 900 ALONE)
skep_unit_test(test_handler MODULES dht TIMEOUT 360)
skep_unit_test(test_swarm MODULES dht TIMEOUT 360)
skep_unit_test(test_directory_parts MODULES dht)
