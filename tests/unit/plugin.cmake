# Plugins for the tests, one fault each: see plugins/bad.c.
set(plugin_faults none_at_all other_version create_fails taken_name bad_name lacks_forward no_inputs
    open_batch_missing equal_parameters too_many_parameters moves_output strange_status
    backward_fails no_classes writes_nan)
set(plugin_dir "${CMAKE_CURRENT_BINARY_DIR}/plugins")
set(fault_number 0)
foreach(fault IN LISTS plugin_faults)
  add_library(test_plugin_${fault} MODULE plugins/bad.c)
  target_compile_definitions(test_plugin_${fault} PRIVATE FAULT=${fault_number}
                             CLASS_NAME="${fault}")
  math(EXPR fault_number "${fault_number} + 1")
endforeach()
add_library(test_plugin_not_one MODULE plugins/none.c)
foreach(fault IN LISTS plugin_faults ITEMS not_one)
  set_target_properties(test_plugin_${fault} PROPERTIES PREFIX "" OUTPUT_NAME ${fault}
                        LIBRARY_OUTPUT_DIRECTORY "${plugin_dir}")
  target_include_directories(test_plugin_${fault} PRIVATE "${PROJECT_SOURCE_DIR}/include"
                             "${DLPACK_INCLUDE_DIR}")
  skep_compile_options(test_plugin_${fault})
endforeach()

skep_unit_test(test_plugin MODULES node LIBS ${CMAKE_DL_LIBS})
foreach(fault IN LISTS plugin_faults ITEMS not_one)
  add_dependencies(test_plugin test_plugin_${fault})
endforeach()
add_dependencies(test_plugin skep_example_plugin)
target_compile_definitions(test_plugin PRIVATE PLUGIN_DIR="${plugin_dir}"
                           EXAMPLE_PLUGIN="$<TARGET_FILE:skep_example_plugin>")
