skep_fuzz_target(fuzz_tracker MODULES tracker)
