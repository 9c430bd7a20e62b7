// Values that are made once for each variant of a family, and kept.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

#include "cuda/launch/family.hpp"

namespace attend::cuda {

/// A look-up allocates nothing: it is on the path of every call. Thread-safe.
template <class Value>
class VariantCache {
 public:
  /// The value of the key, made by `make` where there is none yet. Two threads that come first make it both; one is
  /// kept. What `make` throws is not kept. References stay good for ever.
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
