#include "cuda/driver/arch.hpp"

#include <fmt/format.h>

#include "attend/error.hpp"

namespace attend::cuda {
namespace {

constexpr int kKiB = 1024;

// Source of the shared memory sizes: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
constexpr Arch kArchs[] = {
    // target   major minor smem        cp_async fp8_mma tma    wgmma  tcgen05
    {"sm_70", 7, 0, 96 * kKiB, false, false, false, false, false},
    {"sm_75", 7, 5, 64 * kKiB, false, false, false, false, false},
    {"sm_80", 8, 0, 163 * kKiB, true, false, false, false, false},
    {"sm_86", 8, 6, 99 * kKiB, true, false, false, false, false},
    {"sm_87", 8, 7, 163 * kKiB, true, false, false, false, false},
    {"sm_89", 8, 9, 99 * kKiB, true, true, false, false, false},
    {"sm_90a", 9, 0, 227 * kKiB, true, true, true, true, false},
    {"sm_100a", 10, 0, 227 * kKiB, true, true, true, false, true},
    {"sm_103a", 10, 3, 227 * kKiB, true, true, true, false, true},
    {"sm_120", 12, 0, 99 * kKiB, true, true, true, false, false},
    {"sm_121", 12, 1, 99 * kKiB, true, true, true, false, false},
};

}  // namespace

std::span<const Arch> known_archs() noexcept {
  return kArchs;
}

std::string known_arch_names() {
  std::string names;
  for (const Arch& arch : kArchs) names += (names.empty() ? "" : ", ") + std::string(arch.target);
  return names;
}

const Arch& find_arch(std::string_view target) {
  for (const Arch& arch : kArchs) {
    if (target == arch.target) return arch;
  }
  throw Error(ErrorCode::kInvalidArgument, fmt::format("arch: '{}', allowed {}", target, known_arch_names()));
}

const Arch* find_capability(int major, int minor) noexcept {
  for (const Arch& arch : kArchs) {
    if (arch.major == major && arch.minor == minor) return &arch;
  }
  return nullptr;
}

const Arch& arch_of_capability(int major, int minor) {
  if (const Arch* arch = find_capability(major, minor)) return *arch;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("device: compute capability {}.{}, allowed those of {}", major, minor, known_arch_names()));
}

}  // namespace attend::cuda
