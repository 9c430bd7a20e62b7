# cmake -DROOT=. -DSCRATCH=folder -DCC=cc [-DWRITE=1] -P abi.cmake: checks that the headers of the C interface have not
# changed in a way that breaks programs compiled earlier. It compares the headers with the stored description abi.xml,
# using libabigail. Such programs depend only on the headers, so the functions are empty stubs here. The stubs compile
# quickly and contain the debugging information that libabigail reads. The check also fails if a field was added,
# because a field may be added only at the end of a struct that begins with struct_size. After such a change, WRITE=1
# stores the new description.
find_program(ABIDW abidw)
find_program(ABIDIFF abidiff)
if(NOT ABIDW OR NOT ABIDIFF)
  message(STATUS "abidiff is not installed (Debian: abigail-tools)")
  return()
endif()
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(stub "#include <attend/attend.h>\n")
file(GLOB headers ${ROOT}/include/attend/c/*.h)
foreach(header IN LISTS headers)
  file(READ ${header} text)
  string(REPLACE ";" "@" text "${text}")  # ";" would split the text into list entries
  string(REGEX MATCHALL "\nATTEND_API [^@]*@" declarations "${text}")
  foreach(declaration IN LISTS declarations)
    string(REGEX REPLACE "^\nATTEND_API ([^@]*)@$" "\\1" declaration "${declaration}")
    if(declaration MATCHES "^void attend")
      string(APPEND stub "${declaration} {}\n")
    else()
      string(APPEND stub "${declaration} { return 0@ }\n")
    endif()
  endforeach()
endforeach()
string(REPLACE "@" ";" stub "${stub}")
file(MAKE_DIRECTORY ${SCRATCH})
file(WRITE ${SCRATCH}/abi_stub.c "${stub}")
execute_process(COMMAND ${CC} -std=c99 -g -O0 -shared -fPIC -w -fvisibility=hidden -I${ROOT}/include abi_stub.c
                        -o libabi_stub.so -Wl,-soname,libattend_c.so.1
                WORKING_DIRECTORY ${SCRATCH} COMMAND_ERROR_IS_FATAL ANY)  # relative paths keep the name of the folder
                                                                          # out of the description
set(stored ${CMAKE_CURRENT_LIST_DIR}/abi.xml)
if(WRITE)
  run(${ABIDW} --no-show-locs --no-corpus-path --no-comp-dir-path --no-elf-needed --out-file ${stored}
      ${SCRATCH}/libabi_stub.so)
endif()
# Added functions are not reported as a difference, but renamed fields are.
run(${ABIDIFF} --harmless --no-added-syms ${stored} ${SCRATCH}/libabi_stub.so)
message(STATUS "nothing has changed that was there")
