// Named host memory that processes of one machine share, implemented as POSIX shared memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

namespace attend::ring {

class SharedBlock {
 public:
  SharedBlock() = default;
  ~SharedBlock();
  SharedBlock(SharedBlock&& other) noexcept
      : memory_(std::exchange(other.memory_, {})), name_(std::exchange(other.name_, {})) {}
  SharedBlock& operator=(SharedBlock&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(name_, other.name_);
    return *this;
  }

  /// Makes a new block of zeros. @param name  starts with a slash and contains no other slash
  /// @throws Error (kInternal) if the operating system refuses.
  [[nodiscard]] static SharedBlock make(const std::string& name, std::size_t bytes);

  /// Opens a block of the same size that another process has made. @throws Error (kInternal) if that fails.
  [[nodiscard]] static SharedBlock open(const std::string& name, std::size_t bytes);

  /// Removes the name of a block that this object has made. Afterwards no process can open the block. The operating
  /// system frees it when its last user closes it.
  void forget_name() noexcept;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }  ///< empty after forget_name()
  [[nodiscard]] std::span<std::byte> memory() const noexcept { return memory_; }

 private:
  [[nodiscard]] static SharedBlock map(const std::string& name, int flags, std::size_t bytes);

  std::span<std::byte> memory_;
  std::string name_;  // set while a block that this object has made has a name
};

}  // namespace attend::ring
