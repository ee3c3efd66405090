skep_fuzz_target(fuzz_codec MODULES wire)
skep_fuzz_target(fuzz_frame MODULES wire)
skep_fuzz_target(fuzz_message MODULES wire)
