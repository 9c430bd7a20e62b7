// Host copies of GPU arrays, for the checks of ATTEND_CHECK=1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <forward_list>
#include <vector>

#include "core/cache_layout.hpp"
#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// Owns the copies. They are complete when wait() has returned. The device's context must be current, and the stream
/// must not be in a capture.
class HostCopies {
 public:
  explicit HostCopies(StreamHandle stream) : stream_(stream) {}

  /// Returns host memory that receives the `count` elements at `device`, or null if `device` is null.
  template <class T>
  [[nodiscard]] const T* of(const T* device, std::int64_t count) {
    return static_cast<const T*>(fetch(device, static_cast<std::size_t>(count) * sizeof(T)));
  }

  /// Replaces the arrays of the cache index with copies. Descales stay, because no check reads them.
  void replace_arrays(core::CacheLayout& layout, std::int64_t num_sequences);

  void wait() const;

 private:
  const void* fetch(const void* device, std::size_t bytes);

  StreamHandle stream_;
  std::forward_list<std::vector<std::byte>> arrays_;
};

}  // namespace attend::cuda
