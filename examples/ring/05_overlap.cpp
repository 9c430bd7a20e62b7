// Lesson 5: overlapping communication with computation. Sending a block takes time. If a rank works on its block first
// and then sends it, the next rank waits in every step. If the rank sends the block first, it works during the
// transfer. A step then takes the longer of the two times, and not their sum:
//
//   first work, then send    N work + (N - 1) link
//   first send, then work    N work, if the link takes less time than the work
//
// The cost is memory for a second block: the rank works on one while the next arrives. Here the link takes 25 ms per
// block and the work 30 ms. Both are sleeps, so the lesson also works on a busy machine.
#include <chrono>
#include <cstdio>
#include <future>
#include <numeric>

#include "mailbox.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kRanks = 4;
constexpr int kNumbers = 1000;  // numbers of a block
constexpr milliseconds kWork(30), kLink(25);

/// Sends over a slow link while the sender continues. The future represents the message in transit.
std::future<void> send(Mailbox& to, Message message) {
  return std::async(std::launch::async, [&to, message = std::move(message)]() mutable {
    std::this_thread::sleep_for(kLink);
    to.put(std::move(message));
  });
}

double work_on(const Message& block) {
  const auto end = Clock::now() + kWork;
  const double sum = std::accumulate(block.begin(), block.end(), 0.0);
  std::this_thread::sleep_until(end);
  return sum;
}

/// Passes all blocks through all ranks. Returns the elapsed milliseconds, or -1 if a rank's sum is wrong.
double pass_round(bool send_first) {
  std::vector<Mailbox> boxes(kRanks);
  std::vector<double> sums(kRanks);
  const auto begin = Clock::now();
  on_ranks(kRanks, [&](int rank) {
    Message held(kNumbers, static_cast<float>(rank));
    for (int step = 0; step < kRanks; ++step) {
      const bool goes_on = step + 1 < kRanks;  // the last block that a rank sees has visited all ranks
      Mailbox& next = boxes[(rank + 1) % kRanks];
      std::future<void> on_its_way;
      if (goes_on && send_first) on_its_way = send(next, held);
      sums[rank] += work_on(held);
      if (goes_on && !send_first) on_its_way = send(next, held);
      if (goes_on) held = boxes[rank].take();
    }
  });
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  for (const double sum : sums) {
    if (sum != kNumbers * kRanks * (kRanks - 1) / 2.0) return -1;
  }
  return ms;
}

}  // namespace

int main() {
  const double in_turn = pass_round(false), overlapped = pass_round(true);
  std::printf("%d ranks: first work, then send %.0f ms; first send, then work %.0f ms\n", kRanks, in_turn, overlapped);
  const bool right = in_turn > 0 && overlapped > 0 && overlapped < 0.85 * in_turn;
  return right ? 0 : 1;
}
