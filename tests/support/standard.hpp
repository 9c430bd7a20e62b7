// The frozen standard: attention with full score matrices in memory, in the inputs' dtype. The budget of every other
// implementation is derived from its error. Change it only if that rule itself changes.
//
//     forward:  S = scale Q K^T (f32), P = softmax(S) (f32), O = round(P) V (f32), rounded to the dtype
//     backward: P from S and its own LSE, dP = dO V^T, dS = P (dP - rowsum(dO O)), dV = round(P)^T dO,
//               dQ = round(dS) K, dK = round(dS)^T Q; products and sums in f32, results rounded to the dtype
//
// A sink is one more column of S. Its column of P is dropped. Its gradient is a sum over rows, like that of a bias.
// "round" rounds to the dtype of the inputs, which is what a tensor core reads.
//
// A second form of the backward uses round(P) in dS as well as in dV. It models an implementation that keeps P in the
// inputs' dtype, in memory (PyTorch's math in 16 bits) or in registers. Equal entries of a row are then rounded
// equally. This moves dQ and dK by up to half a unit of P in one direction, which changes their slope.
#pragma once

#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// One tensor's elements in row-major order, and the deviations that a sound implementation may have.
struct StandardTensor {
  Shape shape;
  std::vector<double> value;
  std::vector<double> walk;   ///< random walk of roundings to the dtype: root of the sum of squared errors
  std::vector<double> bound;  ///< 2^-24 * sum of |terms|: bounds the effect of another f32 summation order
};

struct Standard {
  StandardTensor o, lse, dq, dk, dv;
  std::optional<StandardTensor> dbias = {};
  std::optional<StandardTensor> dsinks = {};  ///< one column of all its entries, which forms one block
};

/// Precision of P in dS.
enum class KeptP { kFloat, kRounded };

/// Runs forward and backward of the standard implementation.
[[nodiscard]] Standard run_standard(const Inputs& in, KeptP kept = KeptP::kFloat);

}  // namespace attend::test
