skep_fuzz_target(fuzz_reach MODULES node)
