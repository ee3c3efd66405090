skep_fuzz_target(fuzz_session MODULES net)
