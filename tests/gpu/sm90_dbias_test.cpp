// Tests the gradient of a bias that batch entries share. sm90_backward sums it over the blocks of a cluster. The tests
// expect the same bits in each repeat and no write after the last key. sm90_backward_test.cpp compares the gradient
// with float64.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "gpu/forward_checks.hpp"
#include "gpu/gpu.hpp"

namespace attend::test {
namespace {

constexpr const char* kCompute = "sm90_backward";

class Sm90BiasGradients : public HopperTest {};

/// Returns a case with two heads. All batch entries share the bias of a head.
AttentionCase shared(std::int64_t batch, std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t head_dim,
                     bool causal) {
  AttentionCase c = plain(DType::kBF16, 2, 1, seqlen_q, seqlen_k, head_dim, causal);
  c.batch = batch;
  c.bias = Broadcast{false, true, true};
  return c;
}

/// The order of the sums must not depend on which block of a cluster arrives first.
TEST_F(Sm90BiasGradients, RepeatsOfTheBiassGradientAreBitEqual) {
  // In the last two sizes the kernel has one buffer for the bias and two for v. The second warpgroup of a block sees
  // fewer tiles than the first.
  constexpr struct {
    std::int64_t batch, head_dim, head_dim_v;
  } kSizes[] = {{1, 128, 128}, {2, 128, 128}, {5, 192, 192}, {8, 64, 64}, {3, 128, 192}, {5, 192, 128}};
  for (const auto [batch, head_dim, head_dim_v] : kSizes) {
    AttentionCase c = shared(batch, 264, 264, head_dim, head_dim == 64 || head_dim != head_dim_v);
    c.head_dim_v = head_dim_v;
    const Inputs in = make_inputs(c);
    const Outputs first = run(in, kCompute);
    for (int round = 0; round < 100; ++round) {
      const Outputs again = make_outputs(in);
      run_forward(in, again, kCompute);
      run_backward(in, again, kCompute);
      ASSERT_EQ(again.dbias->bytes(), first.dbias->bytes()) << batch << " " << head_dim << " " << round;
      ASSERT_EQ(again.dq.bytes(), first.dq.bytes()) << batch << " " << head_dim << " " << round;
    }
  }
}

/// With an odd number of keys, the padding columns after the last key must stay unchanged. This is tested for a bias
/// that batch entries share, and for a separate bias per entry.
TEST_F(Sm90BiasGradients, ASharedBiassGradientEndsWithTheKeys) {
  static constexpr std::int64_t kKeys = 133, kPaddedKeys = 136;
  for (const std::int64_t batch : {2, 4, 5}) {
    const AttentionCase c = shared(batch, 150, kPaddedKeys, 128, batch == 4);
    Inputs in = make_inputs(c);
    const auto narrowed = [](const TensorBuffer& t, std::size_t dim) {
      Tensor view = t.view();
      view.device = {DeviceType::kCUDA, 0};
      view.shape[dim] = std::min(view.shape[dim], kKeys);
      return view;
    };
    const auto whole = [](const TensorBuffer& t) {
      Tensor view = t.view();
      view.device = {DeviceType::kCUDA, 0};
      return view;
    };
    const auto gradients = [&](std::string_view compute) {
      Outputs out = make_outputs(in);
      Params params = in.params(compute);
      params.bias = narrowed(*in.bias, 3);
      const Tensor k = narrowed(in.k, 2), v = narrowed(in.v, 2), lse = whole(out.lse);
      Params of_forward = params;
      of_forward.compute = "auto";
      forward(whole(in.q), k, v, whole(out.o), &lse, of_forward);
      const BackwardExtras extras = {std::nullopt, narrowed(*out.dbias, 3)};
      backward(whole(in.dout), whole(in.q), k, v, whole(out.o), lse, whole(out.dq), narrowed(out.dk, 2),
               narrowed(out.dv, 2), params, nullptr, extras);
      cuda::synchronize(nullptr);
      return out;
    };
    const cuda::ContextGuard guard(0);
    const Outputs got = gradients(kCompute), want = gradients("sm80_backward");
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t i = 0; i < 150; ++i) {
        for (std::int64_t j = 0; j < kPaddedKeys; ++j) {
          const double a = got.dbias->at(0, h, i, j), b = want.dbias->at(0, h, i, j);
          if (j >= kKeys) {
            ASSERT_TRUE(std::isnan(a)) << "written at " << h << " " << i << " " << j;
          } else {
            ASSERT_TRUE(std::abs(a - b) <= 0.01 + 0.02 * std::abs(b))
                << h << " " << i << " " << j << ": " << a << " " << b;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace attend::test
