// Tests the decode kernels without a GPU. Compares them with float64. Expects the same bits for any grid, batch and
// order of threads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "emulator/emulated_decode.hpp"
#include "emulator/emulated_kernel.hpp"
#include "serving/decode_cases.hpp"
#include "serving/invariance_checks.hpp"
#include "serving/quantized_checks.hpp"

namespace attend::test {
namespace {

struct Kind {
  const char* name;
  DecodeValues::Columns columns;
};

DecodeValues values(const DecodeValues::Columns& columns) {
  using enum DecodeValues::Rows::Kind;
  return {
      .columns = {columns},
      .groups = {1, 4, 5, 8, 16},
      .page_sizes = {0, 0, 16, 64, 1, 3},
      .layouts = {Layout::kBHSD, Layout::kBSHD, Layout::kPadded},
      .rows = {{1}, {1}, {2}, {4}, {7, kTree}, {6, kPacked}},
      .long_capacity = 2300,
      .most_rows = 64,
  };
}

/// Returns values for cases that need only three kernels, or five if rows cannot be copied in 16-byte chunks.
DecodeValues few_values(const DecodeValues::Columns& columns) {
  using enum DecodeValues::Rows::Kind;
  DecodeValues few = values(columns);
  few.groups = {5};
  few.rows = {{1}, {7, kTree}, {6, kPacked}};
  if (columns.k % 8 == 0) few.layouts.pop_back();
  return few;
}

std::int64_t longest(const DecodeCase& c) {
  return *std::max_element(c.facts.lengths.begin(), c.facts.lengths.end());
}

/// Builds at least `least` cases and sorts them by length. If there are more than `most` cases, checks about `most` of
/// them, evenly spaced from the longest to the shortest.
void check(const DecodeValues& of, int least, int most) {
  DecodeErrors errors;
  std::vector<DecodeCase> cases = decode_cases(of, least);
  std::stable_sort(cases.begin(), cases.end(),
                   [](const DecodeCase& a, const DecodeCase& b) { return longest(a) > longest(b); });
  const std::size_t step = std::max<std::size_t>(1, cases.size() / static_cast<std::size_t>(most));
  const Products products = of.columns[0].dtype == DType::kF32 ? Products::kF32 : Products::kHalf;
  for (std::size_t n = 0; n < cases.size(); n += step) {
    const EmulatedGpu gpu = {.multiprocessors = 1 + static_cast<int>(n) % 7,
                             .seed = static_cast<unsigned>(n),
                             .has_copy_engine = n / step % 2 == 0};
    check_decode(cases[n], emulated_decode(gpu), errors, products);
  }
  fmt::print("{}{} kernels\n", errors.text(), emulated_kernels());
}

/// Skips the test if the machine has no suitable compiler.
class EmulatedTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!why_no_emulation().empty()) GTEST_SKIP() << why_no_emulation();
  }
};
class EmulatedDecode : public EmulatedTest, public testing::WithParamInterface<Kind> {};

TEST_P(EmulatedDecode, SomeCasesAgainstFloat64) {
  check(few_values(GetParam().columns), 1, 8);
}

INSTANTIATE_TEST_SUITE_P(Kinds, EmulatedDecode,
                         testing::Values(Kind{"bf16", {128, 128, DType::kBF16}}, Kind{"odd_f32", {36, 36, DType::kF32}},
                                         Kind{"f8e4m3", {64, 64, DType::kF16, DType::kF8E4M3}}),
                         [](const auto& kind) { return std::string(kind.param.name); });

class LongEmulatedDecode : public EmulatedTest, public testing::WithParamInterface<Kind> {};

TEST_P(LongEmulatedDecode, CoveringArrayAgainstFloat64) {
  check(values(GetParam().columns), 40, 40);
}

INSTANTIATE_TEST_SUITE_P(Kinds, LongEmulatedDecode,
                         testing::Values(Kind{"bf16", {128, 128, DType::kBF16}}, Kind{"f16", {64, 64, DType::kF16}},
                                         Kind{"f32", {64, 64, DType::kF32}},
                                         Kind{"f8e4m3", {128, 128, DType::kBF16, DType::kF8E4M3}},
                                         Kind{"i8", {64, 64, DType::kF16, DType::kI8}},
                                         Kind{"f32_of_i8", {40, 40, DType::kF32, DType::kI8}},
                                         Kind{"odd", {72, 40, DType::kBF16}}, Kind{"odd_f16", {36, 36, DType::kF16}},
                                         Kind{"wide", {256, 256, DType::kBF16}}, Kind{"mla", {576, 512, DType::kBF16}},
                                         Kind{"mla_f8e4m3", {576, 512, DType::kBF16, DType::kF8E4M3}},
                                         Kind{"f32_512", {512, 512, DType::kF32}}),
                         [](const auto& kind) { return std::string(kind.param.name); });

