add_test(NAME experts_cli
  COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/experts_test.sh" $<TARGET_FILE:skep>
          $<TARGET_FILE:skep_example_plugin>)
set_tests_properties(experts_cli PROPERTIES TIMEOUT 600)
