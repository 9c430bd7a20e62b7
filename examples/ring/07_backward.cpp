// Lesson 7: gradients. Two properties let the backward pass use the ring as well:
//
// - The gradients of a block of keys do not need the softmax of the other keys. With the full row's lse, exp(s - lse)
//   is the row's true probability, and softmax's derivative subtracts <dout, o> with the final o. Therefore
//   attend::backward on one block, given lse and o of the full row, returns this block's dk and dv, and its part of dq.
// - Rows stay on their rank, so the parts of dq are added there. Keys are sent around the ring. The sums of dk and dv
//   are sent with their keys, and each rank adds its part. After N steps the sums are back at the owner of the keys.
#include <algorithm>
#include <cstdio>
#include <random>
#include <tuple>
#include <vector>

#include "attend/attention.hpp"
#include "difference.hpp"
#include "mailbox.hpp"

namespace {

using attend::DType;
using attend::Tensor;

constexpr int kRanks = 3, kTokens = 40, kDim = 16;  // tokens of a rank
constexpr std::size_t kBlock = kTokens * kDim;      // numbers of a rank's k, v, dk or dv

std::vector<float> random_rows(unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(kRanks * kBlock);
  for (float& value : values) value = normal(engine);
  return values;
}

/// Returns attend's view of (tokens, columns) numbers: a Tensor, or a ConstTensor for const numbers.
auto rows(auto* values, int tokens, int columns = kDim) {
  return Tensor::bhsd(values, DType::kF32, {1, 1, tokens, columns});
}

void add(float* sum, const std::vector<float>& share) {
  for (std::size_t i = 0; i < share.size(); ++i) sum[i] += share[i];
}

}  // namespace

int main() {
  constexpr int kAll = kRanks * kTokens;
  const std::vector<float> q = random_rows(1), k = random_rows(2), v = random_rows(3), dout = random_rows(4);
  std::vector<float> o(q.size()), lse(kAll), dq(q.size()), dk(q.size()), dv(q.size());
  const Tensor all_lse = rows(lse.data(), kAll, 1);
  attend::forward({.q = rows(q.data(), kAll),
                   .k = rows(k.data(), kAll),
                   .v = rows(v.data(), kAll),
                   .o = rows(o.data(), kAll),
                   .lse = all_lse});
  attend::backward({.q = rows(q.data(), kAll),
                    .k = rows(k.data(), kAll),
                    .v = rows(v.data(), kAll),
                    .o = rows(o.data(), kAll),
                    .lse = all_lse,
                    .dout = rows(dout.data(), kAll),
                    .dq = rows(dq.data(), kAll),
                    .dk = rows(dk.data(), kAll),
                    .dv = rows(dv.data(), kAll)});

  std::vector<Mailbox> boxes(kRanks);
  std::vector<float> ring_dq(q.size()), ring_dk(q.size()), ring_dv(q.size());
  on_ranks(kRanks, [&](int rank) {
    const std::size_t mine = rank * kBlock;
    Message held(4 * kBlock);  // k, v, and the sums of dk and dv so far, initially zero
    std::copy_n(k.begin() + mine, kBlock, held.begin());
    std::copy_n(v.begin() + mine, kBlock, held.begin() + kBlock);
    for (int step = 0; step < kRanks; ++step) {
      std::vector<float> dq_share(kBlock), dk_share(kBlock), dv_share(kBlock);
      attend::backward({.q = rows(&q[mine], kTokens),
                        .k = rows(held.data(), kTokens),
                        .v = rows(held.data() + kBlock, kTokens),
                        .o = rows(&o[mine], kTokens),
                        .lse = rows(&lse[rank * kTokens], kTokens, 1),
                        .dout = rows(&dout[mine], kTokens),
                        .dq = rows(dq_share.data(), kTokens),
                        .dk = rows(dk_share.data(), kTokens),
                        .dv = rows(dv_share.data(), kTokens)});
      add(&ring_dq[mine], dq_share);
      add(held.data() + 2 * kBlock, dk_share);
      add(held.data() + 3 * kBlock, dv_share);
      boxes[(rank + 1) % kRanks].put(held);
      held = boxes[rank].take();
    }
    std::copy_n(held.begin() + 2 * kBlock, kBlock, ring_dk.begin() + mine);
    std::copy_n(held.begin() + 3 * kBlock, kBlock, ring_dv.begin() + mine);
  });

  bool right = true;
  for (const auto& [name, want, got] :
       {std::tuple{"dq", &dq, &ring_dq}, {"dk", &dk, &ring_dk}, {"dv", &dv, &ring_dv}}) {
    const float error = largest_difference(*want, *got);
    std::printf("%s of %d ranks against one call: largest error %.1e, allowed 5e-6\n", name, kRanks, error);
    right = right && error <= 5e-6F;
  }
  return right ? 0 : 1;
}
