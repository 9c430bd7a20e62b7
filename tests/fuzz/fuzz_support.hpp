// Helpers shared by the fuzz targets.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

#include "attend/error.hpp"

namespace attend::fuzz {

/// Aborts, and so reports a finding to the fuzzer, if a condition does not hold.
inline void require(bool holds) {
  if (!holds) std::abort();
}

/// Requires that the error message is a single, non-empty line.
inline void require_sound(const Error& error) {
  const std::string_view message = error.what();
  require(!message.empty() && message.find('\n') == std::string_view::npos);
}

/// A file that exists only in memory, but has a path.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("fuzz", 0)) { require(descriptor_ >= 0); }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void set(const void* data, std::size_t size) const {
    require(::ftruncate(descriptor_, 0) == 0);
    require(::pwrite(descriptor_, data, size, 0) == static_cast<ssize_t>(size));
  }
  void resize(std::size_t size) const { require(::ftruncate(descriptor_, static_cast<off_t>(size)) == 0); }
  [[nodiscard]] std::string name() const { return std::to_string(descriptor_); }
  [[nodiscard]] static std::string folder() { return "/proc/self/fd"; }

 private:
  int descriptor_;
};

}  // namespace attend::fuzz
