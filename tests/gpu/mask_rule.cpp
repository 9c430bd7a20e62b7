#include "gpu/mask_rule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/attention_case.hpp"
#include "support/dense_oracle.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

/// Returns one packed problem whose sequences have every pair of lengths up to 9. All queries are 0, so all visible
/// keys have the same weight. v[j] is the j-th unit vector and dout[i] is the i-th, so the outputs show the weights.
Inputs mask_probe(DType dtype, std::int64_t head_dim, std::int64_t head_dim_v) {
  AttentionCase c = {.dtype = dtype, .head_dim = head_dim, .head_dim_v = head_dim_v};
  for (std::int64_t q = 0; q <= kMostMaskKeys; ++q) {
    for (std::int64_t k = 0; k <= kMostMaskKeys; ++k) c.varlen_q.push_back(q), c.varlen_k.push_back(k);
  }
  Inputs in = make_inputs(c);
  in.q.fill(0);
  in.k.fill(1);
  const auto unit_vectors = [](const TensorBuffer& t, const std::vector<std::int64_t>& lengths) {
    std::int64_t row = 0;
    t.fill(0);
    for (const std::int64_t length : lengths) {
      for (std::int64_t i = 0; i < length; ++i) t.set(0, 0, row++, i, 1);
    }
  };
  unit_vectors(in.v, c.varlen_k);
  unit_vectors(in.dout, c.varlen_q);
  return in;
}

/// Checks which keys each row sees. o[i] shows which keys row i sees, and dv[j] shows which rows see key j.
void expect_rule(const Inputs& in, const Outputs& out, bool with_gradients) {
  const AttentionCase& c = in.options;
  const std::vector<double> o = out.o.values(), dv = out.dv.values(), lse = out.lse.values();
  const std::int64_t cols = c.head_dim_v;
  const double allowed = property_tolerance(c.dtype);
  for (std::size_t n = 0; n < c.varlen_q.size(); ++n) {
    for (std::int64_t i = 0; i < c.varlen_q[n]; ++i) {
      const std::int64_t row = in.cu_q.get()[n] + i;
      const auto sees = [&](std::int64_t j) {
        return visible_by_rule(c.causal, c.window_left, c.window_right, c.varlen_q[n], c.varlen_k[n], i, j);
      };
      double count = 0;
      for (std::int64_t j = 0; j < c.varlen_k[n]; ++j) count += sees(j) ? 1 : 0;
      const double want = count == 0 ? -INFINITY : std::log(count);
      ASSERT_TRUE(lse[row] == want || std::abs(lse[row] - want) <= kLseAbsolute) << "sequence " << n << " row " << i;
      for (std::int64_t j = 0; j < c.varlen_k[n]; ++j) {
        const double weight = sees(j) ? 1 / count : 0;
        ASSERT_NEAR(o[row * cols + j], weight, weight * allowed) << "sequence " << n << ", o " << i << "," << j;
        if (!with_gradients) continue;
        ASSERT_NEAR(dv[(in.cu_k.get()[n] + j) * cols + i], weight, weight * allowed)
            << "sequence " << n << ", dv " << i << "," << j;
      }
    }
  }
  if (!with_gradients) return;
  for (const double x : out.dq.values()) ASSERT_TRUE(std::isfinite(x));
  for (const double x : out.dk.values()) ASSERT_EQ(x, 0) << "q is 0";
}

}  // namespace

void check_every_mask(std::string_view compute, DType dtype, std::int64_t head_dim, std::int64_t head_dim_v) {
  Inputs in = mask_probe(dtype, head_dim, head_dim_v);
  for (std::int64_t left = -1; left <= kMostMaskKeys + 1; ++left) {
    for (std::int64_t right = -1; right <= kMostMaskKeys + 1; ++right) {
      for (const bool causal : {false, true}) {
        if (testing::Test::HasFailure()) return;  // stops after the first mask that fails
        in.options.window_left = left;
        in.options.window_right = right;
        in.options.causal = causal;
        SCOPED_TRACE("window " + std::to_string(left) + ", " + std::to_string(right) + (causal ? " causal" : ""));
        expect_rule(in, run(in, compute), has_backward(compute));
      }
    }
  }
}

}  // namespace attend::test
