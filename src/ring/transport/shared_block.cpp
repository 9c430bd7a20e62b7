#include "ring/transport/shared_block.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "attend/error.hpp"

namespace attend::ring {
namespace {

[[noreturn]] void fail(const char* call, const std::string& name, int error) {
  throw Error(ErrorCode::kInternal, fmt::format("{}: {} for shared memory {}", call, std::strerror(error), name));
}

/// A file descriptor that is closed at the end of its scope.
struct File {
  int descriptor;
  ~File() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

}  // namespace

SharedBlock::~SharedBlock() {
  forget_name();
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
}

SharedBlock SharedBlock::map(const std::string& name, int flags, std::size_t bytes) {
  const File file = {::shm_open(name.c_str(), flags, S_IRUSR | S_IWUSR)};
  if (file.descriptor < 0) fail("shm_open", name, errno);
  SharedBlock block;
  const bool is_new = (flags & O_CREAT) != 0;
  if (is_new) {
    block.name_ = name;
    // Allocates all pages now. If the operating system had no free page later, an access to the memory would kill the
    // process.
    if (const int error = ::posix_fallocate(file.descriptor, 0, static_cast<off_t>(bytes)); error != 0) {
      fail("posix_fallocate", name, error);
    }
  }
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor, 0);
  if (memory == MAP_FAILED) fail("mmap", name, errno);
  block.memory_ = {static_cast<std::byte*>(memory), bytes};
  return block;
}

SharedBlock SharedBlock::make(const std::string& name, std::size_t bytes) {
  return map(name, O_CREAT | O_EXCL | O_RDWR, bytes);
}

SharedBlock SharedBlock::open(const std::string& name, std::size_t bytes) {
  return map(name, O_RDWR, bytes);
}

void SharedBlock::forget_name() noexcept {
  if (!name_.empty()) ::shm_unlink(name_.c_str());
  name_.clear();
}

}  // namespace attend::ring
