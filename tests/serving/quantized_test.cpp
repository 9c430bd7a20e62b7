// Tests 8-bit caches. For both 8-bit dtypes, the tests cover all 256 bit patterns, and the rounding of numbers at and
// next to every midpoint between two values. They also cover descale factors of every shape, and refused calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "core/dtype_traits.hpp"
#include "core/elements.hpp"
#include "serving/cache_case.hpp"
#include "serving/quantized_checks.hpp"

namespace attend::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kCodes = 256;

/// A number and the byte to which it must be rounded.
struct Rounding {
  float number;
  std::uint8_t byte;
};

/// Returns roundings for every number of the type, for every midpoint between neighbours, and for the floats next to
/// each of these.
std::vector<Rounding> roundings_of_e4m3() {
  std::vector<Rounding> all;
  for (int bits = 0; bits <= 0x7e; ++bits) {
    const auto number = static_cast<float>(e4m3_by_definition(bits));
    const auto byte = static_cast<std::uint8_t>(bits);
    all.push_back({number, byte});
    if (bits == 0x7e) continue;
    const auto next = static_cast<std::uint8_t>(bits + 1);
    // The midpoint is exact in float32.
    const float middle = (number + static_cast<float>(e4m3_by_definition(bits + 1))) / 2;
    all.push_back({middle, bits % 2 == 0 ? byte : next});
    all.push_back({std::nextafter(middle, 0.0F), byte});
    all.push_back({std::nextafter(middle, kInfinity), next});
  }
  for (const float large : {449.0F, 464.0F, 1e30F, kInfinity}) all.push_back({large, 0x7e});
  for (const float tiny : {1e-45F, 1e-40F, 1e-20F}) all.push_back({tiny, 0});
  const std::size_t count = all.size();
  for (std::size_t n = 0; n < count; ++n) all.push_back({-all[n].number, std::uint8_t(all[n].byte | 0x80)});
  all.push_back({std::nanf(""), 0x7f});
  all.push_back({-std::nanf(""), 0x7f});
  return all;
}

std::vector<Rounding> roundings_of_int8() {
  std::vector<Rounding> all;
  for (int number = -128; number <= 127; ++number) {
    const auto byte = static_cast<std::uint8_t>(number);
    all.push_back({static_cast<float>(number), byte});
    if (number == 127) continue;
    const float middle = static_cast<float>(number) + 0.5F;
    const auto next = static_cast<std::uint8_t>(number + 1);
    all.push_back({middle, number % 2 == 0 ? byte : next});
    all.push_back({std::nextafter(middle, -kInfinity), byte});
    all.push_back({std::nextafter(middle, kInfinity), next});
  }
  for (const float large : {127.4F, 127.6F, 128.0F, 1e30F, kInfinity}) {
    all.push_back({large, 127});
    all.push_back({-large - 1, 128});
  }
  all.push_back({std::nanf(""), 0});
  return all;
}

std::vector<Rounding> roundings_of(DType dtype) {
  return dtype == DType::kI8 ? roundings_of_int8() : roundings_of_e4m3();
}

/// Returns whether two doubles have the same bits. All NaN count as equal.
bool is_same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

class EightBits : public testing::TestWithParam<DType> {};

TEST_P(EightBits, EveryElementIsTheNumberOfItsDefinition) {
  for (int bits = 0; bits < kCodes; ++bits) {
    const auto byte = static_cast<std::uint8_t>(bits);
    const double number = core::load(&byte, GetParam(), 0);
    EXPECT_TRUE(is_same(number, number_of(GetParam(), bits))) << bits << " is " << number;
    EXPECT_TRUE(is_same(core::round_to(GetParam(), static_cast<float>(number)), number) || std::isnan(number)) << bits;
  }
}

TEST_P(EightBits, EveryTieGoesToTheEvenNeighbour) {
  for (const auto& [number, byte] : roundings_of(GetParam())) {
    std::uint8_t stored = 0x55;
    core::store(&stored, GetParam(), 0, number);
    EXPECT_EQ(int{stored}, int{byte}) << number;
  }
}

