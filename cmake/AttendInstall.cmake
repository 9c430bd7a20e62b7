# cmake --install: headers, the libraries, the program, the CMake package and the pkg-config files. The components are
# those of the Debian packages: runtime, development, program.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(attend_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attend)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/attend DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT development FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
if(TARGET attend_cli)
  install(TARGETS attend_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
endif()

# Two export sets, because a user of the shared library does not need the development files of Highway and OpenMP.
foreach(kind IN ITEMS static shared)
  set(target attend)
  if(kind STREQUAL "shared")
    set(target attend_shared)
  endif()
  install(TARGETS ${target} EXPORT attend-${kind}-targets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT attend-${kind}-targets NAMESPACE attend:: DESTINATION ${attend_cmake_dir} COMPONENT development)
endforeach()

if(TARGET attend_mpi)
  install(TARGETS attend_mpi EXPORT attend-mpi-targets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT attend-mpi-targets NAMESPACE attend:: DESTINATION ${attend_cmake_dir} COMPONENT development)
endif()

if(TARGET attend_c)
  install(TARGETS attend_c EXPORT attend-c-targets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT attend-c-targets NAMESPACE attend:: DESTINATION ${attend_cmake_dir} COMPONENT development)
endif()

if(TARGET attend_ort)  # loaded by name, never linked
  install(TARGETS attend_ort LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime)
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/attend-config.cmake.in
                              ${PROJECT_BINARY_DIR}/attend-config.cmake INSTALL_DESTINATION ${attend_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attend-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attend-config.cmake ${PROJECT_BINARY_DIR}/attend-config-version.cmake
        DESTINATION ${attend_cmake_dir} COMPONENT development)

# attend.pc, and attend_c.pc of the C interface.
set(attend_pcs attend)
if(TARGET attend_c)
  list(APPEND attend_pcs attend_c)
endif()
foreach(pc IN LISTS attend_pcs)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${pc}.pc.in ${PROJECT_BINARY_DIR}/${pc}.pc.partial @ONLY)
  # The prefix is known only at installation (cmake --install --prefix), so the last step happens then.
  install(CODE "
    file(READ \"${PROJECT_BINARY_DIR}/${pc}.pc.partial\" text)
    string(REPLACE \" \" \"\\\\ \" prefix \"\${CMAKE_INSTALL_PREFIX}\")
    string(REPLACE \"%PREFIX%\" \"\${prefix}\" text \"\${text}\")
    file(WRITE \"${PROJECT_BINARY_DIR}/${pc}.pc\" \"\${text}\")" COMPONENT development)
  install(FILES ${PROJECT_BINARY_DIR}/${pc}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endforeach()
