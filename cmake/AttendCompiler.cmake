# attend_compiler: how every target of the project is compiled. Linked privately, so users do not inherit it.
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)  # one set of objects serves the static and the shared library
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)  # the shared library exports what ATTEND_API marks and nothing else
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()

add_library(attend_compiler INTERFACE)
target_compile_features(attend_compiler INTERFACE cxx_std_20)
# A switch over an enumeration names every enumerator and has no default: a new element type, mask or algorithm does not
# compile before each decision about it is made.
target_compile_options(attend_compiler INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wno-sign-compare -Werror=switch)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(attend_compiler INTERFACE -Wno-restrict)  # GCC 12 invents overlaps in "text" + std::string
endif()

if(ATTEND_SANITIZE)
  # For the whole tree, not by target: one object without instrumentation hides what the others would report.
  add_compile_options(-fsanitize=${ATTEND_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${ATTEND_SANITIZE})
endif()

if(ATTEND_SANITIZE MATCHES "thread")
  # GCC's libgomp synchronises through futexes that ThreadSanitizer cannot see: every parallel loop would be reported.
  # LLVM's libomp tells it about forks, joins and barriers through its tool Archer. tests/tsan proves that it does.
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "ATTEND_SANITIZE=thread needs clang and libomp (Debian: clang libomp-dev): "
                        "GCC's OpenMP runtime gives false reports. Use the preset tsan.")
  endif()
  target_sources(attend_compiler INTERFACE
    $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:${CMAKE_CURRENT_LIST_DIR}/tsan_defaults.cpp>)
endif()
