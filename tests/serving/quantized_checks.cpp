#include "serving/quantized_checks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace attend::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kCodes = 256;

}  // namespace

double e4m3_by_definition(int bits) {
  const int exponent = (bits >> 3) & 15, fraction = bits & 7;
  if (exponent == 15 && fraction == 7) return std::nan("");
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

double number_of(DType dtype, int bits) {
  return dtype == DType::kI8 ? static_cast<std::int8_t>(bits) : e4m3_by_definition(bits);
}

CacheFacts eight_bit_facts(DType dtype, Descales descales) {
  CacheFacts f;
  f.dtype = DType::kF16;
  f.cache_dtype = dtype;
  f.descales = descales;
  f.page_size = 16;
  f.rows = {3, 3};
  f.lengths = {300, 41};
  return f;
}

void check_every_element(DType dtype, const std::vector<std::int64_t>& columns, const Decode& decode) {
  for (const std::int64_t cols : columns) {
    for (std::int64_t first = 0; first < kCodes; first += cols) {
      const TensorBuffer q(DType::kF32, {1, 1, 1, cols}), k(dtype, {1, 1, 1, cols}), o(DType::kF32, {1, 1, 1, cols});
      const TensorBuffer v(dtype, {1, 1, 1, cols}, {Layout::kBHSD, 3});
      q.fill(1), k.fill(1);
      for (std::int64_t c = 0; c < cols; ++c) {
        static_cast<std::uint8_t*>(v.view().data)[c] = static_cast<std::uint8_t>(first + c);
      }
      decode({.q = q.view(), .k_cache = k.view(), .v_cache = v.view(), .o = o.view()});
      for (std::int64_t c = 0; c < cols; ++c) {
        const double wanted = number_of(dtype, static_cast<int>((first + c) % kCodes));
        const double got = o.at(0, 0, 0, c);
        EXPECT_TRUE(got == wanted || (std::isnan(got) && std::isnan(wanted))) << first + c << ": " << got;
      }
    }
  }
}

void check_shapes_of_factors(DType dtype, bool rows_too, const Decode& decode) {
  CacheCase::Result wanted = {};
  for (const Descales kind : {Descales::kOne, Descales::kHeads, Descales::kSequences, Descales::kRows}) {
    CacheCase problem(eight_bit_facts(dtype, Descales::kOne), 3);
    const Shape cache = problem.k.shape();
    for (TensorBuffer* descales : {&problem.k_descale, &problem.v_descale}) {
      *descales = descales_of(kind, 2, cache);
      descales->fill(descales == &problem.k_descale ? 0.03 : 0.011);
    }
    const CacheCase::Result result = problem.run(decode);
    if (wanted.o.empty()) wanted = result;
    if (kind != Descales::kRows || rows_too) {
      EXPECT_EQ(result.o_bytes, wanted.o_bytes) << int(kind);
      continue;
    }
    const auto by_size = [](double a, double b) { return std::abs(a) < std::abs(b); };
    const double largest = std::abs(*std::max_element(wanted.o.begin(), wanted.o.end(), by_size));
    for (std::size_t i = 0; i < result.o.size(); ++i) {
      EXPECT_NEAR(result.o[i], wanted.o[i], largest * 0x1p-9) << i;  // p is rounded to 11 significant bits
    }
  }
}

void check_factors_of_some_rows(DType dtype, const Decode& decode) {
  for (const auto& [of_v, factor] : {std::pair{false, std::nanf("")},
                                     {true, std::nanf("")},
                                     {false, kInfinity},
                                     {false, -kInfinity},
                                     {true, kInfinity},
                                     {true, 8.0F},
                                     {true, 0x1p20F},
                                     {true, 0x1p127F},
                                     {false, 0x1p20F}}) {
    const CacheCase problem(eight_bit_facts(dtype, Descales::kRows), 4);
    const CacheCase::Result clean = problem.run(decode);
    const auto at = *problem.place(0, 298);  // only query rows 1 and 2 of sequence 0 see this key
    (of_v ? problem.v_descale : problem.k_descale).set(at.block, 1, at.row, 0, factor);
    for (const bool is_reference : {false, true}) {
      const CacheCase::Result result = is_reference ? problem.run("reference") : problem.run(decode);
      const CacheCase::Result before = is_reference ? result : clean;
      for (std::size_t i = 0; i < result.o.size(); ++i) {
        const std::size_t row = i / 64 % 3, head = i / 64 / 3 % 4, s = i / 64 / 3 / 4;
        const bool sees_it = s == 0 && head >= 2 && row >= 1;
        const bool spoilt = sees_it && !std::isfinite(factor);
        if (spoilt || !sees_it) {
          EXPECT_EQ(std::isnan(result.o[i]), spoilt) << (is_reference ? "reference " : "") << i << " with " << factor;
        }
        if (!sees_it) {
          EXPECT_EQ(result.o[i], before.o[i]) << i << " with " << factor;
        }
      }
    }
  }
}

void check_eight_bits_in_one_call(DType dtype, const ServingCalls& calls) {
  const CacheCase problem(eight_bit_facts(dtype, Descales::kSequences), 5);
  const TensorBuffer k(DType::kBF16, {2, 2, 1, 64}), v(DType::kBF16, {2, 2, 1, 64});
  k.generate([](auto s, auto h, auto, auto c) { return std::sin(static_cast<double>(7 * s + 3 * h + c)); });
  v.generate([](auto s, auto h, auto, auto c) { return std::cos(static_cast<double>(5 * s + 2 * h + c)); });
  const TensorBuffer o(DType::kF16, {2, 4, 3, 64}), o_after(DType::kF16, {2, 4, 3, 64});
  DecodeCall call = problem.call();
  call.o = o.view();
  // Each length is one less than the number of keys in the cache, because append writes the last key of each sequence
  // again.
  TensorArray<std::int32_t> lengths = {299, 40};
  call.cache.seqlens_k = lengths.data();
  const AppendCall append_call = {
      .k = k.view(), .v = v.view(), .k_cache = problem.k.view(), .v_cache = problem.v.view(), .cache = call.cache};
  calls.append_and_decode(append_call, call);
  for (std::int64_t s = 0; s < 2; ++s) {
    const auto at = *problem.place(s, lengths[static_cast<std::size_t>(s)]);
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t c = 0; c < 64; ++c) {
        const double factor = problem.k_descale.at(s, h, 0, 0);
        const double spacing = dtype == DType::kI8 ? 1.0 : std::max(0x1p-9, std::abs(k.at(s, h, 0, c)) / factor / 8);
        EXPECT_NEAR(problem.key(s, h, at, c), k.at(s, h, 0, c), 0.501 * spacing * factor);
      }
    }
    ++lengths[static_cast<std::size_t>(s)];
  }
  call.o = o_after.view();
  calls.decode(call);
  EXPECT_EQ(o.bytes(), o_after.bytes());
}

}  // namespace attend::test
