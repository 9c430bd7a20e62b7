// Tests rows with very many keys, and keys with very many rows. The error of float32 sums must not grow with their
// length.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr DType kF32 = DType::kF32;

/// Allowed error of a float32 sum of any length, relative to the sum of the magnitudes of its terms. The kernel adds
/// the 128 terms of a tile in sequence, and then combines tiles with a few more roundings. Adding 2^26 ones in sequence
/// would stop at 2^24.
constexpr double kSumRoundoffs = 40 * 0x1p-24;

// All positions share one key by a stride of 0. The first half of the values is 0, the second half is 1.
TEST(LongRows, HalfOfEqualKeysGivesAHalf) {
  const bool sanitized = ATTEND_TEST_STRIDE > 1;
  const std::int64_t num_keys = std::int64_t{1} << (sanitized ? 22 : 26);
  const TensorBuffer zero = made(kF32, {1, 1, 1, 1}, [](auto...) { return 0.0; });
  const std::vector<std::byte> ones_and_zeros = [&] {
    std::vector<std::byte> bytes(static_cast<std::size_t>(num_keys) * sizeof(float));
    std::fill_n(reinterpret_cast<float*>(bytes.data()) + num_keys / 2, num_keys / 2, 1.0F);
    return bytes;
  }();
  Tensor k = zero.view();
  k.shape[2] = num_keys;
  k.stride[2] = 0;
  const ConstTensor v = Tensor::bhsd(ones_and_zeros.data(), kF32, {1, 1, num_keys, 1});
  const TensorBuffer o(kF32, {1, 1, 1, 1});
  const TensorBuffer lse(kF32, {1, 1, 1, 1});
  forward(zero.view(), k, v, o.view(), &lse.view(), {.compute = "cpu"});
  std::printf("%lld keys: o %.9g, lse %.9g\n", static_cast<long long>(num_keys), o.at(0, 0, 0, 0), lse.at(0, 0, 0, 0));
  EXPECT_EQ(o.at(0, 0, 0, 0), 0.5);
  EXPECT_NEAR(lse.at(0, 0, 0, 0), std::log(static_cast<double>(num_keys)), 2e-6);
}

