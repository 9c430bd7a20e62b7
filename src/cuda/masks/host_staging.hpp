// Host memory that receives copies from a GPU.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace attend::cuda {

/// Host memory that is released in the destructor. Up to the size that most masks need, it is page-locked, so copies
/// into it are asynchronous and need no intermediate buffer. A few page-locked pieces are kept for later calls. Larger
/// memory is ordinary, and so is all memory if the system cannot lock more pages.
class HostStaging {
 public:
  HostStaging() = default;
  /// A context must be current.
  explicit HostStaging(std::size_t bytes);
  /// No copy into the memory may be pending.
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
