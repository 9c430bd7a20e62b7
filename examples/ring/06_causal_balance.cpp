// Lesson 6: the distribution of work under a causal mask. Row i sees keys 0 to i. If the sequence is cut into
// contiguous parts, the first rank's rows see few keys and the last rank's rows see all keys. Every step takes as long
// as its slowest rank.
//
// Zigzag cuts the sequence into 2N chunks and gives rank r the chunks r and 2N-1-r. The rows of the first chunk see few
// keys, and those of the second see many. Striped gives rank r every N-th token. Both distributions balance the work.
// The result is the same in each case (lesson 4 checks it), because the mask uses the token's position in the entire
// sequence.
#include <algorithm>
#include <cstdio>
#include <tuple>
#include <vector>

#include "attend/ring.hpp"

namespace {

using attend::Sharding;

constexpr int kRanks = 4, kTokens = 640;

/// Returns the number of visible pairs of rows of rank `rank` and keys of rank `owner`.
double visible(Sharding sharding, int rank, int owner) {
  const auto rows = attend::shard_positions(sharding, kTokens, rank, kRanks);
  const auto keys = attend::shard_positions(sharding, kTokens, owner, kRanks);
  double pairs = 0;
  for (const std::int64_t row : rows) {
    pairs += static_cast<double>(std::count_if(keys.begin(), keys.end(), [row](auto key) { return key <= row; }));
  }
  return pairs;
}

/// Prints the work of each step. The unit is a full block, which has all rows of one rank and all keys of another. Each
/// step takes as long as its slowest rank. Returns the total time divided by the time that balanced work would take.
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
