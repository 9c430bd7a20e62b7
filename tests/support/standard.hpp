// The frozen standard: attention with whole score matrices in memory, in the inputs' dtype. Its error sets the budget
// of everything else, so it changes only when the rule itself changes.
//
//   forward:  S = scale Q K^T (f32), P = softmax(S) (f32), O = round(P) V (f32), rounded to the dtype
//   backward: P from S and its own LSE, dP = dO V^T, dS = P (dP - rowsum(dO O)), dV = round(P)^T dO,
//             dQ = round(dS) K, dK = round(dS)^T Q; products and sums in f32, results rounded to the dtype
// A sink is one more column of S, whose column of P is dropped; its gradient is a sum over rows like that of a bias.
// "round" is to the dtype of the inputs: what a tensor core takes.
//
// Of P's gradient there is a second form, with round(P) in dS as in dV: what an implementation does that keeps P in the
// inputs' dtype, be it in memory (PyTorch's math in 16 bits) or in registers. Entries of a row that are alike are then
// rounded alike, which moves dQ and dK by up to half a unit of P, all in the same direction: their slope.
#pragma once

#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// One tensor's elements in row-major order, with what a sound implementation may deviate by, apart from luck.
struct StandardTensor {
  Shape shape;
  std::vector<double> value;
  std::vector<double> walk;   ///< random walk of roundings to the dtype: sqrt of the sum of squared rounding errors
  std::vector<double> bound;  ///< 2^-24 times the sum of the magnitudes that are added: another order of f32 sums
};

struct Standard {
  StandardTensor o, lse, dq, dk, dv;
  std::optional<StandardTensor> dbias = {};
  std::optional<StandardTensor> dsinks = {};  ///< as one column of all its entries: a block of its own
};

/// What dS is made of.
enum class KeptP { kFloat, kRounded };

/// Forward and backward of the standard implementation.
[[nodiscard]] Standard run_standard(const Inputs& in, KeptP kept = KeptP::kFloat);

}  // namespace attend::test