TEST(LongRows, MeanOfTenThousandValues) {
  AttentionCase c = {.seqlen_q = 5, .seqlen_k = 10'000, .head_dim = 8, .head_dim_v = 24, .scale = 0.0, .seed = 31};
  const Inputs in = make_inputs(c);
  in.v.generate([](auto, auto, auto key, auto col) { return 0.7 + 0.001 * double(col) + 1e-5 * double(key % 7); });
  const Outputs out = run(in, "cpu");
  const Outputs truth = run(as_f64(in), "reference");
  const std::vector<double> got = out.o.values(), want = truth.o.values();
  double error = 0;
  for (std::size_t n = 0; n < got.size(); ++n) error = std::max(error, std::abs(got[n] - want[n]));
  std::printf("max abs error %.3g, allowed %.3g\n", error, kSumRoundoffs);
  EXPECT_LE(error, kSumRoundoffs);
}

/// Returns the root mean square of the error, divided by the root mean square of the truth.
double relative_rms(const TensorBuffer& got, const TensorBuffer& want) {
  const std::vector<double> a = got.values(), b = want.values();
  double error = 0, size = 0;
  for (std::size_t n = 0; n < a.size(); ++n) {
    error += (a[n] - b[n]) * (a[n] - b[n]);
    size += b[n] * b[n];
  }
  return std::sqrt(error / size);
}

struct LongCase {
  const char* name;
  AttentionCase shape;
};

void PrintTo(const LongCase& c, std::ostream* out) {
  *out << c.name;
}

class LongSums : public testing::TestWithParam<LongCase> {};

// Inputs are N(0, 1). For any length, the root mean square error must stay near that of a single rounding.
TEST_P(LongSums, ErrorDoesNotGrowWithTheLength) {
  const Inputs in = make_inputs(GetParam().shape);
  const Outputs out = run(in, "cpu");
  const Outputs truth = run(as_f64(in), "reference");
  constexpr double kAllowed = 1e-6;  // includes the rounding errors of scores and lse
  const std::pair<const char*, std::pair<const TensorBuffer*, const TensorBuffer*>> tensors[] = {
      {"o", {&out.o, &truth.o}},
      {"dq", {&out.dq, &truth.dq}},
      {"dk", {&out.dk, &truth.dk}},
      {"dv", {&out.dv, &truth.dv}}};
  for (const auto& [name, pair] : tensors) {
    const double error = relative_rms(*pair.first, *pair.second);
    std::printf("%s: relative rms error %.3g, allowed %.3g\n", name, error, kAllowed);
    EXPECT_LE(error, kAllowed) << name;
  }
  const std::vector<double> lse = out.lse.values(), lse_truth = truth.lse.values();
  for (std::size_t n = 0; n < lse.size(); ++n) EXPECT_NEAR(lse[n], lse_truth[n], 1.5e-6) << "lse of row " << n;
}

const LongCase kLongCases[] = {
    {"ManyKeys", {.seqlen_q = 16, .seqlen_k = 100'000, .head_dim = 16, .head_dim_v = 16, .seed = 5}},
    {"ManyKeysUnderAWindow",
     {.seqlen_q = 70, .seqlen_k = 40'000, .head_dim = 16, .head_dim_v = 40, .window_left = 20'000, .seed = 6}},
    {"ManyRows", {.seqlen_q = 60'000, .seqlen_k = 16, .head_dim = 16, .head_dim_v = 16, .seed = 7}},
    {"ManyRowsOfAGroup",
     {.heads_q = 12, .heads_k = 1, .seqlen_q = 6'000, .seqlen_k = 20, .head_dim = 16, .head_dim_v = 24, .seed = 8}}};

INSTANTIATE_TEST_SUITE_P(Cpu, LongSums, testing::ValuesIn(kLongCases),
                         [](const auto& test) { return std::string(test.param.name); });

// There is one key. dv of this key is the sum of dout over all rows. All terms are equal, so all rounding errors have
// the same sign.
TEST(LongSums, GradientOfOneKeyOverManyEqualRows) {
  const std::int64_t num_rows = 400'000;
  const Inputs in = make_inputs({.heads_q = 1, .seqlen_q = num_rows, .seqlen_k = 1, .head_dim = 1, .head_dim_v = 4});
  in.dout.generate([](auto, auto, auto, auto col) { return double(0.7F) + double(col); });
  const Outputs out = run(in, "cpu");
  for (std::int64_t col = 0; col < 4; ++col) {
    const double want = in.dout.at(0, 0, 0, col) * static_cast<double>(num_rows);
    const double error = std::abs(out.dv.at(0, 0, 0, col) - want) / want;
    std::printf("dv[%lld]: relative error %.3g, allowed %.3g\n", static_cast<long long>(col), error, kSumRoundoffs);
    EXPECT_LE(error, kSumRoundoffs);
  }
}

// The gradient is a sum over batch entries, heads and rows.
TEST(LongSums, GradientOfABroadcastBias) {
  const Inputs in = make_inputs({.batch = 4,
                                 .heads_q = 8,
                                 .heads_k = 8,
                                 .seqlen_q = 2'000,
                                 .seqlen_k = 12,
                                 .bias = Broadcast{false, false, false},
                                 .seed = 9});
  const Outputs out = run(in, "cpu");
  const Outputs truth = run(as_f64(in), "reference");
  const double error = relative_rms(*out.dbias, *truth.dbias);
  std::printf("dbias: relative rms error %.3g\n", error);
  EXPECT_LE(error, 5e-7);
}

// With few heads and very many keys, the work is divided differently. The bits of dk and dv must not depend on the
// number of threads.
TEST(LongSums, BitsDoNotDependOnTheThreads) {
  for (const auto& [rows, keys] : {std::pair{9'000, 300}, {300, 9'000}}) {
    const Inputs in = make_inputs(
        {.heads_q = 2, .heads_k = 2, .seqlen_q = rows, .seqlen_k = keys, .head_dim = 16, .head_dim_v = 16, .seed = 10});
    set_cpu_threads(1);
    const Outputs one = run(in, "cpu");
    set_cpu_threads(5);
    const Outputs five = run(in, "cpu");
    set_cpu_threads(0);
    expect_same_bits(five, one);
  }
}

}  // namespace
}  // namespace attend::test
