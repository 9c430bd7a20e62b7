// Lesson 1: a message. Every rank sends to the next one and receives from the previous one.
//
// All ranks do the same thing, so all send at the same time. If sending waited for the receiver, each would wait for
// the next to receive, which is sending too: a circle in which nobody ever moves. So a rank begins to send, goes on to
// receive, and looks after its own message later. Here the mailbox keeps it.
#include <cstdio>

#include "mailbox.hpp"

int main() {
  constexpr int kRanks = 4;
  std::vector<Mailbox> boxes(kRanks);  // boxes[r]: what rank r - 1 sent to rank r
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
