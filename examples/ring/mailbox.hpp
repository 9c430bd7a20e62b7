// Messages between the ranks of these lessons. A rank is a thread. Each rank has a mailbox, into which its previous
// rank puts messages.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

using Message = std::vector<float>;

class Mailbox {
 public:
  /// Stores the message without waiting for the receiver.
  void put(Message message) {
    const std::lock_guard lock(mutex_);
    messages_.push(std::move(message));
    arrived_.notify_one();
  }

  /// Waits until there is a message, and returns it.
  Message take() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !messages_.empty(); });
    Message message = std::move(messages_.front());
    messages_.pop();
    return message;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::queue<Message> messages_;
};

/// Runs rank(r) for every rank r, each on a separate thread.
inline void on_ranks(int num_ranks, const std::function<void(int)>& rank) {
  std::vector<std::thread> threads;
  for (int r = 0; r < num_ranks; ++r) threads.emplace_back(rank, r);
  for (std::thread& thread : threads) thread.join();
}
