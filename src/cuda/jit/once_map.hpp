// A map that creates each value when it is first requested. One thread creates the value. Threads that request other
// keys do not wait.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "attend/error.hpp"
#include "core/wait.hpp"

namespace attend::cuda {

/// A map from strings to shared, constant values. Thread-safe.
template <class Value>
class OnceMap {
 public:
  using Pointer = std::shared_ptr<const Value>;

  /// Returns the value for `key`. If there is none, calls `make` and stores its result. If other threads request the
  /// same key meanwhile, they wait for this call. Threads that request other keys do not wait. If `make` throws,
  /// nothing is stored, and all waiting threads throw the same error.
  template <class Make>
  Pointer get(const std::string& key, const Make& make) {
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = slots_.find(key); found != slots_.end()) {
        if (found->second->ready.load(std::memory_order_acquire)) return found->second->value;
      }
    }
    const auto [slot, is_mine] = claim(key);
    return is_mine ? fill(*slot, key, make) : wait(*slot);
  }

 private:
  struct Slot {
    std::atomic<bool> ready = false;  // true if `value` is set; it then never changes
    std::mutex mutex;
    std::condition_variable done;
    bool failed = false;
    ErrorCode code = ErrorCode::kInternal;
    std::string message;
    Pointer value;
  };

  std::pair<std::shared_ptr<Slot>, bool> claim(const std::string& key) {
    const std::unique_lock lock(mutex_);
    const auto [at, is_new] = slots_.try_emplace(key);
    if (is_new) at->second = std::make_shared<Slot>();
    return {at->second, is_new};
  }

  template <class Make>
  Pointer fill(Slot& slot, const std::string& key, const Make& make) {
    try {
      Pointer value = make();
      const std::lock_guard lock(slot.mutex);
      slot.value = value;
      slot.ready.store(true, std::memory_order_release);
      slot.done.notify_all();
      return value;
    } catch (const Error& error) {
      abandon(slot, key, error.code(), error.what());
      throw;
    } catch (const std::exception& error) {
      abandon(slot, key, ErrorCode::kInternal, error.what());
      throw;
    }
  }

  void abandon(Slot& slot, const std::string& key, ErrorCode code, const char* message) {
    {
      const std::unique_lock lock(mutex_);
      slots_.erase(key);  // waiting threads still own the slot; a new request creates another slot
    }
    const std::lock_guard lock(slot.mutex);
    slot.failed = true;
    slot.code = code;
    slot.message = message;
    slot.done.notify_all();
  }

  static Pointer wait(Slot& slot) {
    std::unique_lock lock(slot.mutex);
    core::wait_until_done(slot.done, lock, [&] { return slot.failed || slot.value != nullptr; });
    if (slot.failed) throw Error(slot.code, slot.message);
    return slot.value;
  }

  std::shared_mutex mutex_;  // protects the map; held only while a key is looked up
  std::unordered_map<std::string, std::shared_ptr<Slot>> slots_;
};

}  // namespace attend::cuda
