#include "c/ring_callbacks.hpp"

#include <memory>
#include <utility>

#include "attend/error.hpp"

namespace attend::c {
namespace {

void require_zero(const char* function, std::int32_t returned) {
  if (returned == 0) return;
  throw Error(ErrorCode::kInternal, fmt::format("callbacks.{}: returned {}, allowed 0", function, returned));
}

/// A request that `send` or `receive` has started. It ends with exactly one call of `wait` or `abandon`.
class Request {
 public:
  explicit Request(const attend_ring_callbacks& callbacks) : callbacks_(callbacks) {}
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request() {
    if (is_open_ && callbacks_.abandon != nullptr) callbacks_.abandon(callbacks_.user, mark_);
  }

  [[nodiscard]] void** mark() { return &mark_; }
  void opened() { is_open_ = true; }
  void wait() {
    if (!std::exchange(is_open_, false) || callbacks_.wait == nullptr) return;
    require_zero("wait", callbacks_.wait(callbacks_.user, mark_));
  }

 private:
  attend_ring_callbacks callbacks_;
  void* mark_ = nullptr;
  bool is_open_ = false;
};

/// Starts a message and returns the function that waits for it. The function can be copied. The destruction of its last
/// copy ends the request.
template <class Begin>
RingCallbacks::Wait begun(const attend_ring_callbacks& callbacks, const char* function, const Begin& begin) {
  auto request = std::make_shared<Request>(callbacks);
  RingCallbacks::Wait wait = [request] { request->wait(); };  // made first, because this may throw
  require_zero(function, begin(request->mark()));
  request->opened();
  return wait;
}

}  // namespace

RingCallbacks callbacks_of(const attend_ring_callbacks& given) {
  RingCallbacks callbacks;
  if (given.send != nullptr) {
    callbacks.send = [given](int to, int channel, std::span<const std::byte> bytes) {
      return begun(given, "send", [&](void** request) {
        return given.send(given.user, to, channel, bytes.data(), bytes.size(), request);
      });
    };
  }
  if (given.receive != nullptr) {
    callbacks.receive = [given](int from, int channel, std::span<std::byte> bytes) {
      return begun(given, "receive", [&](void** request) {
        return given.receive(given.user, from, channel, bytes.data(), bytes.size(), request);
      });
    };
  }
  if (given.all_gather != nullptr) {
    callbacks.all_gather = [given](std::span<const std::byte> mine, std::span<std::byte> all) {
      require_zero("all_gather", given.all_gather(given.user, mine.data(), all.data(), mine.size()));
    };
  }
  if (given.fail != nullptr) {
    callbacks.fail = [given](const std::string& why) { given.fail(given.user, why.c_str()); };
  }
  return callbacks;
}

}  // namespace attend::c
