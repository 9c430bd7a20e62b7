// Checks of the input files of the run command.
#pragma once

#include <string>

#include "workload/workload.hpp"

namespace attend::cli {

/// Returns a note such as "Q has 3 NaN and 1 infinity; V has 1 NaN". The text is empty if all numbers of Q, K, V, dO
/// and the bias are finite. A bias of -inf is not reported, because it hides a key.
[[nodiscard]] std::string nonfinite_note(const Workload& w);

/// For a run of backward alone, recomputes a few rows and compares them with O and logsumexp from the input files.
/// @throws Error (kIo) naming `o_name` and the row if the files do not match the options of the run. Without the check,
///   the gradients would be wrong without any message.
void check_earlier_results(const Workload& w, const std::string& o_name);

}  // namespace attend::cli
