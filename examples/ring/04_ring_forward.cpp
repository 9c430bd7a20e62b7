// Lesson 4: ring attention. Lessons 1 to 3 in one call: keys and values are passed around, and each rank merges the
// results of its rows.
//
// The tokens are distributed in zigzag, so that under the causal mask all ranks have the same work in every step. The
// result is reassembled and compared with one call over the entire sequence.
#include <cstdio>
#include <random>
#include <vector>

#include "attend/ring.hpp"
#include "difference.hpp"
#include "mailbox.hpp"

namespace {

constexpr attend::Sharding kSharding = attend::Sharding::kZigzag;
constexpr attend::Shape kShape = {1, 4, 1000, 32};  // (batch, heads, seqlen, head_dim)

/// A dense float32 tensor and its memory.
struct Owned {
  std::vector<float> values;
  attend::Tensor view;

  explicit Owned(const attend::Shape& shape)
      : values(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3])),
        view(attend::Tensor::bhsd(values.data(), attend::DType::kF32, shape)) {}
};

void fill(Owned& tensor, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  for (float& value : tensor.values) value = normal(engine);
}

}  // namespace

int main() {
  constexpr int kRanks = 4;
  const attend::Params params = {.causal = true};
  Owned q(kShape), k(kShape), v(kShape), o(kShape), o_of_ring(kShape);
  fill(q, 1);
  fill(k, 2);
  fill(v, 3);
  attend::forward(q.view, k.view, v.view, o.view, nullptr, params);

  const std::vector<attend::RingContext> ranks = attend::make_thread_ring(kRanks);
  on_ranks(kRanks, [&](int rank) {
    attend::Shape shape = kShape;
    shape[2] = attend::shard_seqlen(kSharding, kShape[2], rank, kRanks);
    Owned my_q(shape), my_k(shape), my_v(shape), my_o(shape);
    attend::shard(kSharding, q.view, my_q.view, rank, kRanks);
    attend::shard(kSharding, k.view, my_k.view, rank, kRanks);
    attend::shard(kSharding, v.view, my_v.view, rank, kRanks);
    attend::ring_forward(ranks[rank], my_q.view, my_k.view, my_v.view, my_o.view, nullptr, params, kSharding);
    attend::unshard(kSharding, my_o.view, o_of_ring.view, rank, kRanks);
  });

  const float error = largest_difference(o.values, o_of_ring.values);
  std::printf("%d ranks against one call: largest error %.1e, allowed 5e-6\n", kRanks, error);
  return error <= 5e-6F ? 0 : 1;
}
