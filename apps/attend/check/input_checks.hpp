// Checks of the input files of the run command.
#pragma once

#include <string>

#include "workload/workload.hpp"

namespace attend::cli {

/// Returns a note such as "Q has 3 NaN and 1 infinity; V has 1 NaN". The note is empty if all numbers of Q, K, V, dO
/// and the bias are finite. A bias of -inf is not reported, because it hides a key.
[[nodiscard]] std::string nonfinite_note(const Workload& w);

/// Checks the input of a run that computes only backward. Recomputes a few rows of O and logsumexp, and compares them
/// with the input files.
/// @throws Error (kIo) naming `o_name` and the row if O and logsumexp were computed with other options or inputs.
///   Without this check, the gradients would be wrong without any message.
void check_earlier_results(const Workload& w, const std::string& o_name);

}  // namespace attend::cli
