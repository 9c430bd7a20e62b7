// How the ranks of a ring talk: messages of bytes between two ranks, sent and received without waiting.
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

/// Messages of different channels do not see each other. Those of one channel from one rank to another arrive in the
/// order in which they were sent.
enum class Channel : std::uint8_t { kAgreement, kKeysValues, kKeyGradients, kHeads };

/// Why a rank fails whose thread was asked to end the call.
inline constexpr const char* kInterrupted = "interrupted";

/// A message on its way. Its buffer belongs to the transport until wait() has returned or the object is gone.
class Pending {
 public:
  Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  virtual ~Pending() = default;

  /// Returns when the buffer is the caller's again: sent, or filled. To be called once.
  /// @throws Error where another rank has failed, or sent a message of another size.
  virtual void wait() = 0;
};

/// A message in the memory of a GPU, to or from another rank.
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

  /// Begins to send to another rank.
  [[nodiscard]] virtual std::unique_ptr<Pending> send(int to, Channel channel, std::span<const std::byte> bytes) = 0;

  /// Begins to receive exactly bytes.size() bytes. Receives of one channel and rank are waited for in their order.
  [[nodiscard]] virtual std::unique_ptr<Pending> receive(int from, Channel channel, std::span<std::byte> bytes) = 0;

  /// Every rank's message, of the same size each, one after another by rank: all.size() is size() * mine.size().
  /// A rendezvous. By send() and receive() where a transport has no better way.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all);

  /// What stands for tensors' device in a refusal ("cpu"), where such tensors cannot travel; else nothing.
  [[nodiscard]] virtual std::optional<std::string> allowed_instead(Device device) const;

  /// Sends and receives in the order of state().stream(), which all ranks do in the same order of exchanges: one that
  /// a rank sends to has it among its receives. At most one message from each rank to each. Does not wait for the GPU,
  /// but maybe for other ranks to get there.
  virtual void exchange(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives);

  /// What this rank has on the GPU of its calls' tensors; made by the first call there.
  [[nodiscard]] virtual DeviceState& state(int device);

  /// Where this rank's calls record what they do from now on; null, as in the beginning: nowhere.
  void record_in(Timeline* timeline) { timeline_ = timeline; }
  [[nodiscard]] Timeline* timeline() const { return timeline_; }

  /// The number of the call that this rank begins now, from 1 on.
  [[nodiscard]] std::uint64_t next_call() { return ++num_calls_; }

  /// This rank gives up a call that others wait in: their waits shall end.
  virtual void fail(const std::string& why) = 0;

 protected:
  /// To be called first by destructors of those whose messages may be under way on the state's stream.
  void drop_state() noexcept { state_.reset(); }
  [[nodiscard]] DeviceState& state() const { return *state_; }

 private:
  std::unique_ptr<DeviceState> state_;
  Timeline* timeline_ = nullptr;
  std::uint64_t num_calls_ = 0;
};

}  // namespace attend::ring
