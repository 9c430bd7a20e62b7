// Rewrites the text of a kernel so that the host's compiler accepts it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/host_compiler.hpp"

namespace attend::test {

/// Returns the text with each asm statement replaced by a function call. `known` is the text of ptx.hpp. An instruction
/// that it does not define becomes a call that ends the program.
[[nodiscard]] std::string without_asm(const std::string& text, const std::string& known);

/// Writes the rewritten headers of the kernels under their names, and the emulator's replacement headers.
void write_headers(const TemporaryFolder& folder, const std::vector<std::pair<std::string, std::string>>& headers);

}  // namespace attend::test
