# skep_module(NAME SOURCES ... DEPENDS ... LIBS ... [FOLDER PATH]): one folder of the tree as one target,
# skep_NAME.
#
# Its headers are included as "NAME/header.h", or as "PATH/header.h" with FOLDER, which a folder within
# a folder uses. The include path that makes this work is handed on only to targets that name the
# module in DEPENDS, so that an include against the direction of the architecture does not compile.
function(skep_module name)
  cmake_parse_arguments(arg "" "FOLDER" "SOURCES;DEPENDS;LIBS" ${ARGN})
  if(NOT arg_FOLDER)
    set(arg_FOLDER "${name}")
  endif()
  set(room "${CMAKE_BINARY_DIR}/rooms/${name}")
  cmake_path(GET arg_FOLDER PARENT_PATH parent)
  file(MAKE_DIRECTORY "${room}/${parent}")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}" "${room}/${arg_FOLDER}" SYMBOLIC)

  add_library(skep_${name} STATIC ${arg_SOURCES})
  target_include_directories(skep_${name} PUBLIC "${room}" "${PROJECT_SOURCE_DIR}/include"
                             "${DLPACK_INCLUDE_DIR}")
  foreach(dependency IN LISTS arg_DEPENDS)
    target_link_libraries(skep_${name} PUBLIC skep_${dependency})
  endforeach()
  target_link_libraries(skep_${name} PUBLIC ${arg_LIBS} Threads::Threads)
  skep_compile_options(skep_${name})
endfunction()

# Warnings and sanitizers, for every target of ours.
function(skep_compile_options target)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wshadow -Wconversion
    $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation> # sentences are cut on purpose
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes -Wmissing-prototypes>
    $<$<BOOL:${SKEP_WERROR}>:-Werror>)
  if(SKEP_SANITIZER)
    target_compile_options(${target} PRIVATE -UNDEBUG) # assertions hold where defects are looked for
  endif()
  if(SKEP_SANITIZER STREQUAL "address")
    target_compile_options(${target} PRIVATE -fsanitize=address,undefined
                           -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  elseif(SKEP_SANITIZER STREQUAL "thread")
    target_compile_options(${target} PRIVATE -fsanitize=thread -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=thread)
  elseif(SKEP_SANITIZER)
    message(FATAL_ERROR "SKEP_SANITIZER is \"${SKEP_SANITIZER}\", expected address or thread")
  endif()
  if(SKEP_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()
