// Lesson 2: blocks are passed around the ring. Each rank owns a block of numbers, and in N steps sees the blocks of all
// ranks. It holds one block at a time (two, while one leaves and the next arrives). In step t rank r holds the block of
// rank (r - t) mod N.
//
// A rank sends the block before it works with it, so the next block arrives meanwhile.
#include <cstdio>
#include <numeric>

#include "mailbox.hpp"

int main() {
  constexpr int kRanks = 5;
  constexpr int kNumbers = 1000;  // numbers of a block
  std::vector<Mailbox> boxes(kRanks);
  std::vector<double> sums(kRanks);
  std::vector<int> wrong_owner(kRanks);
  on_ranks(kRanks, [&](int rank) {
    Message held(kNumbers, static_cast<float>(rank));  // every number of a block identifies its owner
    for (int step = 0; step < kRanks; ++step) {
      if (step + 1 < kRanks) boxes[(rank + 1) % kRanks].put(held);
      const int owner = (rank + kRanks - step) % kRanks;
      if (held[0] != static_cast<float>(owner)) ++wrong_owner[rank];
      sums[rank] += std::accumulate(held.begin(), held.end(), 0.0);
      if (step + 1 < kRanks) held = boxes[rank].take();
    }
  });
  bool right = true;
  for (int rank = 0; rank < kRanks; ++rank) {
    const double want = kNumbers * kRanks * (kRanks - 1) / 2.0;
    std::printf("rank %d: sum of all blocks %.0f, should be %.0f\n", rank, sums[rank], want);
    right = right && sums[rank] == want && wrong_owner[rank] == 0;
  }
  return right ? 0 : 1;
}
