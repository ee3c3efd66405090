add_test(NAME cli COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/cli_test.sh" $<TARGET_FILE:skep>)
set_tests_properties(cli PROPERTIES TIMEOUT 360)

add_test(NAME scripts COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/scripts_test.sh" "${PROJECT_SOURCE_DIR}")
set_tests_properties(scripts PROPERTIES TIMEOUT 120)

# A sanitizer's runtime is among the exports, and users would have to link it too.
if(NOT SKEP_SANITIZER AND NOT SKEP_FUZZ)
  add_test(NAME exports COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/exports_test.sh"
           $<TARGET_FILE:skep_shared> "${PROJECT_SOURCE_DIR}/include")
  add_test(NAME install COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/install_test.sh" "${CMAKE_BINARY_DIR}"
           "${CMAKE_COMMAND}" "${CMAKE_C_COMPILER}" "${CMAKE_CXX_COMPILER}")
  set_tests_properties(exports install PROPERTIES TIMEOUT 360 SKIP_RETURN_CODE 77)
endif()
