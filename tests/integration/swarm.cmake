# skep_integration_test(NAME TIMEOUT [ALONE]): tests/integration/NAME.py, run with Python's standard
# library over real processes of the program just built. TIMEOUT ends one that hangs: far above what
# any takes on a slow and busy machine. ALONE: not beside other tests, as it takes all of the machine,
# or measures.
find_package(Python3 REQUIRED COMPONENTS Interpreter)

add_executable(local_expert local_expert.c)
target_link_libraries(local_expert PRIVATE skep_experts skep_node)
skep_compile_options(local_expert)

# Shifts the wall clock of a program that loads it first.
add_library(shifted_clock MODULE shifted_clock.c)
skep_compile_options(shifted_clock)

# Sanitized programs are slower, and the machine may be busy with other tests.
set(integration_patience 1)
if(SKEP_SANITIZER OR SKEP_FUZZ)
  set(integration_patience 4)
endif()

function(skep_integration_test name timeout)
  cmake_parse_arguments(arg "ALONE" "" "" ${ARGN})
  math(EXPR timeout "${timeout} * ${integration_patience}")
  add_test(NAME ${name} COMMAND "${Python3_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/${name}.py")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} SKIP_RETURN_CODE 77
    ENVIRONMENT "SKEP_PROGRAM=$<TARGET_FILE:skep>;SKEP_LOCAL_EXPERT=$<TARGET_FILE:local_expert>;SKEP_SHIFTED_CLOCK=$<TARGET_FILE:shifted_clock>;SKEP_DIGITS=$<TARGET_FILE:digits>;SKEP_GOLDEN_DIR=${PROJECT_SOURCE_DIR}/tests/golden;SKEP_TEST_PATIENCE=${integration_patience};PYTHONDONTWRITEBYTECODE=1;TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp")
  if(arg_ALONE)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

skep_integration_test(test_addresses 600)
skep_integration_test(test_call_files 360)
skep_integration_test(test_stats 360)
skep_integration_test(test_calls 600)
skep_integration_test(test_clocks 600)
skep_integration_test(test_crash 720)
skep_integration_test(test_digits 480)
skep_integration_test(test_digits_moe 720 ALONE)
skep_integration_test(test_find_prefix 600)
skep_integration_test(test_five_nodes 480)
skep_integration_test(test_gone_peers 600)
skep_integration_test(test_halves 720)
skep_integration_test(test_joining_mistakes 600)
skep_integration_test(test_many_connections 600 ALONE)
skep_integration_test(test_namespaces 720)
skep_integration_test(test_one_swarm 600)
skep_integration_test(test_own_name 600)
skep_integration_test(test_private 480)
skep_integration_test(test_reachability 600)
skep_integration_test(test_restart 360)
skep_integration_test(test_rpc_faults 480)
skep_integration_test(test_silent_dns 480)
skep_integration_test(test_stop 480)
skep_integration_test(test_service 360)
skep_integration_test(test_thread_limit 480)
skep_integration_test(test_uids 600)
skep_integration_test(test_usage 480)
