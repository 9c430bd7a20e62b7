// Aligned float scratch memory of a thread. The memory is kept between calls, because the operating system would need
// time to provide new pages, which would slow down small problems.
#pragma once

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cpu/tiles.hpp"

namespace attend::cpu {

/// Hands out 64-byte aligned float arrays from one block. The caller first reserves the total size, and then calls
/// take() for each array.
class Scratch {
 public:
  /// Makes room for `floats` floats. Arrays from earlier take() calls become invalid. The contents of new arrays are
  /// unspecified.
  void reserve(std::int64_t floats) {
    taken_ = 0;
    if (floats > capacity_) {
      block_ = hwy::AllocateAligned<float>(static_cast<std::size_t>(floats));
      if (!block_) throw_out_of_memory(floats);
      capacity_ = floats;
    }
#ifdef __SANITIZE_ADDRESS__  // In this build, uninitialised memory contains NaN, so that wrong reads become visible.
    std::fill_n(block_.get(), floats, std::numeric_limits<float>::quiet_NaN());
#endif
  }

  [[nodiscard]] float* take(std::int64_t floats) {
    float* at = block_.get() + taken_;
    taken_ += round_up(floats, kAlignFloats);
    return at;
  }

  /// Frees the block if it is large, because an idle thread should not keep much memory.
  void release_if_large() {
    if (capacity_ <= kKeptFloats) return;
    block_.reset();
    capacity_ = 0;
  }

  /// Returns the number of floats that take(floats) uses, including alignment.
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
