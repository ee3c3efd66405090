skep_unit_test(test_watch MODULES dht TIMEOUT 480)
set_property(TEST test_watch APPEND PROPERTY LABELS threads)
