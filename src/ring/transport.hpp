// How the ranks of a ring talk: messages of bytes between two ranks, sent and received without waiting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace attend::ring {

/// Messages of different channels do not see each other. Those of one channel from one rank to another arrive in the
/// order in which they were sent.
enum class Channel : std::uint8_t { kAgreement, kKeysValues, kKeyGradients };

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

  /// This rank gives up a call that others wait in: their waits shall end.
  virtual void fail(const std::string& why) = 0;
};

}  // namespace attend::ring
