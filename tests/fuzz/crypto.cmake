skep_fuzz_target(fuzz_noise MODULES crypto)
skep_fuzz_target(fuzz_identity MODULES crypto)
