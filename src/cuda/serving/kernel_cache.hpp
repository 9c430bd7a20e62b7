// A cache of loaded serving kernels. The first call that uses a variant compiles and loads the kernel. Later calls find
// the kernel without creating its spec.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/kernel.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/jit/jit.hpp"

namespace attend::cuda {

/// Returns whether a kernel may start before the previous kernel has ended (kernels/isa/grid_dependency.cuh). CUDA
/// graphs support this since CUDA 12.3.
[[nodiscard]] inline bool may_start_early(const DeviceInfo& device) {
  return device.major >= 9 && driver().version >= 12030;
}

struct LoadedVariant {
  std::shared_ptr<const Kernel> kernel;
  unsigned threads = 0;
  unsigned smem_bytes = 0;  ///< bytes of dynamic shared memory
  /// Whether the kernel may start before the previous kernel in the stream has ended. If so, the kernel itself waits
  /// for the previous kernel.
  bool starts_early = false;

  void launch(const Dim3& grid, void* args, StreamHandle stream) const {
    void* parameters[] = {args};
    kernel->launch(
        {.grid = grid, .block = {threads}, .dynamic_smem_bytes = smem_bytes, .overlaps_previous = starts_early},
        parameters, stream);
  }
};

/// A cache whose key is a device and a struct. The struct must have no padding and must contain everything else on
/// which the spec depends. Thread-safe.
template <class Key>
class KernelCache {
  static_assert(std::has_unique_object_representations_v<Key>, "the bytes of a key are what it is looked up by");

 public:
  /// @param make_spec  function with the signature KernelSpec(const Arch&), called if the kernel is not loaded. If it
  ///         throws, nothing is stored
  template <class MakeSpec>
  const LoadedVariant& get(const DeviceInfo& device, const Key& key, const MakeSpec& make_spec) {
    const Entry entry = {key, device.index};
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = variants_.find(entry); found != variants_.end()) return *found->second;
    }
    const ContextGuard guard(device.index);
    const RelaxedCapture relaxed;  // keeps loading out of a CUDA graph that this thread may be capturing
    const KernelSpec spec = make_spec(device.arch());
    auto made = std::make_unique<const LoadedVariant>(LoadedVariant{Jit::instance().load(spec, device.index),
                                                                    static_cast<unsigned>(threads_of(spec)),
                                                                    spec.dynamic_smem_bytes, may_start_early(device)});
    const std::unique_lock lock(mutex_);
    return *variants_.try_emplace(entry, std::move(made)).first->second;
  }

 private:
  struct Entry {
    Key key;
    int device;
    bool operator==(const Entry& other) const { return device == other.device && bytes(key) == bytes(other.key); }
  };
  static std::string_view bytes(const Key& key) { return {reinterpret_cast<const char*>(&key), sizeof(Key)}; }
  struct Hash {
    std::size_t operator()(const Entry& entry) const noexcept {
      return std::hash<std::string_view>()(bytes(entry.key)) ^ static_cast<std::size_t>(entry.device);
    }
  };

  std::shared_mutex mutex_;
  std::unordered_map<Entry, std::unique_ptr<const LoadedVariant>, Hash> variants_;
};

}  // namespace attend::cuda
