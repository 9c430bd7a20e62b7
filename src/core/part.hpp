// Describes a problem that is a part of a larger one. The part may be a piece of a ring's work, or the share of the
// heads that one rank computes.
#pragma once

#include <optional>

#include "attend/tensor.hpp"
#include "core/placement.hpp"

namespace attend::core {

/// Fields that only a part of a larger problem needs. A complete problem has no Part.
struct Part {
  /// Position of the part's rows and keys in the larger problem. window_left and window_right of the part's Problem are
  /// those of the larger problem. If absent, the part has all rows and keys of its heads.
  std::optional<Placement> placement = {};

  /// Used by forward on a CPU if the part's o has a wider dtype than the final o. It is the dtype to which o will be
  /// rounded at the end, and is set only if o is not merged with other parts before. If absent, o is not rounded
  /// further.
  std::optional<DType> result_dtype = {};

  /// Used on a GPU. If true, the outputs are f32 and contain the results of earlier parts. Forward then merges its
  /// results into o and lse, which are both required. Before the first part, lse must be -inf, and o may be undefined.
  /// Backward adds its results to dq, dk and dv.
  bool adds_to_outputs = false;

  /// Used by backward with adds_to_outputs. is_first_of_rows is true if no earlier part has written these rows of dq.
  /// is_first_of_keys is true if no earlier part has written these keys of dk and dv. The part then stores its results
  /// instead of adding them.
  bool is_first_of_rows = false, is_first_of_keys = false;

  /// Used by backward: <dout, o> - dlse of each row, with the shape of lse. If present, o is not read. If absent, the
  /// backend computes these values from o.
  std::optional<Tensor> delta = {};
};

}  // namespace attend::core
