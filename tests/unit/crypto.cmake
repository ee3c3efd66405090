skep_unit_test(test_identity MODULES crypto)
skep_unit_test(test_keyed_hash MODULES crypto)
skep_unit_test(test_swarm_key MODULES crypto)
skep_unit_test(test_noise_channel MODULES crypto)
skep_unit_test(test_noise MODULES crypto)
skep_unit_test(test_noise_vectors MODULES crypto LIBS PkgConfig::JANSSON)
# Where a checkout lies beside a folder with more vectors, they are checked too.
target_compile_definitions(test_noise_vectors PRIVATE
  SKEP_NOISE_VECTORS_DEFAULT="${PROJECT_SOURCE_DIR}/../shared/noise")
