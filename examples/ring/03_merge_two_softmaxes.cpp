// Lesson 3: merging two softmaxes. Attention over some keys gives o and lse = log(sum of exp(scores)). The results (o1,
// lse1) over the first keys and (o2, lse2) over the others are merged into attention over all keys:
//
//   lse = log(exp(lse1) + exp(lse2)),   o = exp(lse1 - lse) o1 + exp(lse2 - lse) o2
//
// The exponents are never positive, so nothing overflows. A part that saw no key has lse = -inf and weight 0.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "attend/attention.hpp"
#include "difference.hpp"

namespace {

constexpr int kRows = 50, kKeys = 80, kDim = 16;

struct Part {
  std::vector<float> o = std::vector<float>(kRows * kDim);
  std::vector<float> lse = std::vector<float>(kRows);
};

std::vector<float> random_rows(int rows, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(rows) * kDim);
  for (float& value : values) value = normal(engine);
  return values;
}

/// Computes attention of all rows over keys [begin, end).
Part attention(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v, int begin,
               int end) {
  using attend::DType;
  using attend::Tensor;
  Part part;
  const attend::Shape keys = {1, 1, end - begin, kDim};
  const Tensor lse = Tensor::bhsd(part.lse.data(), DType::kF32, {1, 1, kRows, 1});
  attend::forward(Tensor::bhsd(q.data(), DType::kF32, {1, 1, kRows, kDim}),
                  Tensor::bhsd(k.data() + begin * kDim, DType::kF32, keys),
                  Tensor::bhsd(v.data() + begin * kDim, DType::kF32, keys),
                  Tensor::bhsd(part.o.data(), DType::kF32, {1, 1, kRows, kDim}), &lse);
  return part;
}

Part merge(const Part& a, const Part& b) {
  Part merged;
  for (int row = 0; row < kRows; ++row) {
    const float high = std::max(a.lse[row], b.lse[row]);
    if (high == -INFINITY) {
      merged.lse[row] = -INFINITY;  // neither part saw a key; o stays 0
      continue;
    }
    const float lse = high + std::log1p(std::exp(std::min(a.lse[row], b.lse[row]) - high));
    const float weight_a = std::exp(a.lse[row] - lse);
    const float weight_b = std::exp(b.lse[row] - lse);
    merged.lse[row] = lse;
    for (int c = row * kDim; c < (row + 1) * kDim; ++c) merged.o[c] = weight_a * a.o[c] + weight_b * b.o[c];
  }
  return merged;
}

}  // namespace

int main() {
  const std::vector<float> q = random_rows(kRows, 1), k = random_rows(kKeys, 2), v = random_rows(kKeys, 3);
  const Part whole = attention(q, k, v, 0, kKeys);
  bool right = true;
  for (const int cut : {0, 1, 40, kKeys}) {
    const Part merged = merge(attention(q, k, v, 0, cut), attention(q, k, v, cut, kKeys));
    const float error = std::max(largest_difference(merged.o, whole.o), largest_difference(merged.lse, whole.lse));
    std::printf("cut after %2d keys: largest error %.1e, allowed 5e-6\n", cut, error);
    right = right && error <= 5e-6F;
  }
  return right ? 0 : 1;
}
