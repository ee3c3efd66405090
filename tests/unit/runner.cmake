skep_unit_test(test_runner MODULES dht TIMEOUT 480)
skep_unit_test(test_met_peers MODULES dht)
skep_unit_test(test_shown MODULES dht)
skep_unit_test(test_own_seqs MODULES dht)
