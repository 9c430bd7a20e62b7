// A cache whose values are created once for each variant of a kernel family.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

#include "cuda/launch/family.hpp"

namespace attend::cuda {

/// A cache whose key is a family, a device and a variant. Every call of the library looks up a value, so a look-up must
/// be fast. It allocates no memory. Thread-safe.
template <class Value>
class VariantCache {
 public:
  /// Returns the value for the key. If there is none, calls `make` and stores its result. If two threads create the
  /// same value at the same time, the first stored result is kept. An exception from `make` is propagated to the
  /// caller, and nothing is stored. References stay valid until the cache is destroyed.
  template <class Make>
  const Value& get(const Family* family, int device, const Variant& variant, const Make& make) {
    const Key key = {family, device, variant};
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = values_.find(key); found != values_.end()) return *found->second;
    }
    auto value = std::make_unique<const Value>(make());
    const std::unique_lock lock(mutex_);
    return *values_.try_emplace(key, std::move(value)).first->second;
  }

 private:
  struct Key {
    const Family* family;
    int device;
    Variant variant;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept {
      const std::span<const std::int32_t> ints = key.variant.ints();
      const std::string_view bytes(reinterpret_cast<const char*>(ints.data()), ints.size_bytes());
      return std::hash<std::string_view>()(bytes) ^ reinterpret_cast<std::uintptr_t>(key.family) ^
             static_cast<std::size_t>(key.device);
    }
  };

  std::shared_mutex mutex_;
  std::unordered_map<Key, std::unique_ptr<const Value>, Hash> values_;
};

}  // namespace attend::cuda
