// Checks of the input files of the run command.
#pragma once

#include <string>

#include "workload/workload.hpp"

namespace attend::cli {

/// Returns a note such as "Q has 3 NaN and 1 infinity; V has 1 NaN", or an empty text if all numbers of Q, K, V, dO and
/// the bias are finite. A bias of -inf hides a key and is not counted.
[[nodiscard]] std::string nonfinite_note(const Workload& w);

/// Recomputes a few rows and compares them with O and logsumexp from the input files, for a run of backward alone.
/// @throws Error (kIo) naming `o_name` and the row if they do not match these options, because the gradients would
///     silently be wrong.
void check_earlier_results(const Workload& w, const std::string& o_name);

}  // namespace attend::cli
