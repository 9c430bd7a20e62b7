# cmake -DROOT=. -DSCRATCH=folder -DCC=cc [-DWRITE=1] -P abi.cmake: checks that the headers of the C interface have not
# changed in a way that affects programs compiled before. It compares them with the stored description abi.xml, using
# libabigail. A program that has only these headers depends on nothing else of the library. The functions are therefore
# empty stubs here, compiled quickly with the debugging information that libabigail reads. An added field fails too,
# because it is right only at the end of a struct that begins with struct_size. In that case WRITE=1 stores the new
# description.
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
  string(REPLACE ";" "@" text "${text}")  # ";" separates the entries of a list
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
# Added functions are not a difference. Renamed fields are.
run(${ABIDIFF} --harmless --no-added-syms ${stored} ${SCRATCH}/libabi_stub.so)
message(STATUS "nothing has changed that was there")
