// Memory of the host that processes of one machine have in common, under a name (POSIX shared memory).
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

  /// A new block of zeros. @param name  begins with a slash and has no other
  /// @throws Error (kInternal) where the system refuses.
  [[nodiscard]] static SharedBlock make(const std::string& name, std::size_t bytes);

  /// One that another has made, of as many bytes. @throws Error likewise.
  [[nodiscard]] static SharedBlock open(const std::string& name, std::size_t bytes);

  /// Takes the name away from a block made here: nobody can open it any more, and it goes with the last who has it.
  void forget_name() noexcept;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }  ///< empty once it is forgotten
  [[nodiscard]] std::span<std::byte> memory() const noexcept { return memory_; }

 private:
  [[nodiscard]] static SharedBlock map(const std::string& name, int flags, std::size_t bytes);

  std::span<std::byte> memory_;
  std::string name_;  // while the block made here has it
};

}  // namespace attend::ring
