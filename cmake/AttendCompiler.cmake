# attend_compiler: compiler options of every target of the project. Linked privately, so users do not inherit them.
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)  # the static and the shared library use the same objects
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)  # the shared library exports only symbols marked by ATTEND_API
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()

add_library(attend_compiler INTERFACE)
target_compile_features(attend_compiler INTERFACE cxx_std_20)
# A switch over an enumeration lists every enumerator and has no default. A new element type, mask or algorithm
# therefore does not compile until every switch handles it.
target_compile_options(attend_compiler INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wno-sign-compare -Werror=switch)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 reports false overlaps in "text" + std::string
  target_compile_options(attend_compiler INTERFACE -Wno-restrict)
endif()

if(ATTEND_SANITIZE)
  # For the complete tree instead of single targets, because an object without instrumentation hides errors in the
  # others.
  add_compile_options(-fsanitize=${ATTEND_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${ATTEND_SANITIZE})
endif()

if(ATTEND_SANITIZE MATCHES "thread")
  # GCC's libgomp synchronises through futexes that ThreadSanitizer cannot see, so every parallel loop would be
  # reported. LLVM's libomp reports forks, joins and barriers to ThreadSanitizer through its tool Archer. tests/tsan
  # verifies this.
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "ATTEND_SANITIZE=thread needs clang and libomp (Debian: clang libomp-dev): "
                        "GCC's OpenMP runtime gives false reports. Use the preset tsan.")
  endif()
  target_sources(attend_compiler INTERFACE
    $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:${CMAKE_CURRENT_LIST_DIR}/tsan_defaults.cpp>)
endif()
