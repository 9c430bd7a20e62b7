// Runs the real program and captures its output.
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

/// Runs the program at this path with these arguments. `prepare` is called in the new process before the program
/// starts.
ProgramResult run_program(const std::string& program, const std::vector<std::string>& arguments,
                          const std::function<void()>& prepare = {});

/// Runs build/.../attend, calls `meanwhile` with its process id and the pipe of its stdout, and waits until it ends.
/// Output that `meanwhile` reads is not in the result. Signals have their default handlers, even if this process
/// ignores them.
ProgramResult run_attend_meanwhile(const std::vector<std::string>& arguments,
                                   const std::function<void(int process, int out)>& meanwhile);

/// Runs build/.../attend with these arguments. `prepare` is called in the new process before the program starts.
ProgramResult run_attend(const std::vector<std::string>& arguments, const std::function<void()>& prepare = {});

/// Does the same for a line, which is split at blanks.
ProgramResult run_attend_line(const std::string& line);

}  // namespace attend::test
