// Runs the real program and keeps what it said.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace attend::test {

struct ProgramResult {
  int status = -1;  ///< exit status; 128 + n where signal n ended it
  std::string out;
  std::string err;
};

/// Runs the program at this path with these arguments. `prepare` is called in the new process before it starts.
ProgramResult run_program(const std::string& program, const std::vector<std::string>& arguments,
                          const std::function<void()>& prepare = {});

/// Runs build/.../attend, calls `meanwhile` with its process id and the pipe of its stdout, and waits for its end. What
/// `meanwhile` reads is not in the result. Signals do what they do by default, whatever this process ignores.
ProgramResult run_attend_meanwhile(const std::vector<std::string>& arguments,
                                   const std::function<void(int process, int out)>& meanwhile);

/// Runs build/.../attend with these arguments. `prepare` is called in the new process before the program starts.
ProgramResult run_attend(const std::vector<std::string>& arguments, const std::function<void()>& prepare = {});

/// The same for a line that is split at blanks.
ProgramResult run_attend_line(const std::string& line);

}  // namespace attend::test
