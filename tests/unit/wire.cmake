skep_unit_test(test_frame MODULES wire)
skep_unit_test(test_message MODULES wire)
skep_unit_test(test_golden_codecs MODULES wire)
skep_unit_test(test_tensor_codec MODULES wire)
