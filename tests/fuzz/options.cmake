skep_fuzz_target(fuzz_config MODULES cli)
