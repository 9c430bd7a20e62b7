// Forward and backward of one causal attention, with grouped heads, on tensors that the caller owns.
//   cmake -S . -B build -DCMAKE_PREFIX_PATH=/opt/attend && cmake --build build && build/example
// The first row sees only one key. Its o is therefore the v of that key, its lse is the score of that key, and its dq
// is zero. The program checks all three, and that attend::Error reports a wrong argument.
#include <attend/attention.hpp>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

constexpr std::int64_t kBatch = 2, kHeads = 4, kHeadsK = 2, kSeqlen = 128, kHeadDim = 64;

/// (kBatch, heads, kSeqlen, columns) floats and attend's view of them.
struct Matrix {
  std::vector<float> data;
  attend::Tensor view;

  Matrix(std::int64_t heads, std::int64_t columns)
      : data(static_cast<std::size_t>(kBatch * heads * kSeqlen * columns), std::nanf("")),
        view(attend::Tensor::bhsd(data.data(), attend::DType::kF32, {kBatch, heads, kSeqlen, columns})) {}

  void fill_normal(std::mt19937& engine) {
    std::normal_distribution<float> normal;
    for (float& x : data) x = normal(engine);
  }
};

float distance(float a, float b) {
  return std::abs(a - b) / (1 + std::abs(b));
}

}  // namespace

int main() try {
  Matrix q(kHeads, kHeadDim), o(kHeads, kHeadDim), dout(kHeads, kHeadDim), dq(kHeads, kHeadDim);
  Matrix k(kHeadsK, kHeadDim), v(kHeadsK, kHeadDim), dk(kHeadsK, kHeadDim), dv(kHeadsK, kHeadDim);
  Matrix lse(kHeads, 1);
  std::mt19937 engine(1);
  for (Matrix* random : {&q, &k, &v, &dout}) random->fill_normal(engine);

  const attend::Params params = {.causal = true};
  attend::forward({.q = q.view, .k = k.view, .v = v.view, .o = o.view, .lse = lse.view, .params = params});
  attend::backward({.q = q.view,
                    .k = k.view,
                    .v = v.view,
                    .o = o.view,
                    .lse = lse.view,
                    .dout = dout.view,
                    .dq = dq.view,
                    .dk = dk.view,
                    .dv = dv.view,
                    .params = params});

  float score = 0;
  for (std::size_t d = 0; d < kHeadDim; ++d) score += q.data[d] * k.data[d] / std::sqrt(float{kHeadDim});
  std::printf("attend %s\n", attend::version());
  std::printf("lse[0, 0, 0]   %+.6f  (its only score: %+.6f)\n", lse.data[0], score);
  std::printf("o[0, 0, 0, 0]  %+.6f  (its only value: %+.6f)\n", o.data[0], v.data[0]);
  std::printf("dv[0, 0, 0, 0] %+.6f\n", dv.data[0]);

  constexpr float kBudget = 1e-5F;  // relative; the comparisons are written so that NaN fails
  bool passed = distance(lse.data[0], score) <= kBudget;
  for (std::size_t d = 0; d < kHeadDim; ++d) {
    passed = passed && distance(o.data[d], v.data[d]) <= kBudget && std::abs(dq.data[d]) <= kBudget;
  }
  for (const Matrix* result : {&o, &lse, &dq, &dk, &dv}) {
    for (const float x : result->data) passed = passed && std::isfinite(x);
  }
  try {
    attend::forward({.q = q.view, .k = k.view, .v = o.view, .o = o.view});
    passed = false;
  } catch (const attend::Error& error) {
    std::printf("refused: %s\n", error.what());
  }
  std::puts(passed ? "example: ok" : "example: FAILED");
  return passed ? 0 : 1;
} catch (const attend::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
