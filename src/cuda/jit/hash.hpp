// XXH3-128 over a sequence of parts. It is not cryptographic. It detects damage and distinguishes variants.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace attend::cuda {

using Digest = std::array<std::byte, 16>;  ///< canonical (big-endian) order

/// Hashes a sequence of parts. The length of each part is hashed too, so that a different split of the same bytes gives
/// a different hash.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void add(std::string_view part);
  void add(std::span<const std::byte> part);
  void add(std::uint64_t number);
  [[nodiscard]] Digest digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns 32 hexadecimal digits.
[[nodiscard]] std::string hex(const Digest& digest);

}  // namespace attend::cuda
