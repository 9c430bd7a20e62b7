// SIGINT, SIGTERM and SIGHUP: the program ends soon, prints a message, and leaves no unfinished file.
#pragma once

#include <string>

namespace attend::cli {

/// Starts a thread that waits for the signals; main() must call it before it starts any other thread. Signals that the
/// parent made this process ignore stay ignored. After the first signal stop_if_interrupted() throws, both in this
/// program and in the library's loops on the CPU. If the program has not ended after a second (the driver of a GPU, a
/// compiler and MPI do not check), or at a second signal, the thread removes all unfinished files and ends the process.
void watch_for_interrupts();

/// Throws cpu::Interrupted after a signal.
void stop_if_interrupted();

/// Reports on stderr, once, which signal came and what happened to the results, and ends the process by that signal. A
/// shell then shows 128 plus the number of the signal as the status, and knows that the user interrupted it.
[[noreturn]] void end_interrupted();

/// Sets what that message says about the results; at first "nothing was written".
void set_interrupted_results(std::string text);

}  // namespace attend::cli
