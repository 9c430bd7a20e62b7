// What a problem is told that is a part of a larger one: a piece of a ring's work, or a share of its heads.
#pragma once

#include <optional>

#include "attend/tensor.hpp"
#include "core/placement.hpp"

namespace attend::core {

/// The larger problem's masks, options and results reach into its parts. A problem that is whole has none of this.
struct Part {
  /// The place of its rows and keys in the larger problem, whose windows the part has. Absent: the part has all rows
  /// and keys of its heads.
  std::optional<Placement> placement = {};

  /// On a CPU, forward: the dtype that o is rounded to later, if it is merged with no other part before. Absent: o is
  /// rounded no further.
  std::optional<DType> result_dtype = {};

  /// On a GPU: outputs are f32 and hold the results of other parts. Forward merges o and lse into them; both are always
  /// given, lse starts at -inf, and o may be undefined then. Backward adds to dq, dk and dv.
  bool adds_to_outputs = false;

  /// Backward with adds_to_outputs: this part is the first with these rows of dq, or with these keys of dk and dv. It
  /// stores them and adds to nothing.
  bool is_first_of_rows = false, is_first_of_keys = false;

  /// Backward: <dout, o> - dlse of each row, shaped like lse. With it nobody reads o. Absent: computed from o.
  std::optional<Tensor> delta = {};
};

}  // namespace attend::core
