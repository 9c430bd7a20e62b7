// Compares sm90_fp8_forward with float64. The oracle reads the 8-bit numbers and their descales exactly, so only the
// rounding of p, of sums and of o remains.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attend/attention.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "gpu/gpu.hpp"
#include "support/tensor_array.hpp"
#include "support/tensor_buffer.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr const char* kCompute = "sm90_fp8_forward";
constexpr std::int64_t kBlockKeys = 128;

enum class Descales { kNone, kTensor, kHeads, kBlocks };

struct Fp8Facts {
  DType output = DType::kBF16;
  std::int64_t batch = 1, heads = 1, heads_k = 1;
  std::int64_t seqlen_q = 128, seqlen_k = 256;
  std::int64_t head_dim = 128, head_dim_v = 128;
  bool causal = false;
  std::int64_t left = -1, right = -1;
  Descales descales = Descales::kNone;
  double scale = 0;  // relative to 1/sqrt(head_dim); 0 means unset
  double mean_v = 0;
  std::vector<std::int32_t> cu_q = {}, cu_k = {};  // offsets of packed sequences
  Layout layout = Layout::kBHSD;

  [[nodiscard]] std::int64_t sequences() const {
    return cu_q.empty() ? batch : static_cast<std::int64_t>(cu_q.size()) - 1;
  }
};

std::int64_t longest(const std::vector<std::int32_t>& offsets) {
  std::int64_t most = 0;
  for (std::size_t s = 1; s < offsets.size(); ++s) most = std::max<std::int64_t>(most, offsets[s] - offsets[s - 1]);
  return most;
}

