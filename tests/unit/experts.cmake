skep_unit_test(test_expert MODULES experts)
skep_unit_test(test_expert_math MODULES experts)
skep_unit_test(test_expert_passes MODULES experts)
skep_unit_test(test_golden_experts MODULES experts TIMEOUT 360)
skep_unit_test(test_expert_half MODULES experts)
skep_unit_test(test_golden_bfloat16 MODULES experts TIMEOUT 360)
# The same where oneDNN finds no bfloat16.
foreach(test test_expert_half test_golden_bfloat16)
  add_test(NAME ${test}_rounded COMMAND ${test})
  set_tests_properties(${test}_rounded PROPERTIES TIMEOUT 360
    ENVIRONMENT "SKEP_GOLDEN_DIR=${PROJECT_SOURCE_DIR}/tests/golden;ONEDNN_MAX_CPU_ISA=AVX2")
endforeach()
skep_unit_test(test_parallel MODULES experts)
