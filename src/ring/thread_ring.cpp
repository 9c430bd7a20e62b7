// A ring of threads of one process. A message stays in its sender's memory until the receiver has copied it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include "attend/ring.hpp"
#include "ring/transport.hpp"

namespace attend::ring {
namespace {

constexpr std::size_t kNumChannels = 3;

enum class MessageState : std::uint8_t { kPosted, kBeingCopied, kTaken };

struct Message {
  std::span<const std::byte> bytes;
  MessageState state = MessageState::kPosted;
};

/// What the ranks share: for each pair of ranks and channel the messages that nobody has taken yet.
class Hub {
 public:
  explicit Hub(int num_ranks)
      : num_ranks_(num_ranks), posted_(static_cast<std::size_t>(num_ranks) * num_ranks * kNumChannels) {}

  [[nodiscard]] int num_ranks() const { return num_ranks_; }

  void post(int from, int to, Channel channel, const std::shared_ptr<Message>& message) {
    const std::lock_guard lock(mutex_);
    posted(from, to, channel).push_back(message);
    changed_.notify_all();
  }

  void wait_until_taken(const Message& message) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return message.state == MessageState::kTaken || failure_; });
    if (message.state != MessageState::kTaken) throw_failure();
  }

  /// Copies the first message into `bytes`, waiting for there to be one.
  void take(int from, int to, Channel channel, std::span<std::byte> bytes) {
    std::unique_lock lock(mutex_);
    std::list<std::shared_ptr<Message>>& messages = posted(from, to, channel);
    changed_.wait(lock, [&] { return !messages.empty() || failure_; });
    if (messages.empty()) throw_failure();
    const std::shared_ptr<Message> message = messages.front();
    if (message->bytes.size() != bytes.size()) {
      throw Error(ErrorCode::kInternal, fmt::format("ring: {} bytes from rank {} where {} were expected",
                                                    message->bytes.size(), from, bytes.size()));
    }
    messages.pop_front();
    message->state = MessageState::kBeingCopied;
    lock.unlock();
    if (!bytes.empty()) std::memcpy(bytes.data(), message->bytes.data(), bytes.size());
    lock.lock();
    message->state = MessageState::kTaken;
    changed_.notify_all();
  }

  /// Returns when nobody reads the message any more and nobody will.
  void withdraw(int from, int to, Channel channel, const std::shared_ptr<Message>& message) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return message->state != MessageState::kBeingCopied; });
    posted(from, to, channel).remove(message);
  }

  void fail(int rank, const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = fmt::format("ring: rank {} failed: {}", rank, why);
    changed_.notify_all();
  }

 private:
  [[nodiscard]] std::list<std::shared_ptr<Message>>& posted(int from, int to, Channel channel) {
    return posted_[(static_cast<std::size_t>(from) * num_ranks_ + to) * kNumChannels +
                   static_cast<std::size_t>(channel)];
  }

  [[noreturn]] void throw_failure() const { throw Error(ErrorCode::kInternal, *failure_); }

  int num_ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::list<std::shared_ptr<Message>>> posted_;
  std::optional<std::string> failure_;
};

class PendingSend : public Pending {
 public:
  PendingSend(std::shared_ptr<Hub> hub, int from, int to, Channel channel, std::span<const std::byte> bytes)
      : hub_(std::move(hub)), from_(from), to_(to), channel_(channel), message_(std::make_shared<Message>()) {
    message_->bytes = bytes;
    hub_->post(from_, to_, channel_, message_);
  }
  ~PendingSend() override { hub_->withdraw(from_, to_, channel_, message_); }
  void wait() override { hub_->wait_until_taken(*message_); }

 private:
  std::shared_ptr<Hub> hub_;
  int from_, to_;
  Channel channel_;
  std::shared_ptr<Message> message_;
};

class PendingReceive : public Pending {
 public:
  PendingReceive(std::shared_ptr<Hub> hub, int from, int to, Channel channel, std::span<std::byte> bytes)
      : hub_(std::move(hub)), from_(from), to_(to), channel_(channel), bytes_(bytes) {}
  void wait() override { hub_->take(from_, to_, channel_, bytes_); }

 private:
  std::shared_ptr<Hub> hub_;
  int from_, to_;
  Channel channel_;
  std::span<std::byte> bytes_;
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return hub_->num_ranks(); }
  [[nodiscard]] std::unique_ptr<Pending> send(int to, Channel channel, std::span<const std::byte> bytes) override {
    return std::make_unique<PendingSend>(hub_, rank_, to, channel, bytes);
  }
  [[nodiscard]] std::unique_ptr<Pending> receive(int from, Channel channel, std::span<std::byte> bytes) override {
    return std::make_unique<PendingReceive>(hub_, from, rank_, channel, bytes);
  }
  void fail(const std::string& why) override { hub_->fail(rank_, why); }

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
};

}  // namespace
}  // namespace attend::ring

namespace attend {

std::vector<RingContext> make_thread_ring(int num_ranks) {
  if (num_ranks < 1) throw Error(ErrorCode::kInvalidArgument, fmt::format("num_ranks: {}, allowed >= 1", num_ranks));
  const auto hub = std::make_shared<ring::Hub>(num_ranks);
  std::vector<RingContext> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.emplace_back(std::make_shared<ring::ThreadTransport>(hub, rank));
  }
  return ranks;
}

}  // namespace attend
