# attend_fmt: the message formatter, for every target that links the library `attend`, which carries fmt's code.
find_package(fmt REQUIRED)

add_library(attend_fmt INTERFACE)
set(ATTEND_FMT_SOURCES)
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  set(ATTEND_FMT_SOURCES core/fmt_instance.cpp)  # the code that fmt 9 declares and leaves to its library
  get_target_property(fmt_include fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(attend_fmt SYSTEM INTERFACE ${fmt_include})
  # fmt's own macros for a private namespace: the static library can then be linked beside any other fmt.
  target_compile_definitions(attend_fmt INTERFACE
    "FMT_BEGIN_NAMESPACE=namespace fmt { inline namespace attend_v9 {" "FMT_END_NAMESPACE=}}")
else()
  target_link_libraries(attend_fmt INTERFACE fmt::fmt-header-only)  # right with every version, slow to compile
endif()
