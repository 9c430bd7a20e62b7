# cmake --install: headers, the libraries, the program, the CMake package and the pkg-config files.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(attend_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attend)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/attend DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET attend_cli)
  install(TARGETS attend_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# Two export sets: a user of the shared library needs neither Highway's nor OpenMP's development files.
foreach(kind IN ITEMS static shared)
  set(target attend)
  if(kind STREQUAL "shared")
    set(target attend_shared)
  endif()
  install(TARGETS ${target} EXPORT attend-${kind}-targets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT attend-${kind}-targets NAMESPACE attend:: DESTINATION ${attend_cmake_dir})
endforeach()

if(TARGET attend_mpi)
  install(TARGETS attend_mpi EXPORT attend-mpi-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT attend-mpi-targets NAMESPACE attend:: DESTINATION ${attend_cmake_dir})
endif()

if(TARGET attend_c)
  install(TARGETS attend_c EXPORT attend-c-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT attend-c-targets NAMESPACE attend:: DESTINATION ${attend_cmake_dir})
endif()

if(TARGET attend_ort)  # loaded by name, linked by nobody
  install(TARGETS attend_ort LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/attend-config.cmake.in
                              ${PROJECT_BINARY_DIR}/attend-config.cmake INSTALL_DESTINATION ${attend_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attend-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attend-config.cmake ${PROJECT_BINARY_DIR}/attend-config-version.cmake
        DESTINATION ${attend_cmake_dir})

# attend.pc, and attend_c.pc of the C interface.
set(attend_pcs attend)
if(TARGET attend_c)
  list(APPEND attend_pcs attend_c)
endif()
foreach(pc IN LISTS attend_pcs)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${pc}.pc.in ${PROJECT_BINARY_DIR}/${pc}.pc.partial @ONLY)
  # The prefix is known only when installing (cmake --install --prefix), so the last step happens then.
  install(CODE "
    file(READ \"${PROJECT_BINARY_DIR}/${pc}.pc.partial\" text)
    string(REPLACE \" \" \"\\\\ \" prefix \"\${CMAKE_INSTALL_PREFIX}\")
    string(REPLACE \"%PREFIX%\" \"\${prefix}\" text \"\${text}\")
    file(WRITE \"${PROJECT_BINARY_DIR}/${pc}.pc\" \"\${text}\")")
  install(FILES ${PROJECT_BINARY_DIR}/${pc}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
