# cmake -DROOT=. -DSCRATCH=folder -DCC=cc [-DWRITE=1] -P abi.cmake: nothing in the headers of the C interface has
# changed in a way that a program compiled before would notice, by libabigail and the stored description abi.xml. A
# program that only has these headers knows nothing else of the library: its functions are empty ones here, compiled in
# a moment with the debugging information that libabigail reads. A field that was added fails too: only at the end of a
# struct that begins with struct_size is it right. Then WRITE=1 stores the new description.
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
  string(REPLACE ";" "@" text "${text}")  # which separates the entries of a list
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
                WORKING_DIRECTORY ${SCRATCH} COMMAND_ERROR_IS_FATAL ANY)  # so that no folder gets into the description
set(stored ${CMAKE_CURRENT_LIST_DIR}/abi.xml)
if(WRITE)
  run(${ABIDW} --no-show-locs --no-corpus-path --no-comp-dir-path --no-elf-needed --out-file ${stored}
      ${SCRATCH}/libabi_stub.so)
endif()
# Functions that were added are no difference. Names of fields are one.
run(${ABIDIFF} --harmless --no-added-syms ${stored} ${SCRATCH}/libabi_stub.so)
message(STATUS "nothing has changed that was there")
