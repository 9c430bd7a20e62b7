# For ATTEND_SANITIZE=thread: sets ATTEND_ARCHER, the tool through which LLVM's OpenMP runtime reports its
# synchronization to ThreadSanitizer. A program that loads the runtime only through one of our shared libraries does not
# find the tool's folder. Such a test sets OMP_TOOL_LIBRARIES to the tool.
find_package(OpenMP REQUIRED COMPONENTS CXX)
list(GET OpenMP_CXX_LIBRARIES 0 attend_libomp)
get_filename_component(attend_libomp_folder ${attend_libomp} DIRECTORY)
find_library(ATTEND_ARCHER archer HINTS ${attend_libomp_folder} REQUIRED)
