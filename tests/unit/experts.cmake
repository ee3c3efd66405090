skep_unit_test(test_expert MODULES experts)
skep_unit_test(test_expert_math MODULES experts)
skep_unit_test(test_expert_passes MODULES experts)
skep_unit_test(test_golden_experts MODULES experts TIMEOUT 120)
