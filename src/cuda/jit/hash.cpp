#include "cuda/jit/hash.hpp"

#include <cstring>

#define XXH_INLINE_ALL  // makes the header define all functions, so no library needs to be linked
#include <xxhash.h>

namespace attend::cuda {

struct Hasher::State {
  XXH3_state_t xxh3;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh3);
}

Hasher::~Hasher() = default;

void Hasher::add(std::span<const std::byte> part) {
  add(std::uint64_t{part.size()});
  XXH3_128bits_update(&state_->xxh3, part.data(), part.size());
}

void Hasher::add(std::string_view part) {
  add(std::as_bytes(std::span(part)));
}

void Hasher::add(std::uint64_t number) {
  unsigned char little_endian[8];
  for (int i = 0; i < 8; ++i) little_endian[i] = static_cast<unsigned char>(number >> (8 * i));
  XXH3_128bits_update(&state_->xxh3, little_endian, sizeof(little_endian));
}

Digest Hasher::digest() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_->xxh3));
  Digest digest = {};
  static_assert(sizeof(canonical) == sizeof(digest));
  std::memcpy(digest.data(), &canonical, sizeof(canonical));
  return digest;
}

std::string hex(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : digest) {
    text += kDigits[std::to_integer<unsigned>(b) >> 4];
    text += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return text;
}

}  // namespace attend::cuda
