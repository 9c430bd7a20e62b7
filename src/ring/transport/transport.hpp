// Communication between ranks: messages of bytes between two ranks, sent and received asynchronously.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "attend/tensor.hpp"
#include "ring/transport/device_state.hpp"
#include "ring/transport/timeline.hpp"

namespace attend::ring {

/// Channels are independent of each other. Messages of one channel from one rank to another arrive in the order in
/// which they were sent.
enum class Channel : std::uint8_t { kAgreement, kKeysValues, kKeyGradients, kHeads };

/// Reason of failure if the caller has interrupted the rank's call.
inline constexpr const char* kInterrupted = "interrupted";

/// A message in transit. Its buffer belongs to the transport until wait() has returned or the object is destroyed.
class Pending {
 public:
  Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  virtual ~Pending() = default;

  /// Waits until the buffer belongs to the caller again: sent, or filled. Call once.
  /// @throws Error if another rank has failed, or sent a message of another size.
  virtual void wait() = 0;
};

/// A message in GPU memory, to or from another rank.
struct DeviceMessage {
  int peer;
  cuda::DevicePointer data;
  std::size_t bytes;  ///< > 0
};

/// One rank's end of the ring.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// Starts an asynchronous send to another rank.
  [[nodiscard]] virtual std::unique_ptr<Pending> send(int to, Channel channel, std::span<const std::byte> bytes) = 0;

  /// Starts an asynchronous receive of bytes.size() bytes. Receives of one channel and rank must be waited for in
  /// order.
  [[nodiscard]] virtual std::unique_ptr<Pending> receive(int from, Channel channel, std::span<std::byte> bytes) = 0;

  /// Gathers one message of equal size from every rank, in the order of ranks: all.size() is size() * mine.size().
  /// Returns when all ranks have called. The default uses send() and receive().
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all);

  /// If tensors of the device cannot travel, returns the allowed device ("cpu") for the error message; otherwise
  /// nothing.
  [[nodiscard]] virtual std::optional<std::string> allowed_instead(Device device) const;

  /// Sends and receives in the order of state().stream(). All ranks must make the same exchanges in the same order:
  /// each send of a rank must match a receive of its peer. At most one message from each rank to each. Does not wait
  /// for the GPU, but may wait for other ranks to reach the exchange.
  virtual void exchange(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives);

  /// Returns this rank's state on the GPU of its tensors, made by the first call there.
  [[nodiscard]] virtual DeviceState& state(int device);

  /// Sets the timeline that later calls of this rank record to; null, the default: no recording.
  void record_in(Timeline* timeline) { timeline_ = timeline; }
  [[nodiscard]] Timeline* timeline() const { return timeline_; }

  /// Returns the number of the call that this rank begins now, from 1 on.
  [[nodiscard]] std::uint64_t next_call() { return ++num_calls_; }

  /// Reports that this rank gives up a call. Must end the waits of the other ranks.
  virtual void fail(const std::string& why) = 0;

 protected:
  /// Destructors must call this first if messages may be in transit on the state's stream.
  void drop_state() noexcept { state_.reset(); }
  [[nodiscard]] DeviceState& state() const { return *state_; }

 private:
  std::unique_ptr<DeviceState> state_;
  Timeline* timeline_ = nullptr;
  std::uint64_t num_calls_ = 0;
};

}  // namespace attend::ring
