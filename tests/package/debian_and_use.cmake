# cmake -DBUILD=... -DSOURCE=... -DSCRATCH=... -DCXX=... -DCPACK=... -DVERSION=... -P debian_and_use.cmake
# Makes the Debian packages of the built project and unpacks them below SCRATCH. Then builds and runs SOURCE
# (examples/cpp) with the unpacked library.
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

find_program(dpkg_deb dpkg-deb)
find_program(dpkg_shlibdeps dpkg-shlibdeps)
if(NOT dpkg_deb OR NOT dpkg_shlibdeps)
  message(STATUS "dpkg-dev is not installed")
  return()
endif()

file(REMOVE_RECURSE ${SCRATCH})
run(${CPACK} --config ${BUILD}/CPackConfig.cmake -G DEB -B ${SCRATCH}/packages)
foreach(name IN ITEMS libattend1 libattend-dev attend)
  file(GLOB package ${SCRATCH}/packages/${name}_${VERSION}_*.deb)
  list(LENGTH package count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "${count} packages ${name} of version ${VERSION}, expected one: ${package}")
  endif()
  run(${dpkg_deb} -x ${package} ${SCRATCH}/root)
  execute_process(COMMAND ${dpkg_deb} -f ${package} Depends OUTPUT_VARIABLE ${name}_needs COMMAND_ERROR_IS_FATAL ANY)
endforeach()
if(NOT libattend1_needs MATCHES "libhwy1" OR NOT libattend-dev_needs MATCHES "libattend1 \\(= ${VERSION}\\)")
  message(FATAL_ERROR "Depends: libattend1: ${libattend1_needs} libattend-dev: ${libattend-dev_needs}")
endif()
file(GLOB_RECURSE pc ${SCRATCH}/root/usr/*/attend.pc)
file(STRINGS ${pc} prefix REGEX "^prefix=/usr$")
if(NOT prefix)
  message(FATAL_ERROR "${pc}: no line prefix=/usr")
endif()

run(${SCRATCH}/root/usr/bin/attend --version)
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH}/build -G Ninja -DATTEND_KIND=shared -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${SCRATCH}/root/usr)
run(${CMAKE_COMMAND} --build ${SCRATCH}/build --target example)
run(${SCRATCH}/build/example)
