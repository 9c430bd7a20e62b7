// Description of a problem that is a part of a larger one: a piece of a ring's work, or a share of its heads.
#pragma once

#include <optional>

#include "attend/tensor.hpp"
#include "core/placement.hpp"

namespace attend::core {

/// Masks, options and results of the larger problem affect its parts. A complete problem has no Part.
struct Part {
  /// Position of the part's rows and keys in the larger problem, whose windows the part has. Absent: the part has all
  /// rows and keys of its heads.
  std::optional<Placement> placement = {};

  /// On a CPU, forward: the dtype to which o is rounded later, if it is not merged with another part before. Absent: o
  /// is not rounded further.
  std::optional<DType> result_dtype = {};

  /// On a GPU: outputs are f32 and hold the results of earlier parts. Forward merges o and lse into them. Both must be
  /// given, lse starts at -inf, and o may start undefined. Backward adds to dq, dk and dv.
  bool adds_to_outputs = false;

  /// Backward with adds_to_outputs: this part is the first with these rows of dq, or with these keys of dk and dv. It
  /// stores them instead of adding.
  bool is_first_of_rows = false, is_first_of_keys = false;

  /// Backward: <dout, o> - dlse of each row, shaped like lse. If present, o is not read. Absent: computed from o.
  std::optional<Tensor> delta = {};
};

}  // namespace attend::core
