skep_fuzz_target(fuzz_record MODULES dht)
