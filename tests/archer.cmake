# For ATTEND_SANITIZE=thread: sets ATTEND_ARCHER to the tool library by which LLVM's OpenMP runtime reports its
# synchronization to ThreadSanitizer. If a program loads the runtime only through one of our shared libraries, the
# runtime does not find this library. Tests of such programs set OMP_TOOL_LIBRARIES to it.
find_package(OpenMP REQUIRED COMPONENTS CXX)
list(GET OpenMP_CXX_LIBRARIES 0 attend_libomp)
get_filename_component(attend_libomp_folder ${attend_libomp} DIRECTORY)
find_library(ATTEND_ARCHER archer HINTS ${attend_libomp_folder} REQUIRED)
