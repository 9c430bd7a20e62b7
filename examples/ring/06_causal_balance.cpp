// Lesson 6: a causal mask, and who has the work. Row i sees keys 0 to i. Cut into contiguous parts, the first rank's
// rows see next to nothing and the last one's everything, and every step takes as long as its slowest rank.
//
// Zigzag gives rank r the chunks r and 2N-1-r of 2N: one that sees little and one that sees much. Striped gives it
// every N-th token. Both come out even. The result is the same in any of them (lesson 4 looks at it): the mask goes by
// where a token stands in the whole sequence.
#include <algorithm>
#include <cstdio>
#include <tuple>
#include <vector>

#include "attend/ring.hpp"

namespace {

using attend::Sharding;

constexpr int kRanks = 4, kTokens = 640;

/// Pairs of rows of rank `rank` and keys of rank `owner` that the mask leaves.
double visible(Sharding sharding, int rank, int owner) {
  const auto rows = attend::shard_positions(sharding, kTokens, rank, kRanks);
  const auto keys = attend::shard_positions(sharding, kTokens, owner, kRanks);
  double pairs = 0;
  for (const std::int64_t row : rows) {
    pairs += static_cast<double>(std::count_if(keys.begin(), keys.end(), [row](auto key) { return key <= row; }));
  }
  return pairs;
}

/// Prints each step's work, in blocks of all rows of a rank and all keys of another. Returns how much longer the steps
/// take, each as long as its slowest rank, than with the same work for everybody.
double imbalance(Sharding sharding) {
  std::printf("%s\n", attend::sharding_name(sharding));
  constexpr double kBlock = static_cast<double>(kTokens / kRanks) * (kTokens / kRanks);
  double slowest = 0, all = 0;
  for (int step = 0; step < kRanks; ++step) {
    double most = 0;
    std::printf("  step %d:", step);
    for (int rank = 0; rank < kRanks; ++rank) {
      const double pairs = visible(sharding, rank, (rank + kRanks - step) % kRanks);
      std::printf("  rank %d %.2f", rank, pairs / kBlock);
      most = std::max(most, pairs);
      all += pairs;
    }
    std::printf("\n");
    slowest += most;
  }
  return slowest / (all / kRanks);
}

}  // namespace

int main() {
  bool right = true;
  for (const auto& [sharding, least, most] :
       {std::tuple{Sharding::kContiguous, 1.7, 1.8}, {Sharding::kZigzag, 1.0, 1.01}, {Sharding::kStriped, 1.0, 1.02}}) {
    const double times = imbalance(sharding);
    std::printf("  %.3f times as long as with equal work\n", times);
    right = right && times >= least && times <= most;
  }
  return right ? 0 : 1;
}
