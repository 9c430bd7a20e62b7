#include "serving/merge_checks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <sstream>

#include "core/dtype_traits.hpp"
#include "serving/worst.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::string describe(const MergeCase& c) {
  std::ostringstream out;
  out << c.states.size() << " states of " << dtype_name(c.states[0]) << ".. to " << dtype_name(c.dtype) << ", ("
      << c.shape[0] << ", " << c.shape[1] << ", " << c.shape[2] << ", " << c.shape[3] << "), layout " << int(c.layout)
      << ", lse " << c.lse_size << ", none " << c.share_of_none << (c.sinks ? ", sinks" : "")
      << (c.lse_base2 ? ", base 2" : "") << ", seed " << c.seed;
  return out.str();
}

/// The lse of one row in float64 with the natural logarithm, and the row of o.
struct Truth {
  double lse;
  std::vector<double> o;
};

Truth truth_of(const MergeCase& c, const States& states, const double* sink, const Shape& at) {
  const double unit = c.lse_base2 ? std::log(2.0) : 1;
  double highest = sink != nullptr ? *sink : -kInfinity;
  for (const TensorBuffer& lse : states.lse) highest = std::max(highest, unit * lse.at(at[0], at[1], at[2], 0));
  Truth truth = {-kInfinity, std::vector<double>(static_cast<std::size_t>(c.shape[3]))};
  if (highest == -kInfinity) return truth;
  double sum = sink != nullptr ? std::exp(*sink - highest) : 0;
  for (std::size_t n = 0; n < states.o.size(); ++n) {
    const double lse = unit * states.lse[n].at(at[0], at[1], at[2], 0);
    if (lse == -kInfinity) continue;
    sum += std::exp(lse - highest);
    for (std::int64_t col = 0; col < c.shape[3]; ++col) {
      truth.o[col] += std::exp(lse - highest) * states.o[n].at(at[0], at[1], at[2], col);
    }
  }
  for (double& value : truth.o) value /= sum;
  truth.lse = (highest + std::log(sum)) / unit;
  return truth;
}

/// Merges states whose o has one column. All tests of lse run in one call, one per row. lse[n][row] belongs to state n.
std::vector<double> merged_lse(const Merge& merge, const std::vector<std::vector<double>>& lse, std::vector<double>& o,
                               std::optional<double> sink = {}) {
  const auto rows = static_cast<std::int64_t>(lse[0].size());
  States states;
  for (std::size_t n = 0; n < lse.size(); ++n) {
    states.lse.push_back(made(DType::kF32, {1, 1, rows, 1}, [&](auto, auto, auto r, auto) { return lse[n][r]; }));
    states.o.push_back(made(DType::kF32, {1, 1, rows, 1}, [&](auto...) { return double(n) + 1; }));
  }
  const TensorBuffer to(DType::kF32, {1, 1, rows, 1}), to_lse(DType::kF32, {1, 1, rows, 1});
  const TensorBuffer sinks = made(DType::kF64, {1, 1, 1, 1}, [&](auto...) { return sink.value_or(0); });
  MergeParams params;
  if (sink) params.sinks = sinks.view();
  merge(states.views(), to.view(), &to_lse.view(), params);
  o = to.values();
  return to_lse.values();
}

}  // namespace

std::vector<PartialState> States::views() const {
  std::vector<PartialState> all;
  for (std::size_t n = 0; n < o.size(); ++n) all.push_back({o[n].view(), lse[n].view()});
  return all;
}

