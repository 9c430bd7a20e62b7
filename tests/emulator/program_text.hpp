// Rewrites the text of a kernel for the host's compiler.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/host_compiler.hpp"

namespace attend::test {

/// Returns the text with calls in place of asm statements. Instructions that are not in `known` (the text of ptx.hpp)
/// become calls that end the program.
[[nodiscard]] std::string without_asm(const std::string& text, const std::string& known);

/// Writes the kernels' headers, rewritten, under their names, and the emulator's replacement headers.
void write_headers(const TemporaryFolder& folder, const std::vector<std::pair<std::string, std::string>>& headers);

}  // namespace attend::test
