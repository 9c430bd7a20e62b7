// Runs the real `attend` program and captures its output.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace attend::test {

struct ProgramResult {
  int status = -1;  ///< exit status; 128 + n if signal n ended the program
  std::string out;
  std::string err;
};

/// Runs the program at the given path with the given arguments. `prepare` is called in the new process before the
/// program starts.
ProgramResult run_program(const std::string& program, const std::vector<std::string>& arguments,
                          const std::function<void()>& prepare = {});

/// Runs build/.../attend and calls `meanwhile` with the process id and the pipe of its stdout. Then waits until the
/// program ends. Output that `meanwhile` reads is missing from the result. The program starts with default signal
/// handlers, even if this process ignores signals.
ProgramResult run_attend_meanwhile(const std::vector<std::string>& arguments,
                                   const std::function<void(int process, int out)>& meanwhile);

/// Runs build/.../attend with the given arguments. `prepare` is called in the new process before the program starts.
ProgramResult run_attend(const std::vector<std::string>& arguments, const std::function<void()>& prepare = {});

/// Runs build/.../attend. The arguments are the words of `line`, which is split at blanks.
ProgramResult run_attend_line(const std::string& line);

}  // namespace attend::test
