// Describes a problem that is a part of a larger one. It may be a piece of a ring's work or a share of its heads.
#pragma once

#include <optional>

#include "attend/tensor.hpp"
#include "core/placement.hpp"

namespace attend::core {

/// Fields that only a part of a larger problem needs. A complete problem has no Part.
struct Part {
  /// Position of the part's rows and keys in the larger problem. The windows of the problem are those of the larger
  /// one. If absent, the part has all rows and keys of its heads.
  std::optional<Placement> placement = {};

  /// Used by forward on a CPU: the dtype to which o is rounded at the end, if no other part is merged before. If
  /// absent, o is not rounded further.
  std::optional<DType> result_dtype = {};

  /// Used on a GPU: if true, the outputs are f32 and hold the results of earlier parts. Forward then merges its o and
  /// lse into them. Both outputs are required; lse must start at -inf, and o may start undefined. Backward adds to dq,
  /// dk and dv.
  bool adds_to_outputs = false;

  /// Used by backward with adds_to_outputs: true if no earlier part has written these rows of dq, or these keys of dk
  /// and dv. The part then stores them instead of adding.
  bool is_first_of_rows = false, is_first_of_keys = false;

  /// Used by backward: <dout, o> - dlse of each row, with the shape of lse. If present, o is not read. If absent, the
  /// backend computes it from o.
  std::optional<Tensor> delta = {};
};

}  // namespace attend::core
