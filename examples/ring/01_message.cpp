// Lesson 1: a message. Every rank sends to the next rank and receives from the previous rank.
//
// All ranks run the same code, so all of them send at the same time. If a send waited for its receiver, each rank would
// wait for the next rank to receive. The next rank is sending too, so all ranks would wait forever. Therefore a rank
// starts its send, then receives, and completes its own send later. Here the mailbox stores the message.
#include <cstdio>

#include "mailbox.hpp"

int main() {
  constexpr int kRanks = 4;
  std::vector<Mailbox> boxes(kRanks);  // boxes[r]: messages from rank r - 1 to rank r
  std::vector<float> received(kRanks);
  on_ranks(kRanks, [&](int rank) {
    boxes[(rank + 1) % kRanks].put({100.0F + static_cast<float>(rank)});
    received[rank] = boxes[rank].take()[0];
  });
  bool right = true;
  for (int rank = 0; rank < kRanks; ++rank) {
    const int previous = (rank + kRanks - 1) % kRanks;
    std::printf("rank %d received %.0f from rank %d\n", rank, received[rank], previous);
    right = right && received[rank] == 100.0F + static_cast<float>(previous);
  }
  return right ? 0 : 1;
}
