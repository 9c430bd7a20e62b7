#include "serving/decode_cases.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "support/covering_array.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Factors of the covering array. Each factor is one property of a decode call.
enum Factor {
  kDTypes,
  kColumns,
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
};

std::vector<int> num_values(const DecodeValues& values) {
  const auto size = [](const auto& list) { return static_cast<int>(list.size()); };
  const bool is_typed = values.columns.front().dtype.has_value();
  return {is_typed ? 1 : 3,
          size(values.columns),
          size(values.groups),
          size(values.page_sizes),
          size(values.layouts),
          size(values.rows),
          4,
          2,
          2,
          2,
          6,
          2,
          2,
          is_typed ? 1 : 4,
          5};
}

using Random = std::mt19937_64;

std::int64_t below(Random& random, std::int64_t n) {
  return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random);
}

void set_types(CacheFacts& f, const Choice& choice, const DecodeValues::Columns& columns) {
  constexpr std::array kTypes = {DType::kF32, DType::kF16, DType::kBF16};
  f.head_dim = columns.k;
  f.head_dim_v = columns.v;
  f.values_in_keys = f.head_dim == 576;
  f.dtype = columns.dtype.value_or(kTypes[choice[kDTypes]]);
  f.cache_dtype = columns.cache_dtype;
  if (choice[kCaches] >= 2) f.cache_dtype = choice[kCaches] == 2 ? DType::kF8E4M3 : DType::kI8;
  if (f.cache_dtype) f.descales = static_cast<Descales>(choice[kDescales]);
}

void set_rows_and_lengths(CacheFacts& f, const Choice& choice, const DecodeValues& values, Random& random) {
  const DecodeValues::Rows& rows = values.rows[choice[kRows]];
  f.packed = rows.kind == DecodeValues::Rows::Kind::kPacked;
  f.tree = rows.kind == DecodeValues::Rows::Kind::kTree;
  const std::int64_t sequences = 1 + below(random, 4);
  for (std::int64_t s = 0; s < sequences; ++s) f.rows.push_back(f.packed ? below(random, rows.count) : rows.count);
  f.capacity = 1 + below(random, 700);
  if (rows.count * f.group > values.most_rows) {
    f.num_heads_k = 1;
  } else if (values.long_capacity > 0 && below(random, 4) == 0) {
    f.num_heads_k = 1;
    f.capacity = 1 + below(random, values.long_capacity);
  }
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::array<std::int64_t, 6> lengths = {0, 1, f.capacity, below(random, f.capacity + 1), -1, f.capacity + 9};
    f.lengths.push_back(s == 0 ? lengths[choice[kLengths]] : lengths[below(random, 4)]);
  }
}

CacheFacts facts_of(const Choice& choice, const DecodeValues& values, Random& random) {
  CacheFacts f;
  set_types(f, choice, values.columns[choice[kColumns]]);
  f.num_heads_k = f.values_in_keys ? 1 : 1 + below(random, 3);
  f.group = values.groups[choice[kGroups]];
  f.page_size = values.page_sizes[choice[kKinds]];
  f.batch_idx = choice[kKinds] % 2 == 1;
  f.layout = values.layouts[choice[kLayouts]];
  set_rows_and_lengths(f, choice, values, random);
  f.causal = choice[kMasks] != 1;
  if (choice[kMasks] == 2) f.window_left = below(random, 300);
  if (choice[kMasks] == 3) {
    f.causal = false;
    f.window_left = below(random, 40);
    f.window_right = below(random, 10);
  }
  f.softcap = choice[kSoftcaps] == 0 ? 0 : 1.5;
  f.alibi = choice[kAlibis] == 1;
  f.sinks = choice[kSinkses] == 1;
  f.leftpad = choice[kLeftpads] == 1;
  f.lse_base2 = choice[kBases] == 1;
  f.missing_pages = f.page_size != 0 && below(random, 4) == 0;
  return f;
}

