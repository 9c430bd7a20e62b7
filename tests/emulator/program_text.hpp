// The text of a kernel as a compiler of the machine takes it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/host_compiler.hpp"

namespace attend::test {

/// The text with calls in the place of asm statements. Instructions that `known` (the text of ptx.hpp) lacks become
/// calls that end the program.
[[nodiscard]] std::string without_asm(const std::string& text, const std::string& known);

/// Headers of kernels by their names, rewritten, and those that the emulator has of its own.
void write_headers(const TemporaryFolder& folder, const std::vector<std::pair<std::string, std::string>>& headers);

}  // namespace attend::test
