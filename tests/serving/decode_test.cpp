// decode() on a CPU against float64: every kind of cache, option and length, with NaN wherever nothing may be read.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "serving/cache_case.hpp"
#include "support/covering_array.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Factors of the covering array, and what their values mean.
enum Factor {
  kDTypes,
  kDims,
  kGroups,
  kKinds,
  kLayouts,
  kRows,
  kMasks,
  kSoftcaps,
  kAlibis,
  kSinkses,
  kLengths,
  kLeftpads,
  kBases,
  kCaches,
  kDescales,
  kFactors
};
const std::vector<int> kNumValues = {3, 9, 6, 6, 2, 7, 4, 2, 2, 2, 5, 2, 2, 4, 5};

CacheFacts facts_of(const Choice& choice, std::mt19937_64& random) {
  const auto below = [&](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random); };
  constexpr std::array kTypes = {DType::kF32, DType::kF16, DType::kBF16};
  constexpr std::array<std::pair<int, int>, 9> kHeadDims = {
      {{64, 64}, {128, 128}, {40, 40}, {72, 72}, {96, 80}, {192, 128}, {256, 256}, {33, 17}, {576, 512}}};
  constexpr std::array kGroupSizes = {1, 2, 4, 5, 7, 8};
  constexpr std::array kPageSizes = {0, 0, 1, 3, 16, 64};
  constexpr std::array kRowCounts = {1, 2, 5, 16, 40, 7, 3};  // the last two: a tree, packed
  CacheFacts f;
  f.dtype = kTypes[choice[kDTypes]];
  f.head_dim = kHeadDims[choice[kDims]].first;
  f.head_dim_v = kHeadDims[choice[kDims]].second;
  f.values_in_keys = f.head_dim == 576;
  f.num_heads_k = f.values_in_keys ? 1 : 1 + below(3);
  f.group = kGroupSizes[choice[kGroups]];
  f.page_size = kPageSizes[choice[kKinds]];
  f.batch_idx = choice[kKinds] % 2 == 1;
  f.layout = choice[kLayouts] == 0 ? Layout::kBHSD : Layout::kBSHD;
  f.packed = choice[kRows] == 6;
  f.tree = choice[kRows] == 5;
  const std::int64_t sequences = 1 + below(4);
  for (std::int64_t s = 0; s < sequences; ++s) {
    f.rows.push_back(f.packed ? below(6) : kRowCounts[choice[kRows]]);
  }
  f.capacity = 1 + below(700);
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::array<std::int64_t, 5> lengths = {0, 1, f.capacity, below(f.capacity + 1), -1};
    f.lengths.push_back(s == 0 ? lengths[choice[kLengths]] : lengths[below(4)]);
  }
  f.causal = choice[kMasks] != 1;
  if (choice[kMasks] == 2) f.window_left = below(300);
  if (choice[kMasks] == 3) {
    f.causal = false;
    f.window_left = below(40);
    f.window_right = below(10);
  }
  f.softcap = choice[kSoftcaps] == 0 ? 0 : 1.5;
  f.alibi = choice[kAlibis] == 1;
  f.sinks = choice[kSinkses] == 1;
  f.leftpad = choice[kLeftpads] == 1;
  f.lse_base2 = choice[kBases] == 1;
  f.missing_pages = f.page_size != 0 && below(4) == 0;
  if (choice[kCaches] >= 2) {
    f.cache_dtype = choice[kCaches] == 2 ? DType::kF8E4M3 : DType::kI8;
    f.descales = static_cast<Descales>(choice[kDescales]);
  }
  return f;
}

/// The largest error of o relative to its budget. Everything is computed in float32 and rounded once, as the truth is.
double largest_ratio(const CacheCase::Result& result, const CacheCase::Result& truth, DType dtype) {
  double largest = 0;
  for (std::size_t i = 0; i < truth.o.size(); ++i) {
    if (std::isnan(truth.o[i]) && std::isnan(result.o[i])) continue;  // a row of no sequence
    const double rounding = dtype == DType::kF32 ? 0 : unit_roundoff(dtype) * std::abs(truth.o[i]);
    const double budget = kF32ForwardAbsolute + 2 * rounding;
    const double ratio = std::abs(result.o[i] - truth.o[i]) / budget;
    largest = std::isnan(ratio) ? kInfinity : std::max(largest, ratio);
  }
  return largest;
}

double largest_lse_error(const CacheCase::Result& result, const CacheCase::Result& truth) {
  double largest = 0;
  for (std::size_t i = 0; i < truth.lse.size(); ++i) {
    if (std::isnan(truth.lse[i]) && std::isnan(result.lse[i])) continue;
    if (truth.lse[i] == result.lse[i]) continue;  // -inf
    const double error = std::abs(result.lse[i] - truth.lse[i]);
    largest = std::isnan(error) ? kInfinity : std::max(largest, error);
  }
  return largest;
}

TEST(Decode, CoveringArrayAgainstFloat64) {
  const auto all_compatible = [](int, int, int, int) { return true; };
  int cases = 0;
  double worst = 0;
  double worst_lse = 0;
  for (std::uint64_t round = 0; cases < 700; ++round) {
    for (const Choice& choice : covering_array(kNumValues, all_compatible, round)) {
      std::mt19937_64 random(1000 * round + static_cast<std::uint64_t>(cases));
      const CacheFacts facts = facts_of(choice, random);
      if (cases++ % ATTEND_TEST_STRIDE != 0) continue;
      const CacheCase problem(facts, random());
      const CacheCase::Result truth = problem.run("reference");
      const CacheCase::Result result = problem.run("cpu");
      const double ratio = largest_ratio(result, truth, facts.dtype);
      const double lse_error = largest_lse_error(result, truth);
      EXPECT_LE(ratio, 1) << "error of o over its budget: " << facts.text();
      EXPECT_LE(lse_error, 2e-5) << "error of lse: " << facts.text();
      EXPECT_TRUE(result.gaps_intact) << facts.text();
      worst = std::max(worst, ratio);
      worst_lse = std::max(worst_lse, lse_error);
    }
  }
  fmt::print("{} cases: error of o at most {:.3f} of its budget, of lse {:.2g} (budget 2e-5)\n", cases, worst,
             worst_lse);
}

/// What attend::forward gives for the sequence's keys, gathered: a second formulation of the truth.
TEST(Decode, ReferenceIsForwardOfTheGatheredKeys) {
  const auto all_compatible = [](int, int, int, int) { return true; };
  int cases = 0;
  double worst = 0;
  for (const Choice& choice : covering_array(kNumValues, all_compatible, 77)) {
    std::mt19937_64 random(static_cast<std::uint64_t>(cases));
    CacheFacts facts = facts_of(choice, random);
    facts.tree = facts.packed = facts.leftpad = facts.missing_pages = facts.lse_base2 = facts.values_in_keys = false;
    if (facts.head_dim > 512) continue;
    facts.rows.assign(facts.rows.size(), 5);
    const CacheCase problem(facts, random());
    const CacheCase::Result truth = problem.run("reference");
    ++cases;
    const bool is_quantized = facts.cache_dtype.has_value();  // then gathered in float64, which holds all products
    const DType dtype = is_quantized ? DType::kF64 : facts.dtype;
    for (std::int64_t s = 0; s < problem.num_sequences(); ++s) {
      const std::int64_t length = std::max<std::int64_t>(facts.lengths[static_cast<std::size_t>(s)], 0);
      if (facts.lengths[static_cast<std::size_t>(s)] < 0) continue;
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
