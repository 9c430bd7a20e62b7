// Compares decode() on a CPU with float64. The cases cover every cache layout, option and length. All memory that must
// not be read is NaN.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "serving/cache_case.hpp"
#include "serving/decode_cases.hpp"

namespace attend::test {
namespace {

using Rows = DecodeValues::Rows;

const DecodeValues kValues = {
    .columns = {{64, 64}, {128, 128}, {40, 40}, {72, 72}, {96, 80}, {192, 128}, {256, 256}, {33, 17}, {576, 512}},
    .groups = {1, 2, 4, 5, 7, 8},
    .page_sizes = {0, 0, 1, 3, 16, 64},
    .layouts = {Layout::kBHSD, Layout::kBSHD},
    .rows = {{1}, {2}, {5}, {16}, {40}, {7, Rows::Kind::kTree}, {6, Rows::Kind::kPacked}},
};

/// Number of parts into which the covering array is divided. Older SIMD targets run only some of the parts.
constexpr std::size_t kParts = 8;

class DecodePart : public testing::TestWithParam<std::size_t> {};

TEST_P(DecodePart, AgreesWithFloat64) {
  const std::vector<DecodeCase> cases = decode_cases(kValues, 700);
  DecodeErrors errors;
  for (std::size_t n = GetParam() * ATTEND_TEST_STRIDE; n < cases.size(); n += kParts * ATTEND_TEST_STRIDE) {
    check_decode(cases[n], decode_with("cpu"), errors);
  }
  EXPECT_GE(errors.cases, 700 / static_cast<int>(kParts * ATTEND_TEST_STRIDE));
  fmt::print("{}", errors.text());
}

INSTANTIATE_TEST_SUITE_P(CoveringArray, DecodePart, testing::Range(std::size_t{0}, kParts));

/// Compares the reference of the decode tests with attend::forward on the gathered keys of each sequence.
TEST(Decode, ReferenceIsForwardOfTheGatheredKeys) {
  int cases = 0;
  double worst = 0;
  for (const DecodeCase& one : decode_cases(kValues, 1, 77)) {
    CacheFacts facts = one.facts;
    facts.tree = facts.packed = facts.leftpad = facts.missing_pages = facts.lse_base2 = facts.values_in_keys = false;
    if (facts.head_dim > 512) continue;
    facts.rows.assign(facts.rows.size(), 5);
    const CacheCase problem(facts, one.seed);
    const CacheCase::Result truth = problem.run("reference");
    ++cases;
    // Dequantized keys are gathered in float64, which holds the products with the factors exactly.
    const bool is_quantized = facts.cache_dtype.has_value();
    const DType dtype = is_quantized ? DType::kF64 : facts.dtype;
    for (std::int64_t s = 0; s < problem.num_sequences(); ++s) {
      const std::int64_t length = std::min(facts.lengths[static_cast<std::size_t>(s)], problem.capacity());
      if (length < 0) continue;
      const TensorBuffer k(dtype, {1, facts.num_heads_k, length, facts.head_dim});
      const TensorBuffer v(dtype, {1, facts.num_heads_k, length, facts.head_dim_v});
      k.generate([&](auto, auto h, auto j, auto c) { return problem.key(s, h, *problem.place(s, j), c); });
      v.generate([&](auto, auto h, auto j, auto c) { return problem.value(s, h, *problem.place(s, j), c); });
      const DecodeCall call = problem.call();
      const Shape& shape = problem.q.shape();
      const TensorBuffer q(dtype, {1, shape[1], shape[2], shape[3]});
      q.generate([&](auto, auto h, auto i, auto c) { return problem.q.at(s, h, i, c); });
      Tensor sinks = problem.sinks.view();
      sinks.data = static_cast<char*>(sinks.data) + s * sinks.stride[0] * 4;
      sinks.shape[0] = 1;
      const TensorBuffer o(dtype, {1, shape[1], 5, facts.head_dim_v}), rounded(facts.dtype, o.shape());
      Params params = {.causal = facts.causal,
                       .window_left = facts.window_left,
                       .window_right = facts.window_right,
                       .softcap = facts.softcap,
                       .alibi_slopes = call.params.alibi_slopes,
                       .compute = "reference"};
      if (facts.sinks) params.sinks = sinks;
      attend::forward(q.view(), k.view(), v.view(), o.view(), nullptr, params);
      rounded.generate([&](auto b, auto h, auto i, auto c) { return o.at(b, h, i, c); });
      const std::vector<double> wanted = rounded.values();
      const double* got = truth.o.data() + s * static_cast<std::int64_t>(wanted.size());
      for (std::size_t i = 0; i < wanted.size(); ++i) worst = std::max(worst, std::abs(got[i] - wanted[i]));
    }
  }
  EXPECT_LE(worst, 0) << "both round the same float64 sums";
  fmt::print("{} cases, largest difference {:.2g}\n", cases, worst);
}

}  // namespace
}  // namespace attend::test