States make_states(const MergeCase& c) {
  std::mt19937_64 random(c.seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  States states;
  for (const DType dtype : c.states) {
    const TensorBuffer o(dtype, c.shape, {c.layout, 3});
    const TensorBuffer lse(DType::kF32, {c.shape[0], c.shape[1], c.shape[2], 1}, {c.layout, 1});
    o.generate([&](auto...) { return normal(random); });
    lse.generate([&](auto...) { return c.lse_size * normal(random); });
    lse.generate([&](auto b, auto h, auto row, auto) {
      if (uniform(random) >= c.share_of_none) return lse.at(b, h, row, 0);
      for (std::int64_t col = 0; col < c.shape[3]; ++col) o.set(b, h, row, col, kNaN);
      return -kInfinity;
    });
    states.o.push_back(o), states.lse.push_back(lse);
  }
  return states;
}

std::vector<MergeCase> merge_cases() {
  std::vector<MergeCase> all;
  std::uint64_t seed = 0;
  constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16;
  const std::vector<std::vector<DType>> counts = {{kF32},
                                                  {kF16},
                                                  {kBF16},
                                                  {kF32, kF32},
                                                  {kBF16, kF32, kF16},
                                                  std::vector<DType>(17, kF32),
                                                  {kBF16, kBF16},
                                                  std::vector<DType>(100, kF16)};
  for (const std::vector<DType>& of_states : counts) {
    for (const DType dtype : {kF32, kF16, kBF16}) {
      for (const double none : {0.0, 0.4, 1.0}) {
        MergeCase c = {.states = of_states, .dtype = dtype, .share_of_none = none, .seed = ++seed};
        c.sinks = seed % 2 == 0;
        c.sinks_per_batch = seed % 4 == 0;
        c.lse_base2 = seed % 3 == 0;
        c.with_lse = seed % 5 != 0;
        c.layout = static_cast<Layout>(seed % 3);
        c.lse_size = seed % 7 == 0 ? 300 : 3;
        c.shape[3] = std::vector<std::int64_t>{1, 8, 37, 64, 512}[seed % 5];
        all.push_back(c);
      }
    }
  }
  return all;
}

void check_merge(const MergeCase& c, const Merge& merge) {
  const States states = make_states(c);
  const TensorBuffer o(c.dtype, c.shape, {c.layout, 2});
  const TensorBuffer lse(DType::kF32, {c.shape[0], c.shape[1], c.shape[2], 1}, {c.layout, 5});
  const TensorBuffer sinks = made(DType::kF32, {c.sinks_per_batch ? c.shape[0] : 1, c.shape[1], 1, 1},
                                  [](auto b, auto h, auto, auto) { return 0.5 * double(h) - double(b); });
  MergeParams params = {.lse_base2 = c.lse_base2};
  if (c.sinks) params.sinks = sinks.view();
  merge(states.views(), o.view(), c.with_lse ? &lse.view() : nullptr, params);
  Worst of_o, of_lse;
  const core::DTypeTraits traits = core::dtype_traits(c.dtype);
  for (std::int64_t n = 0; n < c.shape[0] * c.shape[1] * c.shape[2]; ++n) {
    const Shape at = {n / (c.shape[1] * c.shape[2]), n / c.shape[2] % c.shape[1], n % c.shape[2], 0};
    const double sink = c.sinks ? sinks.at(c.sinks_per_batch ? at[0] : 0, at[1], 0, 0) : 0;
    const Truth truth = truth_of(c, states, c.sinks ? &sink : nullptr, at);
    for (std::int64_t col = 0; col < c.shape[3]; ++col) {
      // merge() sums in float64. It rounds the sum once to float32 and then once to the dtype.
      const double want = truth.o[col];
      const double allowed =
          (traits.unit_roundoff + 0x1.01p-24) * std::abs(want) + traits.smallest_normal * traits.unit_roundoff + 1e-13;
      of_o.see(o.at(at[0], at[1], at[2], col), want, allowed);
    }
    if (c.with_lse) of_lse.see(lse.at(at[0], at[1], at[2], 0), truth.lse, 0x1.01p-24 * std::abs(truth.lse) + 1e-13);
  }
  std::printf("%s\n  o %.3g/%.3g, lse %.3g/%.3g\n", describe(c).c_str(), of_o.error, of_o.budget, of_lse.error,
              of_lse.budget);
  EXPECT_TRUE(of_o.in_budget());
  EXPECT_TRUE(of_lse.in_budget());
  EXPECT_TRUE(o.gaps_intact() && lse.gaps_intact());
}

void check_one_state_keeps_its_bits(const Merge& merge) {
  const MergeCase c = {.states = {DType::kF32}, .shape = {2, 3, 9, 37}, .lse_size = 1e4, .seed = 5};
  const States states = make_states(c);
  for (const bool base2 : {false, true}) {
    const TensorBuffer o(DType::kF32, c.shape), lse(DType::kF32, {2, 3, 9, 1});
    merge(states.views(), o.view(), &lse.view(), {.lse_base2 = base2});
    expect_same_bits("o", o, copy_of(states.o[0]));
    expect_same_bits("lse", lse, copy_of(states.lse[0]));
  }
}

void check_merge_into_a_state(const Merge& merge) {
  const MergeCase c = {.states = {DType::kF32, DType::kBF16, DType::kF32}, .share_of_none = 0.3, .seed = 9};
  const States states = make_states(c);
  const TensorBuffer o(DType::kF32, c.shape), lse(DType::kF32, {2, 3, 7, 1});
  merge(states.views(), o.view(), &lse.view(), {});
  merge(states.views(), states.o[2].view(), &states.lse[2].view(), {});
  expect_same_bits("o", states.o[2], o);
  expect_same_bits("lse", states.lse[2], lse);
}

void check_ends_of_float32(const Merge& merge) {
  const double largest = std::numeric_limits<float>::max();
  std::vector<double> o;
  const std::vector<double> lse = merged_lse(merge,
                                             {{largest, -largest, kInfinity, kInfinity, kNaN, 1e-45, -kInfinity},
                                              {-largest, -largest, 5, kInfinity, 1, 0, largest}},
                                             o);
  const std::vector<double> want_lse = {largest, -largest, kInfinity, kInfinity, kNaN, std::log(2.0), largest};
  expect_near("lse", lse, want_lse, 0x1p-24 / largest);  // every expected value except log 2 is exact
  expect_near("o", o, {1, 1.5, 1, 1.5, kNaN, 1.5, 2}, 0);
}

void check_merge_of_nothing(const Merge& merge) {
  std::vector<double> o;
  EXPECT_EQ(merged_lse(merge, {{-kInfinity}, {-kInfinity}}, o), std::vector<double>{-kInfinity});
  EXPECT_EQ(o[0], 0);
  EXPECT_EQ(merged_lse(merge, {{-kInfinity}, {-kInfinity}}, o, 2.0), std::vector<double>{2});
  EXPECT_EQ(o[0], 0);
  EXPECT_TRUE(std::isnan(merged_lse(merge, {{-kInfinity}}, o, kNaN)[0]));
  EXPECT_EQ(merged_lse(merge, {{1}}, o, kInfinity), std::vector<double>{kInfinity});
  EXPECT_EQ(o[0], 0);
}

}  // namespace attend::test
