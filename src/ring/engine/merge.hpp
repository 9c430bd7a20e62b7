// Merges results over different keys by their log-sum-exp (core/merged_lse.hpp).
//
// Sources: Liu et al., Ring Attention (2023); for the formula, Milakov & Gimelshein (2018), section 3.1.
#pragma once

#include <cstdint>
#include <vector>

#include "attend/tensor.hpp"

namespace attend::ring {

/// o and lse of a rank's rows over the keys added so far, in float64.
class MergedRows {
 public:
  /// @param shape  shape of o: (batch, num_heads_q, seqlen_q, head_dim_v)
  explicit MergedRows(const Shape& shape);

  /// Merges the result of a part into the rows that begin with row_begin. There are o.shape[2] rows. The merge covers
  /// all heads of the first o.shape[0] batch entries.
  /// @param o    f32 or f64 (batch, num_heads_q, rows, head_dim_v)
  /// @param lse  any float type (batch, num_heads_q, rows, 1)
  void add(std::int64_t row_begin, const Tensor& o, const Tensor& lse);

  /// Writes o, and lse if it is not null, rounded to their dtypes.
  void store(const Tensor& o, const Tensor* lse) const;

 private:
  template <class Part>
  void add_as(std::int64_t row_begin, const Tensor& o, const Tensor& lse);

  Shape shape_;
  std::vector<double> o_;
  std::vector<double> lse_;
};

}  // namespace attend::ring
