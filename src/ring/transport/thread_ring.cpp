// A ring whose ranks are threads of one process. A message stays in its sender's memory until the receiver has copied
// it.
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
#include "core/wait.hpp"
#include "cuda/driver/peer.hpp"
#include "cuda/driver/stream.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {
namespace {

constexpr std::size_t kNumChannels = 5;
// Additional channel for the messages of exchange(); it is not an enumerator of Channel.
constexpr auto kDeviceChannel = static_cast<Channel>(4);

enum class MessageState : std::uint8_t { kPosted, kBeingCopied, kTaken };

struct Message {
  std::span<const std::byte> bytes;
  MessageState state = MessageState::kPosted;
  // These fields are used only for messages in GPU memory. The receiver's stream waits for `ready`, and the sender's
  // stream waits for `copied`.
  int device = 0;
  std::shared_ptr<cuda::Event> ready = {};
  std::shared_ptr<cuda::Event> copied = {};
};

/// State that all ranks share. For each pair of ranks and each channel, it has a list of the messages that the receiver
/// has not yet taken.
class Hub {
 public:
  Hub(int num_ranks, const RingLimits& limits)
      : num_ranks_(num_ranks),
        timeout_(limits.timeout),
        posted_(static_cast<std::size_t>(num_ranks) * num_ranks * kNumChannels) {}

  [[nodiscard]] int num_ranks() const { return num_ranks_; }

  void post(int from, int to, Channel channel, const std::shared_ptr<Message>& message) {
    const std::lock_guard lock(mutex_);
    posted(from, to, channel).push_back(message);
    changed_.notify_all();
  }

  void wait_until_taken(const Message& message, int from, int to) {
    std::unique_lock lock(mutex_);
    wait(lock, from, to, [&] { return message.state == MessageState::kTaken || failure_; });
    if (message.state != MessageState::kTaken) throw_failure();
  }

  /// Waits for a message of `size` bytes. Then calls copy(message), which must read the message.
  template <class Copy>
  void take(int from, int to, Channel channel, std::size_t size, Copy copy) {
    std::unique_lock lock(mutex_);
    std::list<std::shared_ptr<Message>>& messages = posted(from, to, channel);
    wait(lock, to, from, [&] { return !messages.empty() || failure_; });
    if (messages.empty()) throw_failure();
    const std::shared_ptr<Message> message = messages.front();
    if (message->bytes.size() != size) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("ring: {} bytes from rank {}, expected {}", message->bytes.size(), from, size));
    }
    messages.pop_front();
    message->state = MessageState::kBeingCopied;
    lock.unlock();
    const auto leave_in = [&](MessageState state) {
      lock.lock();
      message->state = state;
      changed_.notify_all();
    };
    try {
      copy(*message);
    } catch (...) {
      leave_in(MessageState::kPosted);  // allows the sender to withdraw the message
      throw;
    }
    leave_in(MessageState::kTaken);
  }

  /// Removes the message. Returns only when no rank reads the message any more.
  void withdraw(int from, int to, Channel channel, const std::shared_ptr<Message>& message) {
    std::unique_lock lock(mutex_);
    core::wait_until_done(changed_, lock, [&] { return message->state != MessageState::kBeingCopied; });
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

  /// Waits until is_done() returns true. Throws after the time limit.
  template <class IsDone>
  void wait(std::unique_lock<std::mutex>& lock, int waiting, int other, IsDone is_done) {
    if (timeout_.count() == 0) return core::wait_until_done(changed_, lock, is_done);
    if (changed_.wait_for(lock, timeout_, is_done)) return;
    throw Error(ErrorCode::kInternal,
                fmt::format("ring: rank {} has waited {} ms for rank {}", waiting, timeout_.count(), other));
  }

  [[noreturn]] void throw_failure() const { throw Error(ErrorCode::kInternal, *failure_); }

  int num_ranks_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::list<std::shared_ptr<Message>>> posted_;
  std::optional<std::string> failure_;
};

