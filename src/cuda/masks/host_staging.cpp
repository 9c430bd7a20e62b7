#include "cuda/masks/host_staging.hpp"

#include <mutex>

#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::cuda {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr std::size_t kMostKept = 4;

/// The page-locked buffers that are not in use.
struct Kept {
  std::mutex mutex;
  std::vector<std::byte*> pieces;
};

Kept& kept() {
  static auto* all = new Kept();  // never destroyed, because calls may continue during process exit
  return *all;
}

/// Returns a page-locked buffer, or nullptr if the system cannot lock more pages. The caller then uses ordinary memory.
std::byte* take_piece() {
  {
    const std::lock_guard lock(kept().mutex);
    if (!kept().pieces.empty()) {
      std::byte* const piece = kept().pieces.back();
      kept().pieces.pop_back();
      return piece;
    }
  }
  constexpr unsigned kPortable = 1;  // CU_MEMHOSTALLOC_PORTABLE: all contexts can use the buffer
  void* piece = nullptr;
  const RelaxedCapture relaxed;  // otherwise this allocation would end a capture by another thread
  return driver().host_alloc(&piece, kPieceBytes, kPortable) == 0 ? static_cast<std::byte*>(piece) : nullptr;
}

}  // namespace

HostStaging::HostStaging(std::size_t bytes) {
  if (bytes <= kPieceBytes) locked_ = take_piece();
  if (locked_ == nullptr) ordinary_.resize(bytes);
}

HostStaging::~HostStaging() {
  if (locked_ == nullptr) return;
  {
    const std::lock_guard lock(kept().mutex);
    if (kept().pieces.size() < kMostKept) {
      kept().pieces.push_back(locked_);
      return;
    }
  }
  const RelaxedCapture relaxed;
  driver().host_free(locked_);
}

}  // namespace attend::cuda
