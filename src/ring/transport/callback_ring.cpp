// Sends the ring's messages through functions that the caller provides.
#include <fmt/format.h>

#include <utility>

#include "attend/ring.hpp"
#include "core/problem_checks.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {
namespace {

class PendingCallback : public Pending {
 public:
  explicit PendingCallback(RingCallbacks::Wait wait) : wait_(std::move(wait)) {}
  void wait() override {
    if (wait_) wait_();
  }

 private:
  RingCallbacks::Wait wait_;
};

class CallbackTransport : public Transport {
 public:
  CallbackTransport(int rank, int size, RingCallbacks callbacks)
      : rank_(rank), size_(size), callbacks_(std::move(callbacks)) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  // Empty messages are not sent, because sender and receiver can both compute the size.
  [[nodiscard]] std::unique_ptr<Pending> send(int to, Channel channel, std::span<const std::byte> bytes) override {
    require_alive();
    if (bytes.empty()) return std::make_unique<PendingCallback>(nullptr);
    return std::make_unique<PendingCallback>(callbacks_.send(to, static_cast<int>(channel), bytes));
  }
  [[nodiscard]] std::unique_ptr<Pending> receive(int from, Channel channel, std::span<std::byte> bytes) override {
    require_alive();
    if (bytes.empty()) return std::make_unique<PendingCallback>(nullptr);
    return std::make_unique<PendingCallback>(callbacks_.receive(from, static_cast<int>(channel), bytes));
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    require_alive();
    if (!callbacks_.all_gather) return Transport::all_gather(mine, all);
    callbacks_.all_gather(mine, all);
  }

  void fail(const std::string& why) override {
    if (!failure_.empty()) return;
    failure_ = why;
    if (callbacks_.fail) callbacks_.fail(why);
  }

 private:
  /// Throws if an earlier call has failed. Messages of that call may still be in transit, and the next call would
  /// receive them.
  void require_alive() const {
    if (!failure_.empty()) {
      throw Error(ErrorCode::kInternal, fmt::format("ring: ended by an earlier call that failed: {}", failure_));
    }
  }

  int rank_, size_;
  RingCallbacks callbacks_;
  std::string failure_;
};

}  // namespace
}  // namespace attend::ring

namespace attend {

RingContext make_callback_ring(int rank, int size, RingCallbacks callbacks) {
  if (size < 1) core::refuse("size: {}, allowed >= 1", size);
  if (rank < 0 || rank >= size) core::refuse("rank: {}, allowed 0 to {}", rank, size - 1);
  if (!callbacks.send) core::refuse("callbacks.send: none, allowed a function");
  if (!callbacks.receive) core::refuse("callbacks.receive: none, allowed a function");
  return RingContext(std::make_shared<ring::CallbackTransport>(rank, size, std::move(callbacks)));
}

}  // namespace attend
