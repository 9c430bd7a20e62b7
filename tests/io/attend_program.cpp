#include "io/attend_program.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <future>
#include <sstream>
#include <stdexcept>

namespace attend::test {
namespace {

/// Reads from the pipe until all writers have closed it. Then closes the read end.
std::string read_all(int pipe) {
  std::string text;
  char piece[4096];
  for (ssize_t got = 0; (got = ::read(pipe, piece, sizeof(piece))) > 0;)
    text.append(piece, static_cast<std::size_t>(got));
  ::close(pipe);
  return text;
}

ProgramResult start_and_wait(const std::string& program, const std::vector<std::string>& arguments,
                             const std::function<void()>& prepare, const std::function<void(int, int)>& meanwhile) {
  // Uses pipes instead of files, because some tests limit the size of files.
  int out[2] = {};
  int err[2] = {};
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    ::setenv("ATTEND_LIBCUDA_PATH", "/nonexistent", 0);  // hides any GPU, so results are the same on every machine
    if (prepare) prepare();
    std::vector<char*> argv = {const_cast<char*>(program.c_str())};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  ::close(out[1]);
  ::close(err[1]);
  // Both pipes are read at the same time, so neither can fill up.
  auto err_text = std::async(std::launch::async, read_all, err[0]);
  if (meanwhile) meanwhile(child, out[0]);
  ProgramResult result = {.out = read_all(out[0]), .err = err_text.get()};
  int status = 0;
  ::waitpid(child, &status, 0);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace

ProgramResult run_program(const std::string& program, const std::vector<std::string>& arguments,
                          const std::function<void()>& prepare) {
  return start_and_wait(program, arguments, prepare, {});
}

ProgramResult run_attend_meanwhile(const std::vector<std::string>& arguments,
                                   const std::function<void(int process, int out)>& meanwhile) {
  const auto default_signals = [] {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_DFL);
  };
  return start_and_wait(ATTEND_PROGRAM, arguments, default_signals, meanwhile);
}

ProgramResult run_attend(const std::vector<std::string>& arguments, const std::function<void()>& prepare) {
  return run_program(ATTEND_PROGRAM, arguments, prepare);
}

ProgramResult run_attend_line(const std::string& line) {
  std::vector<std::string> arguments;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) arguments.push_back(word);
  return run_attend(arguments);
}

}  // namespace attend::test
