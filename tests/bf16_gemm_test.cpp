// Compares matrix products of bfloat16 tiles with float64, for every method by which the backend computes them. Covers
// any size, both layouts of A, every GemmMode (how the product is added to C), and a separate range of columns or of
// the summation index for each row.
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

struct Ranges {
  std::vector<std::int32_t> begin, end;

  [[nodiscard]] bool hold(std::int64_t range, std::int64_t at) const { return begin[range] <= at && at < end[range]; }
};

/// Returns `count` ranges within [0, limit]. The begins and the ends never decrease, and are multiples of `grain`.
Ranges random_ranges(std::int64_t count, std::int64_t limit, int grain, std::mt19937& random) {
  const auto offset = static_cast<std::int64_t>(random() % (2 * limit + 1)) - limit;
  const auto width = static_cast<std::int64_t>(random() % (limit + 1));
  Ranges ranges;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = std::clamp<std::int64_t>(offset + i, 0, limit);
    const std::int64_t last = std::clamp<std::int64_t>(offset + i + width, first, limit);
    ranges.begin.push_back(static_cast<std::int32_t>(first / grain * grain));
    ranges.end.push_back(static_cast<std::int32_t>((last + grain - 1) / grain * grain));
  }
  return ranges;
}

float random_bf16(std::mt19937& random) {
  // The number has 8 significant bits, so the product of two such numbers is exact in float32.
  return static_cast<float>(static_cast<int>(random() % 255) - 127) / 64.0F;
}

std::uint16_t bits(float x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
}

/// The operands of one product. Each allocation ends where the readable memory ends, so AddressSanitizer detects reads
/// beyond it.
class Product {
 public:
  /// Sets to NaN all elements of A that a product must not read if it computes `block_rows` rows at a time.
  Product(const Size& size, int block_rows, std::mt19937& random)
      : s_(size),
        depth_(random_ranges(s_.m, 2 * s_.pairs, 1, random)),
        columns_(random_ranges(s_.m, s_.n, 16, random)),
        a_((s_.m - 1) * a_row_ + (s_.pairs - 1) * a_pair_ + 2, 0),
        b_((s_.pairs - 1) * b_stride_ + s_.n, 0),
        c_((s_.m - 1) * c_stride_ + s_.n, kPoison) {
    for (auto* scale : {&row_scale_, &column_scale_}) {
      for (std::int64_t i = 0; i < std::max(s_.m, s_.n); ++i) scale->push_back(random_bf16(random));
    }
    fill_a(block_rows, random);
    for (std::uint32_t& word : b_) word = bits(random_bf16(random)) | std::uint32_t{bits(random_bf16(random))} << 16;
    if (s_.mode != GemmMode::kStore) {
      for (float& value : c_) value = random_bf16(random);
    }
    old_c_ = c_;
    factor_ = s_.mode == GemmMode::kStore && random() % 2 == 0 ? 0.375F : 1.0F;
  }

  /// Returns arguments that point into this object.
  [[nodiscard]] Bf16DotArgs args() {
    Bf16DotArgs args{.a = {a_.data(), a_row_, a_pair_},
                     .b = b_.data(),
                     .b_stride = b_stride_,
                     .c = c_.data(),
                     .c_stride = c_stride_,
                     .m = s_.m,
                     .n = s_.n,
                     .pairs = s_.pairs,
                     .mode = s_.mode,
                     .factor = factor_,
                     .row_scale = row_scale_.data(),
                     .column_scale = column_scale_.data()};
    if (s_.with_depth) args.depth = {depth_.begin.data(), depth_.end.data()};
    if (s_.with_columns) args.columns = {columns_.begin.data(), columns_.end.data()};
    return args;
  }

  /// Returns the largest error of C. Requires that memory after the last column of C is unchanged. If each row has a
  /// range of columns, elements of C outside this range may have any value.
  [[nodiscard]] double error() const {
    double worst = 0;
    for (std::int64_t i = 0; i < s_.m; ++i) {
      for (std::int64_t j = 0; j < c_stride_ && i * c_stride_ + j < std::int64_t(c_.size()); ++j) {
        const float got = c_[i * c_stride_ + j];
        if (j >= s_.n) {
          EXPECT_EQ(got, old_c_[i * c_stride_ + j]) << "beyond the columns";
        } else if (!s_.with_columns || columns_.hold(i, j)) {
          const double error = std::abs(got - expected(i, j));
          worst = error <= worst ? worst : error;  // the condition is false for NaN, so a NaN is kept
        }
      }
    }
    return worst;
  }

 private:
  void fill_a(int block_rows, std::mt19937& random) {
    for (std::int64_t i = 0; i < s_.m; ++i) {
      const std::int64_t block = i / block_rows * block_rows;
      const std::int64_t first = depth_.begin[block] / 2 * 2;
      const std::int64_t last = (depth_.end[std::min(block + block_rows, s_.m) - 1] + 1) / 2 * 2;
      for (std::int64_t k = 0; k < 2 * s_.pairs; ++k) {
        float value = random_bf16(random);
        if (s_.with_depth && !depth_.hold(i, k)) value = 0;
        if (s_.with_depth && (k < first || k >= last)) value = std::nanf("");
        a_[i * a_row_ + k / 2 * a_pair_ + k % 2] = bits(value);
      }
    }
  }

  /// Returns the exact element (i, j) of the product, in float64.
  [[nodiscard]] double expected(std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t k = 0; k < 2 * s_.pairs; ++k) {
      if (s_.with_depth && !depth_.hold(i, k)) continue;
      const std::uint32_t word = b_[k / 2 * b_stride_ + j];
      const auto b_bits = k % 2 == 0 ? word << 16 : word & 0xffff0000;
      const auto a_bits = std::uint32_t{a_[i * a_row_ + k / 2 * a_pair_ + k % 2]} << 16;
      sum += double{std::bit_cast<float>(a_bits)} * std::bit_cast<float>(b_bits);
    }
    const double old = old_c_[i * c_stride_ + j];
    switch (s_.mode) {
      case GemmMode::kStore:
        return sum * factor_;
      case GemmMode::kAccumulate:
        return old + sum;
      case GemmMode::kScaleAccumulate:
        return old * row_scale_[i] + sum;
      case GemmMode::kScaleColumnsAccumulate:
        return old * column_scale_[j] + sum;
    }
    return std::nan("");
  }

  Size s_;
  std::int64_t a_row_ = s_.a_transposed ? 2 : 2 * s_.pairs + 6;
  std::int64_t a_pair_ = s_.a_transposed ? 2 * s_.m + 4 : 2;
  std::int64_t b_stride_ = s_.n + 16, c_stride_ = s_.n + 3;
  Ranges depth_, columns_;
  std::vector<std::uint16_t> a_;
  std::vector<std::uint32_t> b_;
  std::vector<float> c_, old_c_;
  std::vector<float> row_scale_, column_scale_;
  float factor_ = 1;
};

/// Computes one random product with `gemm` and returns its largest error.
template <class Gemm>
double error_of(const Size& size, Gemm gemm, int block_rows, std::mt19937& random) {
  Product product(size, block_rows, random);
  gemm(product.args());
  return product.error();
}

template <class Gemm>
void expect_products(Gemm gemm, int block_rows, bool scales_columns) {
  // Products are multiples of 2^-12 and sums are below 2^12, so every order of summation is exact.
  constexpr double kBudget = 0;
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
