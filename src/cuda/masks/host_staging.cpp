#include "cuda/masks/host_staging.hpp"

#include <mutex>

#include "cuda/driver/driver.hpp"

namespace attend::cuda {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr std::size_t kMostKept = 4;

/// Page-locked pieces that nobody uses.
struct Kept {
  std::mutex mutex;
  std::vector<std::byte*> pieces;
};

Kept& kept() {
  static auto* all = new Kept();  // calls may go on while the process ends
  return *all;
}

std::byte* take_piece() {
  {
    const std::lock_guard lock(kept().mutex);
    if (!kept().pieces.empty()) {
      std::byte* const piece = kept().pieces.back();
      kept().pieces.pop_back();
      return piece;
    }
  }
  constexpr unsigned kPortable = 1;  // CU_MEMHOSTALLOC_PORTABLE: for all contexts
  void* piece = nullptr;
  check_call(driver().host_alloc(&piece, kPieceBytes, kPortable), "cuMemHostAlloc", "making a block mask");
  return static_cast<std::byte*>(piece);
}

}  // namespace

HostStaging::HostStaging(std::size_t bytes) {
  if (bytes <= kPieceBytes) {
    locked_ = take_piece();
  } else {
    ordinary_.resize(bytes);
  }
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
  driver().host_free(locked_);
}

}  // namespace attend::cuda