/// Returns the largest error of an element of o, divided by the error that is allowed for this element.
double largest_ratio(const CacheCase::Result& result, const CacheCase::Result& truth, const CacheFacts& facts,
                     Products products) {
  const double unit = facts.dtype == DType::kF32 ? 0 : unit_roundoff(facts.dtype);
  const auto columns = static_cast<std::size_t>(facts.head_dim_v);
  double largest = 0, of_row = 0;
  for (std::size_t i = 0; i < truth.o.size(); ++i) {
    // Rounding p moves an element by up to a fraction of the row's largest value, even if the element is small.
    if (i % columns == 0) {
      of_row = 0;
      for (std::size_t c = i; c < i + columns && products == Products::kHalf; ++c) {
        if (std::isfinite(truth.o[c])) of_row = std::max(of_row, std::abs(truth.o[c]));
      }
    }
    // Both elements stay NaN, because the row belongs to no sequence.
    if (std::isnan(truth.o[i]) && std::isnan(result.o[i])) continue;
    const double budget = kF32ForwardAbsolute + 2 * unit * (std::abs(truth.o[i]) + of_row);
    const double ratio = std::abs(result.o[i] - truth.o[i]) / budget;
    largest = std::isnan(ratio) ? kInfinity : std::max(largest, ratio);
  }
  return largest;
}

/// Returns the largest error of lse, divided by the allowed error. The allowance grows with |lse|, because scores are
/// rounded to float32. Scores can be as large as lse if ALiBi slopes are combined with a long cache.
double largest_lse_ratio(const CacheCase::Result& result, const CacheCase::Result& truth) {
  constexpr double kAbsolute = 2e-5;
  double largest = 0;
  for (std::size_t i = 0; i < truth.lse.size(); ++i) {
    if (std::isnan(truth.lse[i]) && std::isnan(result.lse[i])) continue;
    if (truth.lse[i] == result.lse[i]) continue;  // for example, both are -inf
    const double budget = kAbsolute + kLseMagnitude * std::abs(truth.lse[i]);
    const double ratio = std::abs(result.lse[i] - truth.lse[i]) / budget;
    largest = std::isnan(ratio) ? kInfinity : std::max(largest, ratio);
  }
  return largest;
}

}  // namespace

std::vector<DecodeCase> decode_cases(const DecodeValues& values, int least, std::uint64_t first_seed) {
  // Rows whose length is not a multiple of 16 bytes may need other kernels. To compile fewer kernels, only every fourth
  // entry of `columns` is combined with such a layout.
  const auto compatible = [&](int first, int of_first, int second, int of_second) {
    const bool is_odd = second == kLayouts && values.layouts[of_second] == Layout::kPadded;
    return first != kColumns || !is_odd || of_first % 4 == 0;
  };
  std::vector<DecodeCase> all;
  for (std::uint64_t round = first_seed; static_cast<int>(all.size()) < least; ++round) {
    for (const Choice& choice : covering_array(num_values(values), compatible, round)) {
      Random random(1000 * round + all.size());
      CacheFacts facts = facts_of(choice, values, random);
      all.push_back({std::move(facts), random(), choice[kColumns]});
    }
  }
  return all;
}

std::string DecodeErrors::text() const {
  return fmt::format("{} cases: error of o at most {:.3f} of its budget, of lse {:.3f}\n  o: {}\n  lse: {}\n", cases, o,
                     lse, o_case, lse_case);
}

void check_decode(const DecodeCase& c, const Decode& decode, DecodeErrors& errors, Products products) {
  const CacheCase problem(c.facts, c.seed);
  const CacheCase::Result truth = problem.run("reference");
  const CacheCase::Result result = problem.run(decode);
  const double of_o = largest_ratio(result, truth, c.facts, products);
  const double of_lse = largest_lse_ratio(result, truth);
  EXPECT_LE(of_o, 1) << "error of o over its budget: " << c.facts.text();
  EXPECT_LE(of_lse, 1) << "error of lse over its budget: " << c.facts.text();
  EXPECT_TRUE(result.gaps_intact) << c.facts.text();
  ++errors.cases;
  if (of_o > errors.o) errors.o = of_o, errors.o_case = c.facts.text();
  if (of_lse > errors.lse) errors.lse = of_lse, errors.lse_case = c.facts.text();
}

}  // namespace attend::test
