skep_unit_test(test_record_tracker MODULES dht)
skep_unit_test(test_directory_list MODULES dht TIMEOUT 360)
skep_unit_test(test_tracker_peers MODULES dht TIMEOUT 360)

skep_unit_test(test_resolver MODULES dht)
set_property(TEST test_resolver APPEND PROPERTY LABELS threads)
