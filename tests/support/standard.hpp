// The frozen standard: attention with full score matrices in memory, in the inputs' dtype. Its error defines the error
// budget of every other implementation. Do not change the standard, unless the definition of the budget itself changes.
//
// All products and sums are in f32, and all results are rounded to the dtype of the inputs. round() below also rounds
// to this dtype, which is the precision that a tensor core reads.
//
// The forward computes:
//     S = scale Q K^T,  P = softmax(S),  O = round(P) V
// The backward computes P from S and the LSE of its S, then:
//     dP = dO V^T,  dS = P (dP - rowsum(dO O)),  dV = round(P)^T dO,  dQ = round(dS) K,  dK = round(dS)^T Q
//
// A sink is one more column of S. The sink's column of P is dropped. The sink's gradient is a sum over rows, like the
// gradient of a broadcast bias.
//
// A second form of the backward (KeptP::kRounded) uses round(P) in dS as well as in dV. This form models an
// implementation that keeps P in the inputs' dtype, either in memory (for example PyTorch's math backend in 16 bits) or
// in registers. Equal entries of a row then have equal rounding errors. These errors can move dQ and dK by up to half a
// unit in the last place of P, all in one direction. This changes the slope of dQ and dK against the reference.
#pragma once

#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// One tensor in row-major order, and the deviations that a sound implementation may have from it.
struct StandardTensor {
  Shape shape;
  std::vector<double> value;
  std::vector<double> walk;   ///< expected error from rounding to the dtype: the root of the sum of squared rounding
                              ///< errors
  std::vector<double> bound;  ///< 2^-24 * sum of |terms|, which bounds the effect of another f32 summation order
};

struct Standard {
  StandardTensor o, lse, dq, dk, dv;
  std::optional<StandardTensor> dbias = {};
  std::optional<StandardTensor> dsinks = {};  ///< one column with the entries of all sinks; it is compared as one block
};

/// Precision of the P that the backward uses to compute dS.
enum class KeptP { kFloat, kRounded };

/// Runs forward and backward of the standard implementation.
[[nodiscard]] Standard run_standard(const Inputs& in, KeptP kept = KeptP::kFloat);

}  // namespace attend::test
