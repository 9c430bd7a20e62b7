// Compares attend::merge with float64. Covers any number of states, all dtypes, sinks, both logarithm bases, states
// that saw no key, and numbers at the limits of float32. Also checks that merging the parts of a decode gives the
// complete result.
#include <gtest/gtest.h>

#include <random>

#include "attend/serving.hpp"
#include "serving/merge_checks.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

void merge_on_cpu(std::span<const PartialState> states, const Tensor& o, const Tensor* lse, const MergeParams& params) {
  merge(states, o, lse, params);
}

TEST(Merge, AgreesWithFloat64) {
  for (const MergeCase& c : merge_cases()) check_merge(c, merge_on_cpu);
}

TEST(Merge, OneStateKeepsItsBits) {
  check_one_state_keeps_its_bits(merge_on_cpu);
}

TEST(Merge, IntoAStateItself) {
  check_merge_into_a_state(merge_on_cpu);
}

TEST(Merge, EndsOfFloat32AndNaN) {
  check_ends_of_float32(merge_on_cpu);
}

TEST(Merge, OfNothingIsTheSink) {
  check_merge_of_nothing(merge_on_cpu);
}

TEST(Merge, ManyRowsOnThreads) {
  const MergeCase c = {.states = {DType::kBF16, DType::kF32, DType::kBF16},
                       .dtype = DType::kBF16,
                       .shape = {2, 5, 333, 128},
                       .share_of_none = 0.2,
                       .sinks = true,
                       .seed = 77};
  check_merge(c, merge_on_cpu);
}

TEST(Merge, BitsDoNotDependOnThreadsOrNeighbours) {
  const MergeCase c = {.states = {DType::kF32, DType::kF32, DType::kF32}, .shape = {3, 4, 300, 64}, .seed = 3};
  const States states = make_states(c);
  const TensorBuffer o(DType::kF32, c.shape), alone(DType::kF32, c.shape);
  merge(states.views(), o.view());
  set_cpu_threads(1);
  std::vector<PartialState> one_row = states.views();
  for (std::int64_t row = 0; row < c.shape[2]; ++row) {
    for (std::size_t n = 0; n < one_row.size(); ++n) {
      one_row[n] = states.views()[n];
      const auto take = [row](ConstTensor& t) {
        t.data = static_cast<const float*>(t.data) + row * t.stride[2];
        t.shape[2] = 1;
      };
      take(one_row[n].o), take(one_row[n].lse);
    }
    Tensor to = alone.view();
    to.data = static_cast<float*>(to.data) + row * to.stride[2];
    to.shape[2] = 1;
    merge(one_row, to);
  }
  set_cpu_threads(0);
  expect_same_bits("o", alone, o);
}

// Decodes three ranges of a cache's keys separately and merges the states with the sinks. The result must match a
// single decode.
TEST(Merge, PartsOfADecodeAreTheWhole) {
  constexpr std::int64_t kKeys = 300, kHeads = 2, kGroup = 3, kRows = 2, kHeadDim = 32;
  std::mt19937_64 random(4);
  std::normal_distribution<double> normal;
  const auto draw = [&](auto...) { return normal(random); };
  const TensorBuffer q = made(DType::kF32, {2, kHeads * kGroup, kRows, kHeadDim}, draw);
  const TensorBuffer k = made(DType::kF32, {2, kHeads, kKeys, kHeadDim}, draw);
  const TensorBuffer v = made(DType::kF32, {2, kHeads, kKeys, kHeadDim}, draw);
  const TensorBuffer sinks = made(DType::kF32, {1, kHeads * kGroup, 1, 1}, draw);
  for (const bool base2 : {false, true}) {
    const auto attend = [&](std::int64_t begin, std::int64_t end, bool with_sinks, const TensorBuffer& o,
                            const TensorBuffer& lse) {
      const auto part = [&](const TensorBuffer& cache) {
        Tensor t = cache.view();
        t.data = static_cast<float*>(t.data) + begin * t.stride[2];
        t.shape[2] = end - begin;
        return t;
      };
      DecodeCall call = {.q = q.view(), .k_cache = part(k), .v_cache = part(v), .o = o.view(), .lse = lse.view()};
      call.params = {.causal = false, .lse_base2 = base2};
      if (with_sinks) call.params.sinks = sinks.view();
      decode(call);
    };
    const Shape o_shape = {2, kHeads * kGroup, kRows, kHeadDim}, lse_shape = {2, kHeads * kGroup, kRows, 1};
    States parts;
    for (const auto& [begin, end] : {std::pair{0, 100}, {100, 100}, {100, 130}, {130, 300}}) {
      parts.o.emplace_back(DType::kF32, o_shape), parts.lse.emplace_back(DType::kF32, lse_shape);
      attend(begin, end, false, parts.o.back(), parts.lse.back());
    }
    const TensorBuffer whole(DType::kF32, o_shape), whole_lse(DType::kF32, lse_shape);
    attend(0, kKeys, true, whole, whole_lse);
    const TensorBuffer o(DType::kF32, o_shape), lse(DType::kF32, lse_shape);
    merge(parts.views(), o.view(), &lse.view(), {.sinks = sinks.view(), .lse_base2 = base2});
    expect_near("o", o.values(), whole.values(), 1e-6);
    expect_near("lse", lse.values(), whole_lse.values(), 1e-6);
  }
}

}  // namespace
}  // namespace attend::test
