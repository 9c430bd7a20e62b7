// SIGINT, SIGTERM and SIGHUP: the program ends soon, says so, and leaves no unfinished file.
#pragma once

#include <string>

namespace attend::cli {

/// For main(), before any other thread starts. From here on a thread waits for the signals (those that the parent told
/// this process to ignore stay ignored). At the first one stop_if_interrupted() throws, in this program and in the
/// library's loops on the CPU. Where that does not end the program within a second (a GPU's driver, a compiler and MPI
/// ask nobody), and at a second signal, the thread removes all unfinished files and ends the process itself.
void watch_for_interrupts();

/// Throws cpu::Interrupted after a signal.
void stop_if_interrupted();

/// Says on stderr, once, which signal came and what became of the results, and ends the process by that signal: a shell
/// shows 128 and its number as the status, and knows that the user interrupted it.
[[noreturn]] void end_interrupted();

/// What that line says of the results; "nothing was written" at first.
void set_interrupted_results(std::string text);

}  // namespace attend::cli
