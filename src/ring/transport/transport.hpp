// Communication between ranks. A message is a number of bytes that one rank sends to another asynchronously.
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

/// Channels separate messages of different purposes. Messages of one channel from one rank to another arrive in the
/// order in which they were sent. Different channels are independent of each other.
enum class Channel : std::uint8_t { kAgreement, kKeysValues, kKeyGradients, kHeads };

/// Reason that a rank passes to fail() if the user has interrupted the rank's call.
inline constexpr const char* kInterrupted = "interrupted";

/// A message in transit. Its buffer must not be accessed until wait() has returned or the object is destroyed.
class Pending {
 public:
  Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  virtual ~Pending() = default;

  /// Waits until the buffer may be accessed again: a send has read it, or a receive has filled it. May be called once.
  /// @throws Error if another rank has failed, or sent a message of another size.
  virtual void wait() = 0;
};

/// A message in GPU memory that is sent to or received from another rank.
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

  /// Starts an asynchronous receive of bytes.size() bytes. The caller must wait for receives of one channel and rank
  /// in the order in which it started them.
  [[nodiscard]] virtual std::unique_ptr<Pending> receive(int from, Channel channel, std::span<std::byte> bytes) = 0;

  /// Gathers messages of equal size from all ranks, in the order of ranks. all.size() must be size() * mine.size().
  /// Returns only after all ranks have called. The default implementation uses send() and receive().
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all);

  /// Returns nothing if the transport supports tensors on this device. Otherwise returns the supported device ("cpu")
  /// for the error message.
  [[nodiscard]] virtual std::optional<std::string> allowed_instead(Device device) const;

  /// Sends and receives messages in stream order, on state().stream(). All ranks must make the same exchanges in the
  /// same order. For each send, the peer must have a matching receive. In an exchange, a rank sends at most one message
  /// to each other rank. Does not wait for the GPU, but may wait for other ranks to reach the exchange.
  virtual void exchange(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives);

  /// Returns this rank's state on the given GPU. The first call creates the state.
  [[nodiscard]] virtual DeviceState& state(int device);

  /// Sets the timeline to which later calls of this rank record. Null, the default, disables recording.
  void record_in(Timeline* timeline) { timeline_ = timeline; }
  [[nodiscard]] Timeline* timeline() const { return timeline_; }

  /// Returns the number of the call that this rank begins now. The first call is number 1.
  [[nodiscard]] std::uint64_t next_call() { return ++num_calls_; }

  /// Reports that this rank gives up a call. `why` is the reason. Implementations must make the waits of the other
  /// ranks end.
  virtual void fail(const std::string& why) = 0;

 protected:
  /// Destroys the state on the GPU. If a derived class may have messages in transit on the state's stream, its
  /// destructor must call this function first.
  void drop_state() noexcept { state_.reset(); }
  [[nodiscard]] DeviceState& state() const { return *state_; }

 private:
  std::unique_ptr<DeviceState> state_;
  Timeline* timeline_ = nullptr;
  std::uint64_t num_calls_ = 0;
};

}  // namespace attend::ring
