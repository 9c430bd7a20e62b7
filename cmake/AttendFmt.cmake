# attend_fmt: the message formatter, for every target that links the library `attend`, which contains fmt's code.
find_package(fmt REQUIRED)

add_library(attend_fmt INTERFACE)
set(ATTEND_FMT_SOURCES)
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  # the code that fmt 9 declares in its headers and defines in its library
  set(ATTEND_FMT_SOURCES core/fmt_instance.cpp)
  get_target_property(fmt_include fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(attend_fmt SYSTEM INTERFACE ${fmt_include})
  # fmt's macros for a private namespace: the static library can then be linked together with any other fmt.
  target_compile_definitions(attend_fmt INTERFACE
    "FMT_BEGIN_NAMESPACE=namespace fmt { inline namespace attend_v9 {" "FMT_END_NAMESPACE=}}")
else()
  target_link_libraries(attend_fmt INTERFACE fmt::fmt-header-only)  # works with every version, but compiles slowly
endif()
