// Host copies of index arrays on a GPU. ATTEND_CHECK=1 checks these copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <forward_list>
#include <vector>

#include "core/cache_layout.hpp"
#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// Owns host copies of arrays. The copies are complete when wait() has returned. The GPU's context must be current, and
/// the stream must not be captured.
class HostCopies {
 public:
  explicit HostCopies(StreamHandle stream) : stream_(stream) {}

  /// Starts copying `count` elements at the GPU address `device` to the host. Returns the host address, or null if
  /// `device` is null.
  template <class T>
  [[nodiscard]] const T* of(const T* device, std::int64_t count) {
    return static_cast<const T*>(fetch(device, static_cast<std::size_t>(count) * sizeof(T)));
  }

  /// Replaces the index arrays of the cache by host copies. The scaling factors are not copied, because no check reads
  /// them.
  void replace_arrays(core::CacheLayout& layout, std::int64_t num_sequences);

  void wait() const;

 private:
  const void* fetch(const void* device, std::size_t bytes);

  StreamHandle stream_;
  std::forward_list<std::vector<std::byte>> arrays_;
};

}  // namespace attend::cuda
