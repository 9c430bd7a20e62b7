// What run looks at in its input files before it trusts them.
#pragma once

#include <string>

#include "workload/workload.hpp"

namespace attend::cli {

/// "Q has 3 NaN and 1 infinity; V has 1 NaN", or nothing where every number of Q, K, V, dO and the bias is finite. A
/// bias of -inf hides a key and is not counted.
[[nodiscard]] std::string nonfinite_note(const Workload& w);

/// Computes a few rows again and compares them with O and logsumexp as they were read, for backward alone.
/// @throws Error (kIo) naming `o_name` and the row where they are not what these options give: gradients would be of
/// something else, and nobody would see it.
void check_earlier_results(const Workload& w, const std::string& o_name);

}  // namespace attend::cli