/// Tests append's SIMD loops. The loops must write the same bytes as the conversion of single elements, in rows of any
/// width.
TEST_P(EightBits, AppendRoundsAsSingleElementsDo) {
  const std::vector<Rounding> all = roundings_of(GetParam());
  for (const std::int64_t cols : {1, 7, 16, 33, 200}) {
    const auto rows = static_cast<std::int64_t>((all.size() + cols - 1) / cols);
    const auto at = [&](std::int64_t row, std::int64_t col) { return all[(row * cols + col) % all.size()]; };
    const TensorBuffer k(DType::kF32, {1, 1, rows, cols}), cache(GetParam(), {1, 1, rows, cols}, {Layout::kPadded, 3});
    k.generate([&](auto, auto, auto row, auto col) { return at(row, col).number; });
    const std::int32_t length = 0;
    append({.k = k.view(), .k_cache = cache.view(), .cache = {.seqlens_k = &length}});
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto* bytes = static_cast<const std::uint8_t*>(core::element(cache.view(), 0, 0, row));
      for (std::int64_t col = 0; col < cols; ++col) {
        EXPECT_EQ(int{bytes[col]}, int{at(row, col).byte}) << at(row, col).number << " of " << cols << " columns";
      }
    }
    EXPECT_TRUE(cache.gaps_intact()) << cols << " columns";
  }
}

/// Tests the SIMD loops that read the cache.
TEST_P(EightBits, DecodeReadsEveryElementExactly) {
  check_every_element(GetParam(), {1, 7, 16, 33, 200, 256}, decode_with("cpu"));
}

TEST_P(EightBits, ShapesOfFactorsChangeNoBits) {
  check_shapes_of_factors(GetParam(), true, decode_with("cpu"));
}

TEST_P(EightBits, AFactorThatIsNotFiniteReachesTheRowsThatSeeItsKey) {
  check_factors_of_some_rows(GetParam(), decode_with("cpu"));
}

TEST_P(EightBits, AppendAndDecodeInOneCall) {
  check_eight_bits_in_one_call(GetParam(), cpu_calls());
}

