// Problems in which some rows have one large bias on all keys, and a property of p that holds for them.
#pragma once

#include <vector>

#include "support/attention_case.hpp"
#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {

/// Returns inputs in which every second row has the same large bias on all keys. The sliced layout keeps the case's
/// head_dim.
[[nodiscard]] inline Inputs with_common_bias(DType dtype, double bias, AttentionCase c = {}) {
  c.dtype = dtype;
  c.heads_q = 2;
  c.seqlen_q = 70;
  c.seqlen_k = 1024;
  if (c.layout != CaseLayout::kSliced) c.head_dim = c.head_dim_v = 32;
  c.bias = Broadcast{};
  c.seed = 51;
  Inputs in = make_inputs(c);
  in.bias->generate([&](auto, auto, auto row, auto key) { return row % 2 == 0 ? bias : 0.01 * double(key % 7); });
  return in;
}

/// Returns the sum of each column of a head.
[[nodiscard]] inline std::vector<double> column_sums(const TensorBuffer& t, std::int64_t head) {
  std::vector<double> sums(static_cast<std::size_t>(t.shape()[3]));
  for (std::int64_t row = 0; row < t.shape()[2]; ++row) {
    for (std::int64_t col = 0; col < t.shape()[3]; ++col) sums[col] += t.at(0, head, row, col);
  }
  return sums;
}

/// Checks that each row of p sums to 1. Then the sum of dv over the keys equals the sum of dout over the rows. A
/// comparison with the standard implementation cannot check this, because the standard also computes p from lse. `in`
/// must come from with_common_bias(), whose two query heads share one key head.
inline void expect_rows_of_p_sum_to_one(const Inputs& in, const Outputs& out) {
  std::vector<double> want = column_sums(in.dout, 0);
  const std::vector<double> second = column_sums(in.dout, 1);
  for (std::size_t col = 0; col < want.size(); ++col) want[col] += second[col];
  const DType dtype = in.options.dtype;
  expect_near("sum of dv", column_sums(out.dv, 0), want, dtype == DType::kF32 ? 1e-5 : 4 * unit_roundoff(dtype));
}

}  // namespace attend::test
