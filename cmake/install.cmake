# The shared library, and what is installed: library, headers, program, pkg-config file, CMake package.

# Every module but cli, each compiled once; users link a single file. What a module links is in its
# own list, so that there is no second one here.
set(skep_library_objects)
set(skep_library_links)
foreach(module IN ITEMS base crypto wire net experts dht_record dht_opendht dht_directory dht_bootstrap
                        dht_swarm dht_publish runtime tracker client node)
  list(APPEND skep_library_objects $<TARGET_OBJECTS:skep_${module}>)
  get_target_property(links skep_${module} LINK_LIBRARIES)
  list(APPEND skep_library_links ${links})
endforeach()
list(FILTER skep_library_links EXCLUDE REGEX "^skep_")
list(REMOVE_DUPLICATES skep_library_links)

add_library(skep_shared SHARED ${skep_library_objects})
set_target_properties(skep_shared PROPERTIES
  OUTPUT_NAME skep
  EXPORT_NAME skep
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}
  LINKER_LANGUAGE CXX # one file of dht/ is C++
  LINK_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/libskep.map")
target_link_libraries(skep_shared PRIVATE ${skep_library_links})
# Hidden visibility does not reach the weak symbols that C++ templates leave behind.
target_link_options(skep_shared PRIVATE
  "LINKER:--version-script=${CMAKE_CURRENT_LIST_DIR}/libskep.map")
if(NOT SKEP_SANITIZER AND NOT SKEP_FUZZ)
  target_link_options(skep_shared PRIVATE LINKER:--no-undefined)
endif()
target_include_directories(skep_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
skep_compile_options(skep_shared)

install(TARGETS skep_shared EXPORT skep-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS skep skep-bench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/skep" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES "${PROJECT_SOURCE_DIR}/README.md" DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs/" DESTINATION ${CMAKE_INSTALL_DOCDIR}
        FILES_MATCHING PATTERN "*.md")
# Each example is a project of its own, which builds where it lies or from a copy.
install(DIRECTORY "${PROJECT_SOURCE_DIR}/examples" DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES "${PROJECT_SOURCE_DIR}/tests/golden/digits.safetensors"
        DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples/digits)

# The unit names the program by its whole path, which is known when it is installed.
set(skep_unit "${PROJECT_SOURCE_DIR}/deploy/systemd/skep-node.service")
install(CODE "
  set(unit \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/systemd/system/skep-node.service\")
  file(READ \"${skep_unit}\" text)
  string(REPLACE /usr/local \"\${CMAKE_INSTALL_PREFIX}\" text \"\${text}\")
  file(WRITE \"\${unit}\" \"\${text}\")
  message(STATUS \"Installing: \${unit}\")")

# The .pc file finds its prefix from where it lies: `cmake --install --prefix` may move it.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(skep_pc_prefix "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH skep_pc_up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" skep_pc_up "${skep_pc_up}")
  set(skep_pc_prefix "\${pcfiledir}/${skep_pc_up}")
endif()
foreach(kind IN ITEMS LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${kind}}")
    set(skep_pc_${kind} "${CMAKE_INSTALL_${kind}}")
  else()
    set(skep_pc_${kind} "\${prefix}/${CMAKE_INSTALL_${kind}}")
  endif()
endforeach()
# The public headers include <dlpack/dlpack.h>, which has no .pc file of its own: there is nothing to
# require, so the file names the header, and the folder where it was found.
set(skep_pc_dlpack "")
if(NOT DLPACK_INCLUDE_DIR IN_LIST CMAKE_C_IMPLICIT_INCLUDE_DIRECTORIES)
  set(skep_pc_dlpack " -I${DLPACK_INCLUDE_DIR}")
endif()
configure_file("${CMAKE_CURRENT_LIST_DIR}/skep.pc.in" "${CMAKE_BINARY_DIR}/skep.pc" @ONLY)
install(FILES "${CMAKE_BINARY_DIR}/skep.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

include(CMakePackageConfigHelpers)
set(skep_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/skep")
install(EXPORT skep-targets NAMESPACE skep:: DESTINATION "${skep_cmake_dir}")
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/skep-config.cmake.in"
  "${CMAKE_BINARY_DIR}/skep-config.cmake" INSTALL_DESTINATION "${skep_cmake_dir}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/skep-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/skep-config.cmake"
              "${CMAKE_BINARY_DIR}/skep-config-version.cmake" DESTINATION "${skep_cmake_dir}")
