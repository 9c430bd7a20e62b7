# Shared by c_page.cmake and cpp_page.cmake. Extracts the programs that pages of docs/ show.
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Sets `result` to the text of the only code block in `language` on the page.
function(text_of_block language result)
  file(READ ${PAGE} text)
  string(FIND "${text}" "\n```${language}\n" begin)
  if(begin EQUAL -1)
    message(FATAL_ERROR "${PAGE}: no block in ${language}")
  endif()
  string(LENGTH "\n```${language}\n" length)
  math(EXPR begin "${begin} + ${length}")
  string(SUBSTRING "${text}" ${begin} -1 text)
  string(FIND "${text}" "\n```\n" end)
  string(SUBSTRING "${text}" 0 ${end} text)
  set(${result} "${text}\n" PARENT_SCOPE)
endfunction()
