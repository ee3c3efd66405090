skep_fuzz_target(fuzz_mp MODULES base)
skep_fuzz_target(fuzz_endpoint MODULES base)
skep_fuzz_target(fuzz_safetensors MODULES base)
skep_fuzz_target(fuzz_npy MODULES base)
