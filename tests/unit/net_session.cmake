skep_unit_test(test_session MODULES net)
skep_unit_test(test_session_flow MODULES net TIMEOUT 600)