class EmulatedGrid : public EmulatedTest {
 protected:
  /// Expects the same bits on GPUs with the given numbers of multiprocessors as on a GPU with one multiprocessor.
  static void check_grids(const CacheFacts& facts, std::initializer_list<int> multiprocessors) {
    CacheCase problem(facts, 7);
    const CacheCase::Result first = problem.run(emulated_decode({.multiprocessors = 1}));
    for (const int n : multiprocessors) {
      const EmulatedGpu gpu = {.multiprocessors = n,
                               .seed = static_cast<unsigned>(n),
                               .looks_large = n != 7,
                               .many_units = n == 7,
                               .has_copy_engine = n > 3};
      const CacheCase::Result other = problem.run(emulated_decode(gpu));
      for (std::int64_t s = 0; s < problem.num_sequences(); ++s) {
        EXPECT_EQ(problem.bytes_of_sequence(first, s), problem.bytes_of_sequence(other, s))
            << n << " multiprocessors, sequence " << s;
      }
    }
  }
};

/// Runs the same call on GPUs of many sizes, with many orders of threads.
TEST_F(EmulatedGrid, BitsAreThoseOfAnyGridAndOrder) {
  CacheFacts facts = long_facts(DType::kBF16);
  facts.lengths = {2500, 1, 70, 300};
  check_grids(facts, {2, 7, 26});
}

/// In a causal tile, early rows see fewer keys than late rows. The last tree nodes of a range of keys may therefore
/// have no keys.
TEST_F(EmulatedGrid, BitsOfTilesThatEndEarly) {
  check_grids(
      {.dtype = DType::kBF16, .num_heads_k = 1, .group = 8, .packed = true, .rows = {1, 16}, .lengths = {1, 257}},
      {3, 7, 26});
}

/// Short sequences must have the same bits as in a call without long sequences. The kernel must not write the rows of
/// long sequences.
TEST_F(EmulatedGrid, LongSequencesAreLeftToAnotherKernel) {
  CacheFacts facts = invariance_facts(DType::kBF16);
  facts.head_dim = facts.head_dim_v = 64;
  facts.packed = true;
  facts.rows = {1, 70, 0, 64, 3, 90, 66};
  facts.lengths = {900, 300, 40, 64, 1500, 20, -1};
  const CacheCase problem(facts, 12);
  const CacheCase::Result wanted = problem.run(emulated_decode());
  for (const int multiprocessors : {1, 2, 7, 40}) {
    const EmulatedGpu gpu = {
        .multiprocessors = multiprocessors, .has_copy_engine = multiprocessors > 1, .leaves_long_rows = true};
    const CacheCase::Result result = problem.run(emulated_decode(gpu));
    for (const std::int64_t s : {0, 3, 4, 6}) {
      EXPECT_EQ(problem.bytes_of_sequence(result, s), problem.bytes_of_sequence(wanted, s)) << "sequence " << s;
    }
    const std::int64_t rows = problem.q.shape()[2], columns = facts.head_dim_v;
    for (const std::int64_t s : {1, 5}) {
      for (std::int64_t i = problem.cu_seqlens_q[s]; i < problem.cu_seqlens_q[s + 1]; ++i) {
        for (std::int64_t h = 0; h < problem.q.shape()[1]; ++h) {
          EXPECT_TRUE(std::isnan(result.o[static_cast<std::size_t>((h * rows + i) * columns)])) << s << " row " << i;
          EXPECT_TRUE(std::isnan(result.lse[static_cast<std::size_t>(h * rows + i)])) << s << " row " << i;
        }
      }
    }
  }
}

/// Blocks start before the index arrays have their final values. The results must not depend on the earlier values.
class EmulatedLateArrays : public EmulatedTest {
 protected:
  static void check(const CacheFacts& facts, unsigned seed) {
    const CacheCase problem(facts, 12 + seed);
    const CacheCase::Result wanted = problem.run(emulated_decode());
    for (const int n : {1, 3, 8}) {
      const EmulatedGpu gpu = {.multiprocessors = n, .seed = seed, .has_copy_engine = n > 1, .late_arrays = true};
      const CacheCase::Result result = problem.run(emulated_decode(gpu));
      for (std::int64_t s = 0; s < problem.num_sequences(); ++s) {
        EXPECT_EQ(problem.bytes_of_sequence(result, s), problem.bytes_of_sequence(wanted, s))
            << "case " << seed << ", " << n << " multiprocessors, sequence " << s;
      }
    }
  }
};

