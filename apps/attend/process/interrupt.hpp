// Handles SIGINT, SIGTERM and SIGHUP. After such a signal, the program removes unfinished files, prints a message and
// ends.
#pragma once

#include <string>

namespace attend::cli {

/// Starts a thread that waits for the signals. main() must call this function before it starts any other thread.
/// If the parent process ignores a signal, this process also ignores it. After the first signal, stop_if_interrupted()
/// throws in this program and in the library's loops on the CPU. Calls of a GPU driver, a compiler or MPI do not check
/// for signals. If the program does not end within a second, or if a second signal arrives, the thread therefore
/// removes all unfinished files and ends the process.
void watch_for_interrupts();

/// Throws cpu::Interrupted if a signal has arrived.
void stop_if_interrupted();

/// Prints on stderr which signal arrived and whether results were written. Then ends the process by that signal. A
/// shell then reports the status 128 plus the number of the signal, and detects that the user interrupted the process.
[[noreturn]] void end_interrupted();

/// Sets the text about the results in the message about an interrupt. The initial text is "nothing was written".
void set_interrupted_results(std::string text);

}  // namespace attend::cli
