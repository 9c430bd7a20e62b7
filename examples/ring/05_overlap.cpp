// Lesson 5: the exchange hides behind the work. A block takes time to travel. Whoever sends it on only when he is done
// with it waits for the next one in every step; whoever sends it first works meanwhile, and a step takes the longer of
// the two, not their sum:
//
//   first work, then send    N work + (N - 1) link
//   first send, then work    N work, as long as the link takes less time than the work
//
// The price is a second block of memory: one is worked on while the next one arrives.
// Here the link takes 25 ms a block and the work 30 ms, both slept, so that the lesson holds on a busy machine too.
#include <chrono>
#include <cstdio>
#include <future>
#include <numeric>

#include "mailbox.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kRanks = 4;
constexpr int kNumbers = 1000;  // of a block
constexpr milliseconds kWork(30), kLink(25);

/// A link on which a message takes its time while its sender goes on. The future is the message on its way.
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

/// All blocks pass all ranks. Returns the milliseconds that it took, or -1 where a rank's sum is wrong.
double pass_round(bool send_first) {
  std::vector<Mailbox> boxes(kRanks);
  std::vector<double> sums(kRanks);
  const auto begin = Clock::now();
  on_ranks(kRanks, [&](int rank) {
    Message held(kNumbers, static_cast<float>(rank));
    for (int step = 0; step < kRanks; ++step) {
      const bool goes_on = step + 1 < kRanks;  // the last block that a rank sees has been everywhere
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
