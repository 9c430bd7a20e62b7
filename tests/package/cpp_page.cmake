# cmake -DBUILD=... -DPAGE=docs/guide/cpp.md ... -P cpp_page.cmake: installs the built project below SCRATCH. Then
# builds and runs the program on the page with the page's CMakeLists.txt.
include(${CMAKE_CURRENT_LIST_DIR}/page.cmake)

file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --prefix ${SCRATCH}/prefix)
text_of_block(cpp program)
text_of_block(cmake project)
file(WRITE ${SCRATCH}/source/main.cpp "${program}")
file(WRITE ${SCRATCH}/source/CMakeLists.txt "${project}")
set(flags "-Wall -Wextra -Werror")
if(SANITIZE)
  string(APPEND flags " -fsanitize=${SANITIZE}")
endif()
run(${CMAKE_COMMAND} -S ${SCRATCH}/source -B ${SCRATCH}/build -G Ninja -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${flags} -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix)
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(${SCRATCH}/build/mine)
