// Tile products of bfloat16 operands by every unit, against float64: any size, either layout of A, every mode, ranges.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

#include "attend/attention.hpp"
#include "cpu/bf16_amx.hpp"
#include "cpu/kernels.hpp"

namespace attend::test {
namespace {

using cpu::Bf16DotArgs;
using cpu::GemmMode;

constexpr float kPoison = -12345.0F;

struct Size {
  std::int64_t m, n, pairs;
  bool a_transposed;
  GemmMode mode;
  bool with_depth, with_columns;
};

Size random_size(std::mt19937& random) {
  const auto up_to = [&](int most) { return static_cast<std::int64_t>(random() % most) + 1; };
  const GemmMode modes[] = {GemmMode::kStore, GemmMode::kAccumulate, GemmMode::kScaleAccumulate,
                            GemmMode::kScaleColumnsAccumulate};
  const bool ranges = random() % 2 == 0;
  return {up_to(130),
          16 * up_to(8),
          up_to(70),
          random() % 2 == 0,
          modes[random() % 4],
          ranges && random() % 2 == 0,
          ranges && random() % 2 == 0};
}

/// Begin and end of `count` ranges within [0, limit], both growing, in multiples of `grain`.
std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>> random_ranges(std::int64_t count, std::int64_t limit,
                                                                              int grain, std::mt19937& random) {
  const auto offset = static_cast<std::int64_t>(random() % (2 * limit + 1)) - limit;
  const auto width = static_cast<std::int64_t>(random() % (limit + 1));
  std::vector<std::int32_t> begin, end;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = std::clamp<std::int64_t>(offset + i, 0, limit);
    const std::int64_t last = std::clamp<std::int64_t>(offset + i + width, first, limit);
    begin.push_back(static_cast<std::int32_t>(first / grain * grain));
    end.push_back(static_cast<std::int32_t>((last + grain - 1) / grain * grain));
  }
  return {begin, end};
}

struct Operands {
  std::vector<std::uint16_t> a;  // exactly as long as it may be read, for AddressSanitizer
  std::vector<std::uint32_t> b;
  std::vector<float> c;
  std::vector<float> row_scale, column_scale;
};

float random_bf16(std::mt19937& random) {
  return static_cast<float>(static_cast<int>(random() % 255) - 127) / 64.0F;  // eight bits: exact
}

std::uint16_t bits(float x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
}

/// One product by `gemm` and in float64; the largest error. A holds NaN wherever a product that takes `block_rows` rows
/// at a time has no business.
template <class Gemm>
double error_of(const Size& s, Gemm gemm, int block_rows, std::mt19937& random) {
  const std::int64_t a_row = s.a_transposed ? 2 : 2 * s.pairs + 6;
  const std::int64_t a_pair = s.a_transposed ? 2 * s.m + 4 : 2;
  const std::int64_t b_stride = s.n + 16;
  const std::int64_t c_stride = s.n + 3;
  const auto depth = random_ranges(s.m, 2 * s.pairs, 1, random);
  const auto columns = random_ranges(s.m, s.n, 16, random);
  Operands x;
  x.a.assign((s.m - 1) * a_row + (s.pairs - 1) * a_pair + 2, 0);
  x.b.assign((s.pairs - 1) * b_stride + s.n, 0);
  x.c.assign((s.m - 1) * c_stride + s.n, kPoison);
  for (auto& scale : {&x.row_scale, &x.column_scale}) {
    for (std::int64_t i = 0; i < std::max(s.m, s.n); ++i) scale->push_back(random_bf16(random));
  }
  for (std::int64_t i = 0; i < s.m; ++i) {
    const std::int64_t block = i / block_rows * block_rows;
    const std::int64_t first = depth.first[block] / 2 * 2;
    const std::int64_t last = (depth.second[std::min(block + block_rows, s.m) - 1] + 1) / 2 * 2;
    for (std::int64_t k = 0; k < 2 * s.pairs; ++k) {
      float value = random_bf16(random);
      if (s.with_depth && (k < depth.first[i] || k >= depth.second[i])) value = 0;
      if (s.with_depth && (k < first || k >= last)) value = std::nanf("");
      x.a[i * a_row + k / 2 * a_pair + k % 2] = bits(value);
    }
  }
  for (std::uint32_t& word : x.b) word = bits(random_bf16(random)) | std::uint32_t{bits(random_bf16(random))} << 16;
  if (s.mode != GemmMode::kStore) {
    for (float& value : x.c) value = random_bf16(random);
  }
  const std::vector<float> old_c = x.c;
  const float factor = s.mode == GemmMode::kStore && random() % 2 == 0 ? 0.375F : 1.0F;
  Bf16DotArgs args{.a = {x.a.data(), a_row, a_pair},
                   .b = x.b.data(),
                   .b_stride = b_stride,
                   .c = x.c.data(),
                   .c_stride = c_stride,
                   .m = s.m,
                   .n = s.n,
                   .pairs = s.pairs,
                   .mode = s.mode,
                   .factor = factor,
                   .row_scale = x.row_scale.data(),
                   .column_scale = x.column_scale.data()};
  if (s.with_depth) args.depth = {depth.first.data(), depth.second.data()};
  if (s.with_columns) args.columns = {columns.first.data(), columns.second.data()};
  gemm(args);

  double worst = 0;
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t j = 0; j < c_stride && i * c_stride + j < std::int64_t(x.c.size()); ++j) {
      const float got = x.c[i * c_stride + j];
      const float old = old_c[i * c_stride + j];
      if (j >= s.n) {
        EXPECT_EQ(got, old) << "beyond the columns";
        continue;
      }
      if (s.with_columns && (j < columns.first[i] || j >= columns.second[i])) continue;  // may hold anything
      double sum = 0;
      for (std::int64_t k = 0; k < 2 * s.pairs; ++k) {
        const std::uint32_t word = x.b[k / 2 * b_stride + j];
        const auto b_bits = k % 2 == 0 ? word << 16 : word & 0xffff0000;
        if (s.with_depth && (k < depth.first[i] || k >= depth.second[i])) continue;
        const auto a_bits = std::uint32_t{x.a[i * a_row + k / 2 * a_pair + k % 2]} << 16;
        sum += double{std::bit_cast<float>(a_bits)} * std::bit_cast<float>(b_bits);
      }
      double expected = sum * factor;
      if (s.mode == GemmMode::kAccumulate) expected = old + sum;
      if (s.mode == GemmMode::kScaleAccumulate) expected = double{old} * x.row_scale[i] + sum;
      if (s.mode == GemmMode::kScaleColumnsAccumulate) expected = double{old} * x.column_scale[j] + sum;
      const double error = std::abs(got - expected);
      worst = error <= worst ? worst : error;  // NaN too
    }
  }
  return worst;
}

