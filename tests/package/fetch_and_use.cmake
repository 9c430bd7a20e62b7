# cmake -DSOURCE=... -DSCRATCH=... -DCXX=... -DCCACHE=... -P fetch_and_use.cmake
# Builds and runs examples/fetch_content, which compiles the library as part of its own build. ccache already holds the
# objects, because the build that runs this test has compiled them.
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH} -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_CXX_COMPILER_LAUNCHER=${CCACHE})
run(${CMAKE_COMMAND} --build ${SCRATCH} --target example)
run(${SCRATCH}/example)
