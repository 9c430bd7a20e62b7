// Tests the decode kernels that multiply with wgmma, without a GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "emulator/emulated_decode.hpp"
#include "emulator/emulated_kernel.hpp"
#include "serving/decode_cases.hpp"
#include "serving/invariance_checks.hpp"

namespace attend::test {
namespace {

/// Skips the test if the machine has no suitable compiler.
class EmulatedWgmma : public testing::Test {
 protected:
  void SetUp() override {
    if (!why_no_emulation().empty()) GTEST_SKIP() << why_no_emulation();
  }
};
class LongEmulatedWgmma : public EmulatedWgmma {};

/// Returns calls that use wgmma. Together they have every option, and non-finite keys and values.
CacheFacts many_rows(std::mt19937& random, int n) {
  const auto one_of = [&](std::initializer_list<std::int64_t> all) { return all.begin()[random() % all.size()]; };
  CacheFacts f;
  f.dtype = n % 2 == 0 ? DType::kBF16 : DType::kF16;
  f.head_dim = f.head_dim_v = 64;
  if (n % 6 == 1) f.head_dim = 72, f.head_dim_v = 40;
  if (n % 6 == 2) f.head_dim_v = 128;
  f.values_in_keys = n % 6 == 3;
  f.num_heads_k = one_of({1, 2});
  f.group = one_of({1, 5, 33, 40});
  const std::int64_t most = f.group == 1 ? 70 : one_of({7, 9, 14});
  f.page_size = one_of({0, 8, 16, 64});
  f.packed = n % 3 == 0;
  f.rows = f.packed ? std::vector<std::int64_t>{2, 0, most, 1} : std::vector<std::int64_t>(4, most);
  f.lengths = {static_cast<std::int64_t>(random() % 1500), one_of({-1, 0, 1, 65}), 640, 1300};
  f.batch_idx = n % 4 == 0;
  f.leftpad = n % 5 == 0;
  f.tree = n % 7 == 0 && most <= 64;
  f.causal = f.tree || n % 4 != 1;
  if (!f.tree && n % 3 == 1) f.window_left = one_of({5, 300});
  if (!f.causal) f.window_right = one_of({-1, 20});
  if (n % 5 == 2) f.softcap = 5;
  f.alibi = n % 4 == 2;
  f.sinks = n % 3 == 2;
  f.missing_pages = f.page_size > 0 && n % 5 == 1;
  return f;
}

void set_strange(CacheCase& problem, std::mt19937& random) {
  for (int i = 0; i < 8; ++i) {
    const auto s = static_cast<std::int64_t>(2 + random() % 2);
    // Distance of the key from the end of the sequence. If the distance is small, only some rows see the key.
    const std::int64_t behind = i % 2 == 0 ? random() % 12 : random() % 600;
    const auto at = problem.place(s, problem.facts().lengths[static_cast<std::size_t>(s)] - 1 - behind);
    if (!at) continue;
    const double value = i % 3 == 0 ? std::nan("") : i % 3 == 1 ? INFINITY : -INFINITY;
    auto& tensor = i % 4 == 3 || problem.facts().values_in_keys ? problem.k : problem.v;
    tensor.set(at->block, 0, at->row, static_cast<std::int64_t>(random() % 40), value);
  }
}

/// Replaces every NaN by one number, because the payload of a NaN differs between kernels.
std::vector<double> comparable(std::vector<double> values) {
  std::replace_if(
      values.begin(), values.end(), [](double x) { return std::isnan(x); }, 12345.678);
  return values;
}

/// Tiles that use wgmma must have the same bits as tiles that do not, on any GPU.
void check_bits(int first, int end) {
  for (int n = first; n < end; ++n) {
    std::mt19937 random(static_cast<unsigned>(n));
    CacheCase problem(many_rows(random, n), static_cast<std::uint64_t>(30 + n));
    if (n % 2 == 1) set_strange(problem, random);
    const CacheCase::Result wanted = problem.run(emulated_decode());
    for (const int multiprocessors : {3, 11}) {
      const EmulatedGpu gpu = {.max_smem = n % 4 == 3 ? 128 * 1024 : EmulatedGpu().max_smem,
                               .multiprocessors = multiprocessors,
                               .seed = static_cast<unsigned>(n),
                               .has_copy_engine = true,
                               .has_wgmma = true,
                               .late_arrays = multiprocessors == 3};
      const CacheCase::Result result = problem.run(emulated_decode(gpu));
      EXPECT_TRUE(result.gaps_intact) << problem.facts().text();
      EXPECT_EQ(comparable(result.o), comparable(wanted.o)) << problem.facts().text() << multiprocessors;
      EXPECT_EQ(comparable(result.lse), comparable(wanted.lse)) << problem.facts().text() << multiprocessors;
    }
  }
}

TEST_F(EmulatedWgmma, BitsOfTiles) {
  check_bits(0, 4);
}
TEST_F(LongEmulatedWgmma, BitsOfTiles) {
  check_bits(4, 12);
}
/// Returns calls with long rows of values and more than 16 heads per group. Two warpgroups then each compute half of
/// the columns.
CacheFacts many_rows_of_long_values(std::mt19937& random, int n) {
  CacheFacts f = many_rows(random, n);
  f.num_heads_k = 1;
  f.values_in_keys = true;
  f.head_dim = n % 4 == 3 ? 320 : 576;
  f.head_dim_v = f.head_dim - 64;
  f.group = n % 3 == 0 ? 64 : n % 3 == 1 ? 17 : 40;
  if (n % 4 == 1) f.page_size = n % 8 == 1 ? 1 : 3;
  const std::int64_t most = 1 + n % 3;
  f.rows = f.packed ? std::vector<std::int64_t>{2, 0, most, 1} : std::vector<std::int64_t>(4, most);
  f.lengths = {static_cast<std::int64_t>(random() % 3000), 65, 600, 1700};
  return f;
}

EmulatedGpu gpu_of(int multiprocessors, int seed) {
  return {.multiprocessors = multiprocessors,
          .seed = static_cast<unsigned>(seed),
          .has_copy_engine = true,
          .has_wgmma = true,
          .late_arrays = multiprocessors == 3};
}

void check_halves_against_float64(int first, int end) {
  DecodeErrors errors;
  for (int n = first; n < end; ++n) {
    std::mt19937 random(static_cast<unsigned>(n));
    const DecodeCase one = {many_rows_of_long_values(random, n), static_cast<std::uint64_t>(n), 0};
    check_decode(one, emulated_decode(gpu_of(1 + n % 5, n)), errors, Products::kHalf);
  }
  fmt::print("{}", errors.text());
}

void check_bits_of_halves(int first, int end) {
  for (int n = first; n < end; ++n) {
    std::mt19937 random(static_cast<unsigned>(n));
    CacheCase problem(many_rows_of_long_values(random, n), static_cast<std::uint64_t>(30 + n));
    if (n % 2 == 1) set_strange(problem, random);
    const CacheCase::Result wanted = problem.run(emulated_decode(gpu_of(1, n)));
    for (const int multiprocessors : {3, 11}) {
      const CacheCase::Result result = problem.run(emulated_decode(gpu_of(multiprocessors, n)));
      EXPECT_EQ(comparable(result.o), comparable(wanted.o)) << problem.facts().text() << multiprocessors;
      EXPECT_EQ(comparable(result.lse), comparable(wanted.lse)) << problem.facts().text() << multiprocessors;
    }
  }
}

/// Non-finite values must reach the same rows as in kernels without wgmma.
void check_nonfinite_values_of_halves(int first, int end) {
  for (int n = first; n < end; ++n) {
    std::mt19937 random(static_cast<unsigned>(n));
    CacheCase problem(many_rows_of_long_values(random, n), static_cast<std::uint64_t>(60 + n));
    set_strange(problem, random);
    const CacheCase::Result wanted = problem.run(emulated_decode());
    const CacheCase::Result result = problem.run(emulated_decode(gpu_of(2, n)));
    ASSERT_EQ(wanted.o.size(), result.o.size());
    for (std::size_t i = 0; i < wanted.o.size(); ++i) {
      const double x = wanted.o[i], y = result.o[i];
      const bool alike = std::isfinite(x) ? std::isfinite(y) : std::isnan(x) ? std::isnan(y) : x == y;
      ASSERT_TRUE(alike) << problem.facts().text() << i << ": " << y << ", not " << x;
    }
  }
}

/// Returns a call with 20 heads. Only columns 300 and 301 of the keys affect the scores, because q is 0 in the other
/// columns. All values are 1.
CacheFacts two_columns(DType dtype, std::int64_t length) {
  CacheFacts f;
  f.dtype = dtype;
  f.num_heads_k = 1, f.group = 20;
  f.head_dim = 320, f.head_dim_v = 256, f.values_in_keys = true;
  f.rows = {1}, f.lengths = {length};
  return f;
}
void set_columns(CacheCase& problem, double q_300, double q_301, double (*k_300)(std::int64_t),
                 double (*k_301)(std::int64_t)) {
  for (std::int64_t c = 0; c < 320; ++c) {
    for (std::int64_t h = 0; h < 20; ++h) problem.q.set(0, h, 0, c, c == 300 ? q_300 : c == 301 ? q_301 : 0.0);
    for (std::int64_t j = 0; j < problem.facts().lengths[0]; ++j) {
      const auto at = problem.place(0, j);
      problem.k.set(at->block, 0, at->row, c, c == 300 ? k_300(j) : c == 301 ? k_301(j) : 1.0);
    }
  }
}

/// Near 2^27, neighbouring float32 numbers differ by 16. This difference exceeds the amount by which the stored row
/// maximum may lag behind the true one.
TEST_F(EmulatedWgmma, LargeScores) {
  CacheCase problem(two_columns(DType::kF16, 130), 5);
  set_columns(
      problem, 60000.0, 128.0, [](std::int64_t) { return 27744.0; },
      [](std::int64_t j) { return j == 70  ? 3.0
                                  : j < 64 ? 1.0
                                           : -30000.0; });
  for (const double x : problem.run(emulated_decode(gpu_of(1, 1))).o) EXPECT_NEAR(x, 1.0, 0.01);
}
/// An infinite score must not be treated like the score of a hidden key.
TEST_F(EmulatedWgmma, InfiniteScores) {
  CacheCase problem(two_columns(DType::kBF16, 70), 5);
  set_columns(
      problem, 0x1p63, 0.0, [](std::int64_t j) { return j == 3 ? 0x1.fp64 : 1.0; }, [](std::int64_t) { return 1.0; });
  const Decode with_scale = [](const DecodeCall& call) {
    DecodeCall scaled = call;
    scaled.params.scale = 1.0;
    emulated_decode(gpu_of(1, 1))(scaled);
  };
  for (const double x : problem.run(with_scale).o) EXPECT_TRUE(std::isnan(x)) << x;
}

TEST_F(EmulatedWgmma, HalvesOfColumns) {
  check_halves_against_float64(0, 2);
  check_bits_of_halves(1, 2);
  check_nonfinite_values_of_halves(1, 2);
}
TEST_F(LongEmulatedWgmma, HalvesOfColumnsAgainstFloat64) {
  check_halves_against_float64(2, 14);
}
TEST_F(LongEmulatedWgmma, BitsOfHalvesOfColumns) {
  check_bits_of_halves(2, 8);
}
/// The sequences are long enough for several levels of the tree that combines chunks of keys.
TEST_F(LongEmulatedWgmma, LongSequencesOfHalvesOfColumns) {
  CacheFacts facts = two_columns(DType::kBF16, 10300);
  facts.rows = {2, 2, 2}, facts.lengths = {10300, 8193, 4095};
  DecodeErrors errors;
  check_decode({facts, 3, 0}, emulated_decode(gpu_of(6, 1)), errors, Products::kHalf);
  const CacheCase problem(facts, 4);
  const CacheCase::Result wanted = problem.run(emulated_decode(gpu_of(1, 1)));
  for (const int multiprocessors : {4, 13, 40}) {
    EXPECT_EQ(problem.run(emulated_decode(gpu_of(multiprocessors, 2))).o_bytes, wanted.o_bytes) << multiprocessors;
  }
}
TEST_F(LongEmulatedWgmma, NonfiniteValuesOfHalvesOfColumns) {
  check_nonfinite_values_of_halves(2, 8);
}
TEST_F(LongEmulatedWgmma, PageSizesOfHalvesOfColumns) {
  CacheFacts facts = long_facts(DType::kBF16);
  facts.num_heads_k = 1;
  facts.group = 20;
  facts.head_dim = 576, facts.head_dim_v = 512, facts.values_in_keys = true;
  check_page_sizes(facts, emulated_decode(gpu_of(5, 1)));
  check_rows_in_any_chunks(facts, emulated_decode(gpu_of(4, 2)));
}

}  // namespace
}  // namespace attend::test
