# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: the library, its header, and how CMake and pkg-config find them.
include(CMakePackageConfigHelpers)
set(lehr_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/lehr")

install(TARGETS lehr EXPORT lehrTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" NAMELINK_COMPONENT Development)
install(FILES "${PROJECT_SOURCE_DIR}/runtime/include/lehr.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
if(TARGET lehr_tool)
  install(TARGETS lehr_tool RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/runtime/config/profiles" DESTINATION "${CMAKE_INSTALL_DATADIR}/lehr"
  FILES_MATCHING PATTERN "*.toml")
install(EXPORT lehrTargets NAMESPACE lehr:: DESTINATION "${lehr_cmake_dir}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/tools/cmake/lehrConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/lehrConfig.cmake" INSTALL_DESTINATION "${lehr_cmake_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/lehrConfigVersion.cmake" COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/lehrConfig.cmake" "${PROJECT_BINARY_DIR}/lehrConfigVersion.cmake"
  DESTINATION "${lehr_cmake_dir}")

# pkg-config's paths follow ${prefix} where they lie below it, so that a moved tree still works.
foreach(kind LIB INCLUDE)
  string(TOLOWER "${kind}" lower)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${kind}DIR}")
    set(LEHR_PC_${kind}DIR "${CMAKE_INSTALL_${kind}DIR}")
  else()
    set(LEHR_PC_${kind}DIR "\${prefix}/${CMAKE_INSTALL_${kind}DIR}")
  endif()
endforeach()
# The prefix is known at install time only (cmake --install --prefix).
set(lehr_pc_in "${PROJECT_SOURCE_DIR}/tools/cmake/lehr.pc.in")
install(CODE "
  set(PROJECT_VERSION \"${PROJECT_VERSION}\")
  set(PROJECT_DESCRIPTION \"${PROJECT_DESCRIPTION}\")
  set(LEHR_PC_LIBDIR \"\\${LEHR_PC_LIBDIR}\")
  set(LEHR_PC_INCLUDEDIR \"\\${LEHR_PC_INCLUDEDIR}\")
  configure_file(\"${lehr_pc_in}\" \"${PROJECT_BINARY_DIR}/lehr.pc\" @ONLY)")
install(FILES "${PROJECT_BINARY_DIR}/lehr.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