class PendingSend : public Pending {
 public:
  PendingSend(std::shared_ptr<Hub> hub, int from, int to, Channel channel, Message message)
      : hub_(std::move(hub)),
        from_(from),
        to_(to),
        channel_(channel),
        message_(std::make_shared<Message>(std::move(message))) {
    hub_->post(from_, to_, channel_, message_);
  }
  ~PendingSend() override { withdraw(); }
  void wait() override { hub_->wait_until_taken(*message_, from_, to_); }

 protected:
  void withdraw() { hub_->withdraw(from_, to_, channel_, message_); }
  [[nodiscard]] const Message& message() const { return *message_; }

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
  void wait() override {
    hub_->take(from_, to_, channel_, bytes_.size(), [this](const Message& message) {
      if (!bytes_.empty()) std::memcpy(bytes_.data(), message.bytes.data(), bytes_.size());
    });
  }

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
    return std::make_unique<PendingSend>(hub_, rank_, to, channel, Message{bytes});
  }
  [[nodiscard]] std::unique_ptr<Pending> receive(int from, Channel channel, std::span<std::byte> bytes) override {
    return std::make_unique<PendingReceive>(hub_, from, rank_, channel, bytes);
  }
  [[nodiscard]] std::optional<std::string> allowed_instead(Device /*device*/) const override { return std::nullopt; }
  void exchange(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives) override;
  void fail(const std::string& why) override { hub_->fail(rank_, why); }

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
};

/// A send from GPU memory. The receiver copies the message on its own stream.
class DeviceSend : public PendingSend {
 public:
  DeviceSend(std::shared_ptr<Hub> hub, int from, int to, Message message, cuda::StreamHandle stream)
      : PendingSend(std::move(hub), from, to, kDeviceChannel, std::move(message)), stream_(stream) {}

  /// Waits for the copy if the call has failed on this rank, because the receiver may still be copying.
  ~DeviceSend() override {
    if (is_ordered_) return;
    withdraw();
    try {
      order();
    } catch (const Error&) {
      return;  // if the CUDA context no longer exists, its memory is already freed
    }
  }

  /// Makes later work on the stream wait for the copy. Afterwards that work may overwrite the message's memory.
  void finish() {
    wait();  // returns when the receiver has queued the copy
    order();
  }

 private:
  void order() {
    if (message().copied) message().copied->make_wait(stream_);
    is_ordered_ = true;
  }

  cuda::StreamHandle stream_;
  bool is_ordered_ = false;
};

// All ranks post all their sends before they wait. Thus no rank waits for a rank that has not posted its sends.
void ThreadTransport::exchange(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives) {
  const cuda::StreamHandle stream = state().stream();
  const int device = state().device();
  const auto ready = std::make_shared<cuda::Event>();
  ready->record(stream);
  std::list<DeviceSend> posted;
  for (const DeviceMessage& m : sends) {
    const auto* const data = reinterpret_cast<const std::byte*>(m.data);  // NOLINT(performance-no-int-to-ptr)
    const Message message = {.bytes = {data, m.bytes}, .device = device, .ready = ready};
    posted.emplace_back(hub_, rank_, m.peer, message, stream);
  }
  for (const DeviceMessage& m : receives) {
    hub_->take(m.peer, rank_, kDeviceChannel, m.bytes, [&](Message& message) {
      message.ready->make_wait(stream);
      auto copied = std::make_shared<cuda::Event>();
      cuda::enable_peer_access(device, message.device);  // without peer access, CUDA copies through host memory
      const auto from = reinterpret_cast<cuda::DevicePointer>(message.bytes.data());
      cuda::copy_between({device, m.data}, {message.device, from}, m.bytes, stream);
      copied->record(stream);
      message.copied = std::move(copied);
    });
  }
  for (DeviceSend& send : posted) send.finish();
}

}  // namespace
}  // namespace attend::ring

namespace attend {

std::vector<RingContext> make_thread_ring(int num_ranks, const RingLimits& limits) {
  if (num_ranks < 1) throw Error(ErrorCode::kInvalidArgument, fmt::format("num_ranks: {}, allowed >= 1", num_ranks));
  const auto hub = std::make_shared<ring::Hub>(num_ranks, limits);
  std::vector<RingContext> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.emplace_back(std::make_shared<ring::ThreadTransport>(hub, rank));
  }
  return ranks;
}

}  // namespace attend
