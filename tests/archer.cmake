# For ATTEND_SANITIZE=thread: ATTEND_ARCHER, the tool by which LLVM's OpenMP runtime tells ThreadSanitizer what it
# synchronises. A program that has the runtime through a shared library of ours alone has no path to the folder where
# the runtime looks for it: such a test sets OMP_TOOL_LIBRARIES to it.
find_package(OpenMP REQUIRED COMPONENTS CXX)
list(GET OpenMP_CXX_LIBRARIES 0 attend_libomp)
get_filename_component(attend_libomp_folder ${attend_libomp} DIRECTORY)
find_library(ATTEND_ARCHER archer HINTS ${attend_libomp_folder} REQUIRED)
