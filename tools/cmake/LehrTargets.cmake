# SPDX-License-Identifier: Apache-2.0
# How every target of the project is made: one place for warnings, sanitizers and check levels.

add_library(lehr_options INTERFACE)
target_compile_features(lehr_options INTERFACE cxx_std_20)
target_include_directories(lehr_options INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_definitions(lehr_options INTERFACE LEHR_CHECKS=${LEHR_CHECKS})
set(lehr_warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
target_compile_options(lehr_options INTERFACE
  "$<$<COMPILE_LANGUAGE:C,CXX>:${lehr_warnings}>")
if(LEHR_SANITIZE)
  target_compile_options(lehr_options INTERFACE
    "$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${LEHR_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  target_link_options(lehr_options INTERFACE "-fsanitize=${LEHR_SANITIZE}")
endif()

# lehr_layer(NAME SOURCES ... DEPENDS ...): one object library a folder, so that self-naming plug-ins are
# never lost in an archive and the only link steps are liblehr.so, the tool and the test programs.
function(lehr_layer name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(${name} OBJECT ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC lehr_options ${arg_DEPENDS} PRIVATE ${arg_PRIVATE_DEPENDS})
endfunction()

# lehr_plugins(KIND TARGET NAMES...): writes KIND_table.cpp that names one descriptor function a file, in
# a fixed order. A plug-in file NAME.cpp defines `const Descriptor& lehr::KIND::NAME_descriptor()`; adding
# one touches only its file and the list.
function(lehr_plugins)
  cmake_parse_arguments(arg "" "TARGET;NAMESPACE;DESCRIPTOR;HEADER;FUNCTION;FOLDER" "NAMES" ${ARGN})
  set(declarations "")
  set(entries "")
  foreach(plugin IN LISTS arg_NAMES)
    string(APPEND declarations "const ${arg_DESCRIPTOR}& ${plugin}_descriptor();\n")
    string(APPEND entries "      &${plugin}_descriptor(),\n")
    target_sources(${arg_TARGET} PRIVATE "${arg_FOLDER}/${plugin}.cpp")
  endforeach()
  set(file "${CMAKE_CURRENT_BINARY_DIR}/${arg_FUNCTION}_table.cpp")
  file(CONFIGURE OUTPUT "${file}" CONTENT
"// Generated from the build list; do not edit.
#include \"@arg_HEADER@\"

namespace @arg_NAMESPACE@ {
@declarations@
std::span<const @arg_DESCRIPTOR@* const> @arg_FUNCTION@() {
  static const @arg_DESCRIPTOR@* const table[] = {
@entries@  };
  return table;
}
}  // namespace @arg_NAMESPACE@
" @ONLY)
  target_sources(${arg_TARGET} PRIVATE "${file}")
endfunction()

# lehr_test(NAME SOURCES ... DEPENDS ... [LABELS ...]): a Catch2 program, each case a ctest entry.
function(lehr_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE lehr_options ${arg_DEPENDS} Catch2::Catch2WithMain)
  # A name that the list mangles (";") matches nothing, which Catch2 would call a success.
  catch_discover_tests(${name} TEST_PREFIX "${name}: " EXTRA_ARGS --warn NoTests
                       PROPERTIES TIMEOUT 300 LABELS "${arg_LABELS}")
endfunction()
