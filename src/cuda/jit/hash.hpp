// XXH3-128 over a sequence of parts. Not cryptographic: it finds damage and tells variants apart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace attend::cuda {

using Digest = std::array<std::byte, 16>;  ///< in canonical (big-endian) order

/// Feeds parts to the hash. Each part goes in with its length, so that moving a border between two parts shows.
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

/// 32 hexadecimal digits.
[[nodiscard]] std::string hex(const Digest& digest);

}  // namespace attend::cuda
