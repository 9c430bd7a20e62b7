// Checks, on any device, that append() with decode() in one call gives the results of two separate calls.
#pragma once

#include <functional>
#include <vector>

#include "attend/serving.hpp"
#include "serving/append_case.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {

/// Functions that make the calls on the tested device. Each returns when the device has finished.
struct ServingCalls {
  std::function<void(const AppendCall&)> append;
  Decode decode;
  std::function<void(const AppendCall&, const DecodeCall&)> append_and_decode;
};

[[nodiscard]] ServingCalls cpu_calls();

/// Returns cases that cover every cache layout, rotation and row layout. The caches have the dtype of q.
[[nodiscard]] std::vector<AppendCase> append_and_decode_cases();

/// Expects that one call and two calls give the same bytes in the cache, o and lse, and that no other byte is written.
void check_one_call_is_two(const AppendCase& c, const ServingCalls& calls);

}  // namespace attend::test
