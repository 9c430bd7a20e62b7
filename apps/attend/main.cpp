// The program `attend`. It parses the command line and runs the command. If an error occurs, it prints one line and
// returns the exit status for this error.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "commands/commands.hpp"
#include "cpu/parallel.hpp"
#include "parser/parse.hpp"
#include "process/interrupt.hpp"

namespace {

using namespace attend;

/// Replaces control characters in `text` by spaces, so that a message is one line. This is necessary because a file
/// name can contain any character.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return text;
}

int refuse(const std::string& message) {
  // Fputs does not throw if stderr is full, as fmt::print would.
  std::fputs(("attend: " + one_line(message) + "\n").c_str(), stderr);
  return cli::kExitRefused;
}

int execute(const std::vector<std::string>& arguments) {
  struct Execute {
    int operator()(const cli::GenerateOptions& options) const { return cli::generate(options); }
    int operator()(const cli::RunOptions& options) const { return cli::run(options); }
    int operator()(const cli::BenchOptions& options) const { return cli::bench(options); }
    int operator()(const cli::CompileOptions& options) const { return cli::compile(options); }
    int operator()(const cli::LadderOptions& options) const { return cli::ladder(options); }
    int operator()(const cli::SweepOptions& options) const { return cli::sweep(options); }
    int operator()(const cli::InfoOptions& options) const { return cli::info(options); }
    int operator()(const cli::ExplainOptions& options) const { return cli::explain(options); }
    int operator()(const cli::RingOptions& options) const { return cli::show_ring(options); }
    int operator()(const cli::CacheOptions& options) const { return cli::cache(options); }
    int operator()(const cli::Message& message) const {
      fmt::print("{}", message.text);
      return cli::kExitDone;
    }
  };
  return std::visit(Execute(), cli::parse(arguments));
}

}  // namespace

int main(int argc, char** argv) {
  cli::watch_for_interrupts();
  try {
    const int status = execute({argv + 1, argv + argc});
    if (std::fflush(stdout) != 0) return refuse(fmt::format("stdout: cannot write: {}", std::strerror(errno)));
    return status;
  } catch (const cpu::Interrupted&) {
    cli::end_interrupted();
  } catch (const std::bad_alloc&) {
    return refuse("not enough memory for this problem: choose a smaller one");
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
}
