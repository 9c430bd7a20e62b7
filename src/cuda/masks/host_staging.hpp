// Host memory into which results are copied from a GPU.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace attend::cuda {

/// Host memory that the destructor releases. Small memory is page-locked, so that copies from the GPU are asynchronous
/// and need no intermediate buffer. The size limit suffices for most masks. A few page-locked buffers are kept for
/// later calls. Larger memory is ordinary host memory. If the system cannot lock more pages, small memory is ordinary
/// too.
class HostStaging {
 public:
  HostStaging() = default;
  /// Allocates `bytes` bytes. A context must be current.
  explicit HostStaging(std::size_t bytes);
  /// Releases the memory. No copy into the memory may be pending.
  ~HostStaging();
  HostStaging(HostStaging&& other) noexcept
      : locked_(std::exchange(other.locked_, nullptr)), ordinary_(std::move(other.ordinary_)) {}
  HostStaging& operator=(HostStaging&& other) noexcept {
    std::swap(locked_, other.locked_);
    std::swap(ordinary_, other.ordinary_);
    return *this;
  }

  [[nodiscard]] std::byte* data() noexcept { return locked_ != nullptr ? locked_ : ordinary_.data(); }
  [[nodiscard]] const std::byte* data() const noexcept { return locked_ != nullptr ? locked_ : ordinary_.data(); }

 private:
  std::byte* locked_ = nullptr;
  std::vector<std::byte> ordinary_;
};

}  // namespace attend::cuda
