add_test(NAME dht COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/dht_test.sh" $<TARGET_FILE:skep>)
set_tests_properties(dht PROPERTIES TIMEOUT 480
  ENVIRONMENT "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp")