class Fp8Case {
 public:
  explicit Fp8Case(const Fp8Facts& facts, unsigned seed = 1)
      : f(facts),
        q(DType::kF8E4M3, {f.batch, f.heads, f.seqlen_q, f.head_dim}, {f.layout}),
        k(DType::kF8E4M3, {f.batch, f.heads_k, f.seqlen_k, f.head_dim}, {f.layout}),
        v(DType::kF8E4M3, {f.batch, f.heads_k, f.seqlen_k, f.head_dim_v}, {f.layout}),
        o(f.output, {f.batch, f.heads, f.seqlen_q, f.head_dim_v}, {f.layout}),
        lse(DType::kF32, {f.batch, f.heads, f.seqlen_q, 1}),
        cu_q(f.cu_q.begin(), f.cu_q.end()),
        cu_k(f.cu_k.begin(), f.cu_k.end()) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (const TensorBuffer* t : {&q, &k}) t->generate([&](auto...) { return normal(random); });
    v.generate([&](auto...) { return normal(random) + f.mean_v; });
    if (f.descales == Descales::kNone) return;
    const bool by_heads = f.descales != Descales::kTensor;
    const std::int64_t sequences = by_heads ? f.sequences() : 1, heads_k = by_heads ? f.heads_k : 1;
    const std::int64_t most_keys = f.cu_k.empty() ? f.seqlen_k : longest(f.cu_k);
    const std::int64_t blocks = f.descales == Descales::kBlocks ? (most_keys + kBlockKeys - 1) / kBlockKeys : 1;
    std::uniform_real_distribution<double> factor(0.25, 1.5);
    q_descale = TensorBuffer(DType::kF32, {sequences, heads_k, 1, 1});
    k_descale = TensorBuffer(DType::kF32, {sequences, heads_k, blocks, 1});
    v_descale = TensorBuffer(DType::kF32, {sequences, heads_k, blocks, 1});
    for (const TensorBuffer* t : {&q_descale, &k_descale, &v_descale})
      t->generate([&](auto...) { return factor(random); });
  }

  [[nodiscard]] ForwardCall call() const {
    const auto on_gpu = [](const TensorBuffer& t) {
      Tensor view = t.view();
      view.device = {DeviceType::kCUDA, 0};
      return view;
    };
    ForwardCall call = {.q = on_gpu(q), .k = on_gpu(k), .v = on_gpu(v), .o = on_gpu(o), .lse = on_gpu(lse)};
    Params& params = call.params;
    params.causal = f.causal;
    params.window_left = f.left;
    params.window_right = f.right;
    if (f.scale != 0) params.scale = scale();
    if (f.descales != Descales::kNone) {
      params.q_descale = on_gpu(q_descale);
      params.k_descale = on_gpu(k_descale);
      params.v_descale = on_gpu(v_descale);
    }
    if (!cu_q.empty()) {
      params.varlen = {cu_q.data(), cu_k.data(), f.sequences(), longest(f.cu_q), longest(f.cu_k)};
    }
    return call;
  }

  void run() const {
    const cuda::ContextGuard guard(0);
    forward(call());
    cuda::synchronize(nullptr);
  }

  /// Checks o and lse of every row of every `step`-th row.
  void check(std::int64_t step = 1) const {
    for (std::int64_t s = 0; s < f.sequences(); ++s) {
      const bool packed = !f.cu_q.empty();
      const auto at = static_cast<std::size_t>(s);
      const std::int64_t rows = packed ? f.cu_q[at + 1] - f.cu_q[at] : f.seqlen_q;
      for (std::int64_t h = 0; h < f.heads; ++h) {
        for (std::int64_t i = 0; i < rows; i += step) check_row(s, h, i);
        if (testing::Test::HasFailure()) return;
      }
    }
    fmt::print("largest error of o / its budget: {:.2f}; of lse: {:.2f}\n", worst_o, worst_lse);
  }

  Fp8Facts f;
  TensorBuffer q, k, v, o, lse, q_descale, k_descale, v_descale;
  TensorArray<std::int32_t> cu_q, cu_k;
  mutable double worst_o = 0, worst_lse = 0;

 private:
  [[nodiscard]] double scale() const {
    return (f.scale == 0 ? 1 : f.scale) / std::sqrt(static_cast<double>(f.head_dim));
  }
  [[nodiscard]] double descale(const TensorBuffer& t, std::int64_t s, std::int64_t h, std::int64_t key) const {
    if (f.descales == Descales::kNone) return 1;
    const Shape& shape = t.shape();
    return t.at(shape[0] == 1 ? 0 : s, shape[1] == 1 ? 0 : h, shape[2] == 1 ? 0 : key / kBlockKeys, 0);
  }

  /// Compares one row. Rounding changes p[j] by a factor 1 + e, |e| <= 2^-4, or by 2^-15 of the largest p if it is that
  /// small. o is normalised by the sum of the rounded p, so the error of o is sum p e (v - o) / sum p. The e of
  /// different keys are independent, so the budget is six times the standard deviation of uniformly distributed e. The
  /// tensor cores keep 14 bits of sums, which changes scores by 2^-12 of the sum of |q k|, and o by 2^-11 of the sum of
  /// |p v|.
  void check_row(std::int64_t s, std::int64_t h, std::int64_t i) const {
    const bool packed = !f.cu_q.empty();
    const auto at = static_cast<std::size_t>(s);
    const std::int64_t b = packed ? 0 : s, hk = h / (f.heads / f.heads_k);
    const std::int64_t first_q = packed ? f.cu_q[at] : 0, first_k = packed ? f.cu_k[at] : 0;
    const std::int64_t rows = packed ? f.cu_q[at + 1] - first_q : f.seqlen_q;
    const std::int64_t keys = packed ? f.cu_k[at + 1] - first_k : f.seqlen_k;
    const std::int64_t diagonal = i + keys - rows;
    const std::int64_t right = f.causal ? 0 : f.right;
    const std::int64_t begin = f.left < 0 ? 0 : std::max<std::int64_t>(0, diagonal - f.left);
    const std::int64_t end = right < 0 ? keys : std::min(keys, diagonal + right + 1);
    const std::string place = fmt::format("sequence {} head {} row {}", s, h, i);
    std::vector<double> p;
    double most = -std::numeric_limits<double>::infinity(), score_error = 0;
    for (std::int64_t j = begin; j < end; ++j) {
      double sum = 0, magnitude = 0;
      for (std::int64_t c = 0; c < f.head_dim; ++c) {
        const double product = q.at(b, h, first_q + i, c) * k.at(b, hk, first_k + j, c);
        sum += product;
        magnitude += std::abs(product);
      }
      const double factor = scale() * descale(q_descale, s, hk, 0) * descale(k_descale, s, hk, j);
      p.push_back(sum * factor);
      most = std::max(most, p.back());
      score_error = std::max(score_error, magnitude * std::abs(factor) * 0x1p-12);
    }
    double l = 0;
    for (double& x : p) l += x = std::exp(x - most);
    const double found_lse = lse.at(b, h, first_q + i, 0);
    if (p.empty()) {
      EXPECT_EQ(found_lse, -std::numeric_limits<double>::infinity()) << place;
      for (std::int64_t c = 0; c < f.head_dim_v; ++c) EXPECT_EQ(o.at(b, h, first_q + i, c), 0) << place;
      return;
    }
    const double lse_budget = score_error + 1e-5 + 0x1p-22 * std::abs(most);
    const double lse_error = std::abs(found_lse - (most + std::log(l)));
    EXPECT_TRUE(lse_error <= lse_budget) << place << ": lse " << found_lse << ", not " << most + std::log(l);
    worst_lse = std::max(worst_lse, lse_error / lse_budget);
    for (std::int64_t c = 0; c < f.head_dim_v; ++c) {
      const auto value = [&](std::size_t j) {
        const std::int64_t key = begin + static_cast<std::int64_t>(j);
        return v.at(b, hk, first_k + key, c) * descale(v_descale, s, hk, key);
      };
      double exact = 0, magnitude = 0;
      for (std::size_t j = 0; j < p.size(); ++j) {
        exact += p[j] * value(j) / l;
        magnitude += p[j] * std::abs(value(j)) / l;
      }
      double variance = 0, lost = 0, spread = 0;
      for (std::size_t j = 0; j < p.size(); ++j) {
        const double distance = std::abs(value(j) - exact) / l;
        variance += p[j] * p[j] * distance * distance / 3;
        lost += std::min(p[j], 0x1p-15) * distance;
        spread += p[j] * distance;
      }
      const double budget = 6 * 0x1p-4 * std::sqrt(variance) + lost + score_error * spread + 0x1p-11 * magnitude +
                            unit_roundoff(f.output) * std::abs(exact);
      const double found = o.at(b, h, first_q + i, c);
      EXPECT_TRUE(std::abs(found - exact) <= budget) << place << " column " << c << ": " << found << ", not " << exact;
      worst_o = std::max(worst_o, std::abs(found - exact) / budget);
    }
  }
};

