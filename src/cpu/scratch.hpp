// Aligned float scratch memory of a thread, kept between calls so that small problems do not pay for fresh pages.
#pragma once

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cpu/tiles.hpp"

namespace attend::cpu {

/// Hands out 64-byte aligned float arrays from one block. The caller first reserves the total size and then takes the
/// arrays.
class Scratch {
 public:
  /// Makes room for `floats`. Arrays from earlier take() calls become invalid. Contents are unspecified.
  void reserve(std::int64_t floats) {
    taken_ = 0;
    if (floats > capacity_) {
      block_ = hwy::AllocateAligned<float>(static_cast<std::size_t>(floats));
      if (!block_) throw_out_of_memory(floats);
      capacity_ = floats;
    }
#ifdef __SANITIZE_ADDRESS__  // detects reads of uninitialised memory in this build
    std::fill_n(block_.get(), floats, std::numeric_limits<float>::quiet_NaN());
#endif
  }

  [[nodiscard]] float* take(std::int64_t floats) {
    float* at = block_.get() + taken_;
    taken_ += round_up(floats, kAlignFloats);
    return at;
  }

  /// Frees the block if it is too large to keep on an idle thread.
  void release_if_large() {
    if (capacity_ <= kKeptFloats) return;
    block_.reset();
    capacity_ = 0;
  }

  /// Returns the floats that take(floats) uses.
  [[nodiscard]] static constexpr std::int64_t size_of(std::int64_t floats) {
    return round_up(floats, kAlignFloats);
  }

  /// Returns the calling thread's object.
  static Scratch& of_this_thread();

 private:
  static constexpr std::int64_t kAlignFloats = 16;            // 64 bytes
  static constexpr std::int64_t kKeptFloats = (8 << 20) / 4;  // 8 MiB
  [[noreturn]] static void throw_out_of_memory(std::int64_t floats);

  hwy::AlignedFreeUniquePtr<float[]> block_;
  std::int64_t capacity_ = 0;
  std::int64_t taken_ = 0;
};

}  // namespace attend::cpu
