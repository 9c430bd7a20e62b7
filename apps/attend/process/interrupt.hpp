// Handles SIGINT, SIGTERM and SIGHUP. The program ends soon, prints a message, and leaves no unfinished file.
#pragma once

#include <string>

namespace attend::cli {

/// Starts a thread that waits for the signals. main() must call this function before it starts any other thread.
/// Signals that the parent process has set to be ignored stay ignored. After the first signal, stop_if_interrupted()
/// throws, both in this program and in the library's loops on the CPU. Drivers of GPUs, compilers and MPI do not check
/// for signals. If the program has not ended after a second, or at a second signal, the thread therefore removes all
/// unfinished files and ends the process.
void watch_for_interrupts();

/// Throws cpu::Interrupted if a signal has arrived.
void stop_if_interrupted();

/// Prints on stderr, once, which signal arrived and what happened to the results. Then ends the process by that signal.
/// A shell then reports the status 128 plus the number of the signal, and detects that the user interrupted the
/// process.
[[noreturn]] void end_interrupted();

/// Sets the text about the results in that message. The initial text is "nothing was written".
void set_interrupted_results(std::string text);

}  // namespace attend::cli