TEST_F(EmulatedLateArrays, OfManyKinds) {
  for (unsigned n = 0; n < 24; ++n) {
    CacheFacts facts = invariance_facts(DType::kBF16);
    facts.page_size = n % 3 == 0 ? 0 : n % 3 == 1 ? 16 : 3;
    facts.packed = n % 4 == 1;
    facts.group = n % 2 == 0 ? 4 : 5;
    facts.missing_pages = n % 7 == 0 && facts.page_size > 0;
    facts.values_in_keys = n % 11 == 0;
    facts.batch_idx = n % 2 != 0;
    facts.leftpad = n % 6 > 2;
    facts.rows.clear();
    facts.lengths.clear();
    for (unsigned s = 0; s < 1 + n * 7 % 9; ++s) {
      facts.rows.push_back(facts.packed ? (s == 0 ? 3 : (n + s) % 4) : 1 + (n % 8 == 3 ? 1 : 0));
      const std::int64_t length = (n * 37 + s * 11) % 7 * ((n + s) % 3) * 50 + 2;
      facts.lengths.push_back((n + s) % 5 == 4 ? -1 : length);
    }
    check(facts, n);
  }
}

/// The blocks make their schedule from the earlier lengths. That schedule ends after the last sequence.
TEST_F(EmulatedLateArrays, SequencesThatBecomeEmpty) {
  for (unsigned n = 0; n < 20; ++n) {
    CacheFacts facts = invariance_facts(DType::kBF16);
    facts.page_size = n % 2 == 0 ? 0 : 16;
    facts.packed = false;
    const unsigned sequences = 2 + n % 5;
    facts.rows = std::vector<std::int64_t>(sequences, 1);
    facts.lengths.clear();
    for (unsigned s = 0; s < sequences; ++s) {
      facts.lengths.push_back(s < sequences / 2 ? (n * 37 + s * 11) % 5 * 100 : 0);
    }
    check(facts, n);
  }
}

/// Sums are combined in a tree over chunks of keys. If a long work item is divided into parts, each part must write
/// only a few nodes of the tree, no matter at which chunk the part begins.
TEST_F(EmulatedGrid, NodesOfALongSequence) {
  CacheFacts facts = {.dtype = DType::kBF16, .num_heads_k = 1, .group = 1, .rows = {1}, .lengths = {8168 * 64}};
  facts.head_dim = facts.head_dim_v = 16;
  check_grids(facts, {2});
}

/// There are more sequences than a warp reads at once, and their number is not a multiple of the warp size.
TEST_F(EmulatedGrid, BitsOfManySequences) {
  constexpr int kSequences = 70;
  std::vector<std::int64_t> lengths;
  for (int s = 0; s < kSequences; ++s) lengths.push_back(s % 9 == 3 ? -1 : s % 11 == 0 ? 0 : s * 97 % 700);
  check_grids({.dtype = DType::kBF16,
               .group = 4,
               .page_size = 16,
               .rows = std::vector<std::int64_t>(kSequences, 1),
               .lengths = lengths,
               .batch_idx = true,
               .leftpad = true},
              {3, 7, 60, 400});
}

class LongEmulatedBits : public EmulatedTest, public testing::WithParamInterface<DType> {};

TEST_P(LongEmulatedBits, SequencesAloneAndInABatch) {
  check_sequences_alone_and_in_a_batch(GetParam(), emulated_decode());
}

TEST_P(LongEmulatedBits, KeysThatBeginLate) {
  for (const int n : {5, 23}) check_keys_that_begin_late(GetParam(), emulated_decode({.multiprocessors = n}));
}

TEST_P(LongEmulatedBits, PageSizes) {
  check_page_sizes(long_facts(GetParam()), emulated_decode({.multiprocessors = 5, .has_copy_engine = true}));
}

TEST_P(LongEmulatedBits, RowsInAnyChunks) {
  check_rows_in_any_chunks(long_facts(GetParam()), emulated_decode({.multiprocessors = 4, .has_copy_engine = true}));
}

TEST_P(LongEmulatedBits, NonFiniteKeysReachTheirRowsOnly) {
  check_nonfinite_keys(GetParam(), emulated_decode());
}

INSTANTIATE_TEST_SUITE_P(DTypes, LongEmulatedBits, testing::Values(DType::kBF16, DType::kF32, DType::kF8E4M3),
                         [](const auto& dtype) { return dtype_name(dtype.param); });

class LongEmulatedNaN : public EmulatedTest {};
TEST_F(LongEmulatedNaN, InAnyColumnOfAnUnseenValue) {
  check_nan_in_any_column(DType::kBF16, {128, 40}, emulated_decode());
}

class LongEmulatedInfinity : public EmulatedTest {};
TEST_F(LongEmulatedInfinity, TimesNoWeightIsNaN) {
  check_infinity_times_no_weight(DType::kF16, 64, emulated_decode());
}

class LongEmulatedEightBits : public EmulatedTest {};
TEST_F(LongEmulatedEightBits, EveryElementAndFactor) {
  for (const DType dtype : {DType::kF8E4M3, DType::kI8}) {
    check_every_element(dtype, {64}, emulated_decode());
    check_shapes_of_factors(dtype, false, emulated_decode());
    check_factors_of_some_rows(dtype, emulated_decode());
  }
}

}  // namespace
}  // namespace attend::test
