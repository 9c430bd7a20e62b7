#include "ranks/session.hpp"

#include <exception>
#include <new>

#include "attend/error.hpp"

namespace attend::cli {

bool done_on_every_rank(RingSession* ring, const std::function<void()>& work) {
  if (ring == nullptr) {
    work();
    return true;
  }
  std::string failure;
  try {
    work();
  } catch (const std::bad_alloc&) {
    failure = "not enough memory for this problem: choose a smaller one";
  } catch (const std::exception& error) {
    failure = error.what();
  }
  failure = ring->first_failure(failure);
  if (failure.empty()) return true;
  if (ring->is_first()) throw Error(ErrorCode::kInvalidArgument, failure);
  return false;
}

}  // namespace attend::cli
