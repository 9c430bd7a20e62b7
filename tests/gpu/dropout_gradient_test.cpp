// Tests gradients under heavy dropout, where the terms of a row cancel. Runs the checks of
// tests/dropout_gradient_test.cpp on every 16-bit kernel family.
#include <cmath>
#include <cstdio>

#include "dispatch/dispatch.hpp"
#include "gpu/gpu.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

struct SoleKeyCase {
  const char* compute;
  DType dtype;
  std::int64_t head_dim;
  bool packed;
  bool one_key;  ///< if set, the sequence has only one key; otherwise a window leaves one visible key
};

class SoleKey : public GpuTest, public testing::WithParamInterface<SoleKeyCase> {};

/// Returns whether the family's backward supports the inputs on this GPU, according to the library.
bool takes_gradients(std::string_view compute, const Inputs& in) {
  const Outputs out = make_outputs(in);
  core::Problem p =
      core::make_backward_problem(in.dout.view(), in.q.view(), in.k.view(), in.v.view(), out.o.view(), out.lse.view(),
                                  out.dq.view(), out.dk.view(), out.dv.view(), in.params(compute), {});
  p.q.device = {DeviceType::kCUDA, 0};
  return !dispatch::lack_of(*dispatch::find_backend(compute), p);
}

std::vector<SoleKeyCase> sole_key_cases() {
  std::vector<SoleKeyCase> cases;
  for (const char* compute : {"simt", "sm80_backward", "sm90_backward"}) {
    for (const std::int64_t head_dim : {24, 64, 128, 200}) {
      for (const bool one_key : {false, true}) {
        const DType dtype = cases.size() % 4 < 2 ? DType::kF16 : DType::kBF16;
        cases.push_back({compute, dtype, head_dim, cases.size() % 3 == 0, one_key});
      }
    }
  }
  return cases;
}

AttentionCase options_of(const SoleKeyCase& c) {
  AttentionCase options = {.dtype = c.dtype,
                           .heads_q = 4,
                           .heads_k = 2,
                           .seqlen_q = 200,
                           .seqlen_k = c.one_key ? 1 : 200,
                           .head_dim = c.head_dim,
                           .head_dim_v = 64,
                           .dropout_p = 0.9,
                           .seed = 51};
  if (!c.one_key) options.window_left = options.window_right = 0;
  if (c.packed) {
    options.varlen_q = {70, 0, 130};
    options.varlen_k = c.one_key ? std::vector<std::int64_t>{1, 1, 1} : std::vector<std::int64_t>{70, 3, 130};
  }
  return options;
}

INSTANTIATE_TEST_SUITE_P(Families, SoleKey, testing::ValuesIn(sole_key_cases()), kIndexName);

// The correct dq and dk are 0. If delta were computed from a rounded o, dq and dk would be between 0.02 (float16) and
// 0.2.
TEST_P(SoleKey, RowsHaveNoGradient) {
  constexpr double kAllowed = 1e-3;  // ten times the error of tensor cores, which truncate sums of 64 products
  const Inputs in = make_inputs(options_of(GetParam()));
  if (!takes_gradients(GetParam().compute, in)) GTEST_SKIP() << GetParam().compute << " is not for this GPU";
  const Outputs out = run(in, GetParam().compute);
  const double dq = largest_magnitude(out.dq.values()), dk = largest_magnitude(out.dk.values());
  const double dv = largest_magnitude(out.dv.values());
  std::printf("%s head_dim %lld: |dq| <= %.3g, |dk| <= %.3g, allowed %.3g; |dv| <= %.3g\n", GetParam().compute,
              static_cast<long long>(GetParam().head_dim), dq, dk, kAllowed, dv);
  EXPECT_LE(dq, kAllowed);
  EXPECT_LE(dk, kAllowed);
  EXPECT_GT(dv, 1);  // kept entries are scaled by ten
}

}  // namespace
}  // namespace attend::test
