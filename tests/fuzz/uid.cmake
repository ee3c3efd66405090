skep_fuzz_target(fuzz_uid MODULES dht)
