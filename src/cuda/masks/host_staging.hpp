// Memory of the host that copies from a GPU go to.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace attend::cuda {

/// Memory until the destructor. As much as most masks need is page-locked: a copy into it is asynchronous, and nobody
/// stages it. Page-locked pieces are kept for later calls, a few. Larger ones are ordinary memory, and so are all where
/// the system locks no more pages.
class HostStaging {
 public:
  HostStaging() = default;
  /// Wants a current context.
  explicit HostStaging(std::size_t bytes);
  /// No copy into it is under way.
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
