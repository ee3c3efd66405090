skep_unit_test(test_watch MODULES dht TIMEOUT 180)
set_property(TEST test_watch APPEND PROPERTY LABELS threads)
