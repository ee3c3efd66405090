# What a node does with an expert that never comes back: only a plugin can bring one.
add_library(test_plugin_blocks MODULE plugin_blocks.c)
set_target_properties(test_plugin_blocks PROPERTIES PREFIX "" OUTPUT_NAME blocks)
target_include_directories(test_plugin_blocks PRIVATE "${PROJECT_SOURCE_DIR}/include"
                           "${DLPACK_INCLUDE_DIR}")
skep_compile_options(test_plugin_blocks)

skep_integration_test(test_stalls 360)
set_property(TEST test_stalls APPEND PROPERTY ENVIRONMENT
             "SKEP_TEST_PLUGIN=$<TARGET_FILE:test_plugin_blocks>")
