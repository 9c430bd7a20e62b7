// The XXH3-128 hash of a sequence of strings and numbers. It is used to detect damaged files and to distinguish kernel
// variants. It is not cryptographic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace attend::cuda {

using Digest = std::array<std::byte, 16>;  ///< in canonical (big-endian) byte order

/// Hashes a sequence of parts. The hash includes the length of each part. If the same bytes are divided into different
/// parts, the hash is therefore different.
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
