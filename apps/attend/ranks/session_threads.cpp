// Runs the ranks of one ring as threads of this process, for attend run --ring SHARDING --ranks N.
#include <algorithm>
#include <barrier>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "ranks/session.hpp"

namespace attend::cli {
namespace {

/// Data that the threads of the ring share.
struct Table {
  explicit Table(int num_ranks)
      : barrier(num_ranks),
        failures(static_cast<std::size_t>(num_ranks)),
        values(static_cast<std::size_t>(num_ranks)),
        sent(static_cast<std::size_t>(num_ranks)) {}

  std::barrier<> barrier;
  std::vector<std::string> failures;
  std::vector<double> values;

  std::mutex mutex;
  std::condition_variable changed;
  // Bytes that each rank sends to rank 0. An element is empty if the rank has nothing to send, or if rank 0 has already
  // copied the bytes.
  std::vector<std::span<std::byte>> sent;
  bool failed = false;  // true if any rank has failed; ranks then stop waiting for bytes
};

class ThreadSession : public RingSession {
 public:
  ThreadSession(RingContext context, Table& table) : context_(std::move(context)), table_(table) {}

  [[nodiscard]] const RingContext& context() const override { return context_; }
  [[nodiscard]] int local_size() const override { return context_.size(); }

  [[nodiscard]] std::string first_failure(const std::string& failure) override {
    table_.failures[me()] = failure;
    if (!failure.empty()) {
      const std::lock_guard lock(table_.mutex);
      table_.failed = true;
      table_.changed.notify_all();
    }
    table_.barrier.arrive_and_wait();  // waits until all ranks have written their failures
    std::string text;
    for (std::size_t rank = 0; rank < table_.failures.size() && text.empty(); ++rank) {
      text = table_.failures[rank];
      if (!text.empty() && rank > 0) text += " (on rank " + std::to_string(rank) + ")";
    }
    // Waits until all ranks have read the failures; afterwards the table may be overwritten.
    table_.barrier.arrive_and_wait();
    return text;
  }

  [[nodiscard]] double largest(double value) override {
    table_.values[me()] = value;
    table_.barrier.arrive_and_wait();
    const double found = *std::max_element(table_.values.begin(), table_.values.end());
    table_.barrier.arrive_and_wait();
    return found;
  }

  void bring_to_first(int rank, std::span<std::byte> bytes) override {
    if (rank == 0 || bytes.empty()) return;
    std::span<std::byte>& place = table_.sent[static_cast<std::size_t>(rank)];
    std::unique_lock lock(table_.mutex);
    if (context_.rank() == rank) {
      place = bytes;
      table_.changed.notify_all();
      // Waits until rank 0 has copied the bytes. Afterwards the caller may overwrite them.
      table_.changed.wait(lock, [&] { return place.empty() || table_.failed; });
      place = {};
    } else {
      table_.changed.wait(lock, [&] { return !place.empty() || table_.failed; });
      if (place.empty()) return;
      std::memcpy(bytes.data(), place.data(), bytes.size());
      place = {};
      table_.changed.notify_all();
    }
  }

 private:
  [[nodiscard]] std::size_t me() const { return static_cast<std::size_t>(context_.rank()); }

  RingContext context_;
  Table& table_;
};

}  // namespace

int on_threads(int num_ranks, const std::function<int(RingSession&)>& work) {
  Table table(num_ranks);
  const std::vector<RingContext> contexts = make_thread_ring(num_ranks);
  std::vector<int> statuses(contexts.size());
  std::vector<std::exception_ptr> failures(contexts.size());
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < contexts.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadSession session(contexts[rank], table);
        statuses[rank] = work(session);
      } catch (...) {
        failures[rank] = std::current_exception();
      }
      table.barrier.arrive_and_drop();  // from now on, other ranks do not wait for this rank
    });
  }
  threads.clear();  // waits until all threads have ended
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return statuses.front();
}

}  // namespace attend::cli
