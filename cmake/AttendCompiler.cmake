# attend_compiler: how every target of the project is compiled. Linked privately, so users do not inherit it.
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_library(attend_compiler INTERFACE)
target_compile_features(attend_compiler INTERFACE cxx_std_20)
target_compile_options(attend_compiler INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wno-sign-compare)
if(ATTEND_SANITIZE)
  target_compile_options(attend_compiler INTERFACE -fsanitize=${ATTEND_SANITIZE} -fno-omit-frame-pointer
                                                   -fno-sanitize-recover=all)
  target_link_options(attend_compiler INTERFACE -fsanitize=${ATTEND_SANITIZE})
endif()
