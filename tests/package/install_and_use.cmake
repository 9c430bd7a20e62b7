# cmake -DKIND=static|shared|pkg_config ... -P install_and_use.cmake
# Installs the built project below SCRATCH. Then builds and runs the programs in SOURCE (examples/cpp) with the
# installed library. The build gets only the installation prefix.
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(prefix "${SCRATCH}/prefix")
if(KIND STREQUAL "pkg_config")
  set(prefix "${SCRATCH}/a prefix")  # tests that the blank in the path is escaped
endif()
set(flags)
if(SANITIZE)
  set(flags -fsanitize=${SANITIZE})
endif()
file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --prefix "${prefix}")

if(KIND STREQUAL "pkg_config")
  find_program(pkg_config pkg-config)
  if(NOT pkg_config)
    message(STATUS "pkg-config is not installed")
    return()
  endif()
  file(GLOB_RECURSE pc "${prefix}/*/attend.pc")
  get_filename_component(pc_dir "${pc}" DIRECTORY)
  set(ENV{PKG_CONFIG_LIBDIR} "${pc_dir}")  # hides all other packages, because the shared library must need none
  execute_process(COMMAND ${pkg_config} --cflags --libs attend OUTPUT_VARIABLE options COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(options UNIX_COMMAND "${options}")
  run(${CXX} -std=c++20 ${flags} ${SOURCE}/main.cpp -o ${SCRATCH}/example ${options})
  get_filename_component(lib_dir "${pc_dir}" DIRECTORY)
  set(ENV{LD_LIBRARY_PATH} "${lib_dir}")
  run(${SCRATCH}/example)
else()
  run(${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH}/build -G Ninja -DATTEND_KIND=${KIND}
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${flags} -DCMAKE_PREFIX_PATH=${prefix})
  run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
  run(${SCRATCH}/build/serving)
  run(${SCRATCH}/build/example)  # runs last, because ctest searches for its output
endif()

# The installed program must report the version of the package.
file(GLOB program "${prefix}/bin/attend")
if(program)
  set(ENV{LD_LIBRARY_PATH})
  run("${program}" --version)
endif()