template <class Gemm>
void expect_products(Gemm gemm, int block_rows, bool scales_columns) {
  constexpr double kBudget = 0;  // every product is a multiple of 2^-12, every sum below 2^12: exact in any order
  std::mt19937 random(17);
  double worst = 0;
  for (int i = 0; i < 600; ++i) {
    Size size = random_size(random);
    if (!scales_columns && size.mode == GemmMode::kScaleColumnsAccumulate) size.mode = GemmMode::kScaleAccumulate;
    const double error = error_of(size, gemm, block_rows, random);
    ASSERT_LE(error, kBudget) << "m " << size.m << ", n " << size.n << ", pairs " << size.pairs << ", A transposed "
                              << size.a_transposed << ", mode " << static_cast<int>(size.mode) << ", depth "
                              << size.with_depth << ", columns " << size.with_columns;
    worst = std::max(worst, error);
  }
  std::printf("error %.2g, budget %.2g\n", worst, kBudget);
}

TEST(Bf16Gemm, DotProduct) {
  if (cpu::bf16_unit() != cpu::Bf16Unit::kDot) GTEST_SKIP() << "bfloat16 by " << cpu_bf16_unit();
  expect_products(cpu::bf16_dot_gemm, cpu::bf16_dot_block_rows(), false);
}

TEST(Bf16Gemm, Amx) {
  if (!cpu::amx_available()) GTEST_SKIP() << "no AMX here";
  cpu::configure_amx();
  expect_products(cpu::amx_gemm, 16, true);
  cpu::release_amx();
}

TEST(Bf16Gemm, EmulatedAmx) {
  if (!cpu_simd_target().starts_with("AVX3")) GTEST_SKIP() << "no AVX-512 here";
  expect_products(cpu::emulated_amx_gemm, 16, true);
}

}  // namespace
}  // namespace attend::test