/// Some quotients are NaN or outside the range of the type.
TEST_P(EightBits, AppendDividesByAnyFactor) {
  const bool is_i8 = GetParam() == DType::kI8;
  const std::uint8_t largest = is_i8 ? 127 : 0x7e, lowest = is_i8 ? 128 : 0xfe, nan = is_i8 ? 0 : 0x7f;
  const std::uint8_t minus_zero = is_i8 ? 0 : 0x80, one = is_i8 ? 1 : 0x38;
  const std::array<std::pair<float, std::array<std::uint8_t, 4>>, 6> all = {{{0.0F, {largest, lowest, nan, nan}},
                                                                             {-0.0F, {lowest, largest, nan, nan}},
                                                                             {1e-40F, {largest, lowest, 0, nan}},
                                                                             {kInfinity, {0, minus_zero, 0, nan}},
                                                                             {std::nanf(""), {nan, nan, nan, nan}},
                                                                             {2.0F, {one, lowest, 0, nan}}}};
  for (const auto& [factor, bytes] : all) {
    const TensorBuffer k(DType::kF32, {1, 1, 1, 4}), cache(GetParam(), {1, 1, 1, 4});
    const TensorBuffer descale(DType::kF32, {1, 1, 1, 1});
    k.set(0, 0, 0, 0, 2), k.set(0, 0, 0, 1, -3e9), k.set(0, 0, 0, 2, 0), k.set(0, 0, 0, 3, std::nanf(""));
    descale.fill(factor);
    const std::int32_t length = 0;
    append({.k = k.view(), .k_cache = cache.view(), .cache = {.seqlens_k = &length, .k_descale = descale.view()}});
    EXPECT_EQ(std::memcmp(cache.view().data, bytes.data(), 4), 0) << factor;
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, EightBits, testing::Values(DType::kF8E4M3, DType::kI8),
                         [](const auto& of) { return std::string(dtype_name(of.param)); });

std::string refusal(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

struct BadDecode {
  const char* message;
  std::function<void(DecodeCall&)> change;
};

TEST(EightBitRefusals, OfDecodeNameTheArgumentAndWriteNothing) {
  const float one = 1;
  const auto factors = [&](const Shape& shape) { return ConstTensor{&one, DType::kF32, {}, shape, {0, 0, 0, 1}}; };
  const std::vector<BadDecode> all = {
      {"q: dtype f8e4m3, allowed f32, f16, bf16", [](DecodeCall& c) { c.q.dtype = DType::kF8E4M3; }},
      {"o: dtype f8e4m3, allowed f32, f16, bf16", [](DecodeCall& c) { c.o.dtype = DType::kF8E4M3; }},
      {"v_cache: dtype i8, allowed the dtype of k_cache, f8e4m3", [](DecodeCall& c) { c.v_cache->dtype = DType::kI8; }},
      {"k_cache: dtype bf16, allowed the dtype of q, f16, or f8e4m3, i8",
       [](DecodeCall& c) { c.k_cache.dtype = DType::kBF16; }},
      {"k_descale: given with a k_cache of f16, allowed with f8e4m3 and i8",
       [](DecodeCall& c) { c.k_cache.dtype = c.v_cache->dtype = DType::kF16; }},
      {"v_descale: given without v_cache, allowed with it only", [](DecodeCall& c) { c.v_cache.reset(); }},
      {"k_descale: dtype f16, allowed f32", [](DecodeCall& c) { c.cache.k_descale->dtype = DType::kF16; }},
      {"k_descale: null data", [](DecodeCall& c) { c.cache.k_descale->data = nullptr; }},
      {"k_descale: on cuda 0, allowed the device of q, cpu 0",
       [](DecodeCall& c) { c.cache.k_descale->device.type = DeviceType::kCUDA; }},
      {"k_descale: shape (3, 2, 1, 1), allowed (1 or 2, 1 or 2, 1, 1) for sequences and heads, or (",
       [&](DecodeCall& c) {
         c.cache.k_descale = factors({3, 2, 1, 1});
       }},
      {"v_descale: shape (2, 4, 1, 1)",
       [&](DecodeCall& c) {
         c.cache.v_descale = factors({2, 4, 1, 1});
       }},
      {"v_descale: shape (1, 1, 1, 2)",
       [&](DecodeCall& c) {
         c.cache.v_descale = factors({1, 1, 1, 2});
       }},
      {"k_descale: shape (1, 2, 16, 1)",
       [&](DecodeCall& c) {
         c.cache.k_descale = factors({1, 2, 16, 1});
       }},
      {"k_descale: shape (2, 1, 1, 1) is ambiguous with 2 sequences and as many pages or cache rows of one key, "
       "allowed (1, 1 or 2",
       [&](DecodeCall& c) {
         c.k_cache.shape[0] = c.v_cache->shape[0] = 2, c.k_cache.shape[2] = c.v_cache->shape[2] = 1;
         c.cache.k_descale = factors({2, 1, 1, 1});
       }},
      // The factors are placed in the memory of o. If o were placed in the memory of the factors, o would also overlap
      // the memory after them, because o is longer. That memory differs between runs.
      {"o: shares memory with k_descale", [](DecodeCall& c) { c.cache.k_descale->data = c.o.data; }},
  };
  for (const BadDecode& bad : all) {
    const CacheCase problem(eight_bit_facts(DType::kF8E4M3, Descales::kSequences), 1);
    const TensorBuffer o(DType::kF16, {2, 4, 3, 64});
    const auto before = o.memory(), descales = problem.k_descale.memory();
    DecodeCall call = problem.call();
    call.o = o.view();
    bad.change(call);
    EXPECT_THAT(refusal([&] { decode(call); }), testing::StartsWith(bad.message));
    EXPECT_TRUE(o.memory() == before && problem.k_descale.memory() == descales) << bad.message;
  }
}

TEST(EightBitRefusals, OfAppendNameTheArgumentAndWriteNothing) {
  const TensorBuffer k(DType::kF32, {1, 2, 1, 8}), cache(DType::kI8, {1, 2, 4, 8}), descale(DType::kF32, {1, 2, 1, 1});
  k.fill(1), descale.fill(1);
  const std::int32_t length = 0;
  const auto append_with = [&](const std::function<void(AppendCall&)>& change) {
    AppendCall call = {.k = k.view(), .k_cache = cache.view(), .cache = {.seqlens_k = &length}};
    call.cache.k_descale = descale.view();
    change(call);
    return refusal([&] { append(call); });
  };
  EXPECT_EQ(append_with([](auto& c) { c.k.dtype = DType::kI8; }), "k: dtype i8, allowed f32, f16, bf16");
  EXPECT_EQ(append_with([](auto& c) { c.k_cache.dtype = DType::kF16; }),
            "k_descale: given with a k_cache of f16, allowed with f8e4m3 and i8");
  EXPECT_EQ(append_with([](auto& c) { c.cache.v_descale = c.cache.k_descale; }),
            "v_descale: given without v_cache, allowed with it only");
  EXPECT_EQ(append_with([](auto& c) { c.cache.k_descale->data = c.k_cache.data; }),
            "k_cache: shares memory with k_descale, allowed a separate buffer");
  EXPECT_TRUE(cache.bytes() == std::vector<std::byte>(64, std::byte{0xFF}));
  AppendCall other = {.k = k.view(), .k_cache = cache.view(), .cache = {.seqlens_k = &length}};
  const TensorBuffer o(DType::kF32, {1, 2, 1, 8});
  DecodeCall read = {.q = k.view(), .k_cache = cache.view(), .o = o.view(), .cache = other.cache};
  read.cache.k_descale = descale.view();
  EXPECT_EQ(refusal([&] { decode(other, read); }),
            "k_descale: different in append and decode, allowed the same one in both");
}

/// No other call supports the 8-bit types. Each call must name the type in its error message.
TEST(EightBitRefusals, OfEveryOtherCall) {
  for (const DType dtype : {DType::kF8E4M3, DType::kI8}) {
    const std::string name = dtype_name(dtype);
    const TensorBuffer x(dtype, {1, 1, 4, 8}), y(DType::kF32, {1, 1, 4, 8}), lse(DType::kF32, {1, 1, 4, 1});
    const TensorBuffer scores(dtype, {1, 1, 4, 4});
    const std::string floats = ": dtype " + name + ", allowed f32, f16, bf16";
    for (const char* compute : {"auto", "cpu", "reference", "cpu_naive"}) {
      const Params params = {.compute = compute};
      EXPECT_THAT(refusal([&] { forward(x.view(), x.view(), x.view(), x.view(), nullptr, params); }),
                  testing::StartsWith((dtype == DType::kF8E4M3 ? "o" : "q") + floats));  // q may be f8e4m3
      EXPECT_THAT(refusal([&] { forward(y.view(), x.view(), y.view(), y.view(), nullptr, params); }),
                  testing::StartsWith("k" + floats));
      EXPECT_THAT(refusal([&] {
                    backward({.q = y.view(),
                              .k = y.view(),
                              .v = y.view(),
                              .o = y.view(),
                              .lse = lse.view(),
                              .dout = x.view(),
                              .dq = y.view(),
                              .dk = y.view(),
                              .dv = y.view(),
                              .params = params});
                  }),
                  testing::StartsWith("dout" + floats));
      Params with_mask = params, with_bias = params;
      with_mask.mask = scores.view(), with_bias.bias = scores.view();
      EXPECT_EQ(refusal([&] { forward(y.view(), y.view(), y.view(), y.view(), nullptr, with_mask); }),
                "mask: dtype " + name + ", allowed bool");
      EXPECT_THAT(refusal([&] { forward(y.view(), y.view(), y.view(), y.view(), nullptr, with_bias); }),
                  testing::StartsWith("bias" + floats));
    }
    EXPECT_THAT(refusal([&] {
                  merge(std::vector<PartialState>{{x.view(), lse.view()}}, y.view());
                }),
                testing::StartsWith("states[0].o" + floats));
  }
}

}  // namespace
}  // namespace attend::test
