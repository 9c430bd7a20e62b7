// Arrays of a GPU, read back for the checks that ATTEND_CHECK=1 asks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <forward_list>
#include <vector>

#include "core/cache_layout.hpp"
#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// Owns what it read. Every copy is there when wait() has returned. Wants the device's context current, and a stream
/// that is not being captured.
class HostCopies {
 public:
  explicit HostCopies(StreamHandle stream) : stream_(stream) {}

  /// Host memory that gets the `count` elements at `device`; null for null.
  template <class T>
  [[nodiscard]] const T* of(const T* device, std::int64_t count) {
    return static_cast<const T*>(fetch(device, static_cast<std::size_t>(count) * sizeof(T)));
  }

  /// The arrays of the index become copies. Not the descales: no check reads them.
  void replace_arrays(core::CacheLayout& layout, std::int64_t num_sequences);

  void wait() const;

 private:
  const void* fetch(const void* device, std::size_t bytes);

  StreamHandle stream_;
  std::forward_list<std::vector<std::byte>> arrays_;
};

}  // namespace attend::cuda