/// Expects that the call throws an error whose message contains `text`.
template <class Call>
void expect_refused(const Call& call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

class Sm90Fp8 : public HopperTest {};
class Sm90Fp8Forward : public Sm90Fp8, public testing::WithParamInterface<Fp8Facts> {};

TEST_P(Sm90Fp8Forward, StaysInBudget) {
  const Fp8Case one(GetParam());
  EXPECT_EQ(plan(one.call()).compute(), kCompute);
  one.run();
  one.check();
  EXPECT_TRUE(one.o.gaps_intact());
}

INSTANTIATE_TEST_SUITE_P(
    Slice, Sm90Fp8Forward,
    testing::Values(Fp8Facts{},
                    Fp8Facts{.output = DType::kF16, .heads = 2, .seqlen_q = 200, .seqlen_k = 333, .causal = true},
                    Fp8Facts{.output = DType::kF32,
                             .batch = 2,
                             .heads = 4,
                             .heads_k = 2,
                             .seqlen_q = 70,
                             .seqlen_k = 300,
                             .head_dim = 64,
                             .head_dim_v = 64,
                             .descales = Descales::kHeads,
                             .layout = Layout::kBSHD},
                    Fp8Facts{.heads = 2,
                             .seqlen_q = 150,
                             .seqlen_k = 290,
                             .left = 100,
                             .right = 30,
                             .descales = Descales::kBlocks,
                             .scale = -3},
                    Fp8Facts{.output = DType::kF16,
                             .seqlen_q = 300,
                             .seqlen_k = 100,
                             .head_dim = 96,
                             .head_dim_v = 96,
                             .causal = true,
                             .descales = Descales::kTensor,
                             .layout = Layout::kBSHD},
                    Fp8Facts{.heads = 2,
                             .heads_k = 1,
                             .seqlen_q = 180,
                             .seqlen_k = 420,
                             .head_dim = 64,
                             .head_dim_v = 64,
                             .causal = true,
                             .descales = Descales::kHeads,
                             .cu_q = {0, 1, 1, 131, 180},
                             .cu_k = {0, 150, 210, 415, 420}},
                    Fp8Facts{.output = DType::kF32,
                             .heads = 2,
                             .heads_k = 1,
                             .seqlen_q = 180,
                             .seqlen_k = 420,
                             .left = 64,
                             .descales = Descales::kBlocks,
                             .cu_q = {0, 1, 1, 131, 180},
                             .cu_k = {0, 150, 210, 415, 420}},
                    Fp8Facts{.output = DType::kF32, .seqlen_q = 64, .seqlen_k = 700, .scale = 12, .mean_v = 1},
                    Fp8Facts{.output = DType::kF32,
                             .seqlen_q = 64,
                             .seqlen_k = 700,
                             .head_dim = 64,
                             .head_dim_v = 128,
                             .scale = 0x1p-20,
                             .mean_v = 1}),
    kIndexName);

/// Cases with enough rows for blocks of two or three consumers. Small problems use one consumer.
INSTANTIATE_TEST_SUITE_P(
    Tall, Sm90Fp8Forward,
    testing::Values(Fp8Facts{.heads = 132, .heads_k = 66, .seqlen_q = 128, .seqlen_k = 333},
                    Fp8Facts{.output = DType::kF16,
                             .heads = 132,
                             .heads_k = 132,
                             .seqlen_q = 130,
                             .seqlen_k = 260,
                             .causal = true,
                             .descales = Descales::kHeads},
                    Fp8Facts{.heads = 132, .heads_k = 132, .seqlen_q = 256, .seqlen_k = 130, .causal = true},
                    Fp8Facts{.heads = 132,
                             .heads_k = 132,
                             .seqlen_q = 200,
                             .seqlen_k = 300,
                             .left = 0,
                             .right = 40,
                             .descales = Descales::kBlocks},
                    Fp8Facts{.output = DType::kF32,
                             .heads = 132,
                             .heads_k = 132,
                             .seqlen_q = 192,
                             .seqlen_k = 290,
                             .head_dim = 64,
                             .head_dim_v = 64},
                    Fp8Facts{.heads = 132,
                             .heads_k = 66,
                             .seqlen_q = 380,
                             .seqlen_k = 250,
                             .head_dim = 64,
                             .head_dim_v = 64,
                             .causal = true,
                             .descales = Descales::kBlocks},
                    Fp8Facts{.heads = 132,
                             .heads_k = 132,
                             .seqlen_q = 384,
                             .seqlen_k = 384,
                             .head_dim = 96,
                             .head_dim_v = 64,
                             .left = 70,
                             .right = 3,
                             .layout = Layout::kBSHD}),
    kIndexName);

/// If all values are equal, the rounding errors of p cancel. The tensor cores truncate the sums of a key tile.
TEST_F(Sm90Fp8, EqualValuesAreExactUpToTheRoundingOfSums) {
  for (const double scale : {0.01, 1.0, 20.0}) {
    const Fp8Case one({.output = DType::kF32, .seqlen_q = 64, .seqlen_k = 500, .scale = scale});
    one.v.fill(1.75);
    one.run();
    for (const double x : one.o.values()) EXPECT_NEAR(x, 1.75, 1.75 * 0x1p-10);
  }
}

/// The sums of many tiles are in float32. If the tensor cores summed all keys, they would lose small terms.
TEST_F(Sm90Fp8, LongSumsKeepSmallTerms) {
  for (const std::int64_t head_dim : {64, 128}) {
    const Fp8Case one({.output = DType::kF32,
                       .heads = 2,
                       .seqlen_q = 128,
                       .seqlen_k = 32768,
                       .head_dim = head_dim,
                       .head_dim_v = head_dim,
                       .scale = 0.5,
                       .mean_v = 0.5},
                      7);
    one.run();
    one.check(16);
  }
}

TEST_F(Sm90Fp8, RepeatsAreBitEqual) {
  const Fp8Case one({.batch = 2,
                     .heads = 4,
                     .heads_k = 2,
                     .seqlen_q = 700,
                     .seqlen_k = 900,
                     .causal = true,
                     .descales = Descales::kHeads});
  one.run();
  const std::vector<std::byte> first = one.o.bytes();
  for (int i = 0; i < 20; ++i) {
    one.o.fill(0);
    one.run();
    ASSERT_EQ(one.o.bytes(), first);
  }
}

/// NaN in v beyond the end of a packed sequence must not reach the sequence.
TEST_F(Sm90Fp8, NaNBeyondASequenceStaysThere) {
  const Fp8Case one(
      {.output = DType::kF32, .seqlen_q = 70, .seqlen_k = 300, .cu_q = {0, 40, 70}, .cu_k = {0, 130, 300}});
  for (std::int64_t j = 130; j < 300; ++j) {
    for (std::int64_t c = 0; c < 128; ++c) {
      one.k.set(0, 0, j, c, std::nan(""));
      one.v.set(0, 0, j, c, std::nan(""));
    }
  }
  one.run();
  for (std::int64_t i = 0; i < 70; ++i) {
    for (std::int64_t c = 0; c < 128; ++c) EXPECT_EQ(std::isnan(one.o.at(0, 0, i, c)), i >= 40) << i;
  }
}

TEST_F(Sm90Fp8, RefusesWhatItDoesNotSupport) {
  const Fp8Case one({});
  ForwardCall call = one.call();
  call.params.softcap = 5;
  expect_refused([&] { forward(call); }, "softcap");
  call = one.call();
  call.params.compute = "sm90_forward";
  expect_refused([&] { forward(call); }, "f8e4m3");
  call = one.call();
  call.params.q_descale = call.lse;
  expect_refused([&] { forward(call); }, "q_descale");
  call = one.call();
  call.v.dtype = DType::kI8;
  expect_refused([&] { forward(call); }, "v: dtype");
  const Fp8Case odd({.head_dim = 80, .head_dim_v = 80});
  expect_refused([&] { forward(odd.call()); }, "head_dim 80");
  const Fp8Case unaligned({.layout = Layout::kPadded});
  expect_refused([&] { forward(unaligned.call()); }, "multiples of 16 bytes");
}

}  // namespace
}  // namespace attend::test
