// Compares append() with decode() in one call against two separate calls, on any device.
#pragma once

#include <functional>
#include <vector>

#include "attend/serving.hpp"
#include "serving/append_case.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {

/// The calls as the tested device runs them. Each returns when it is done.
struct ServingCalls {
  std::function<void(const AppendCall&)> append;
  Decode decode;
  std::function<void(const AppendCall&, const DecodeCall&)> append_and_decode;
};

[[nodiscard]] ServingCalls cpu_calls();

/// Returns cases with every kind of cache, rotation and row. The caches have the dtype of q.
[[nodiscard]] std::vector<AppendCase> append_and_decode_cases();

/// Expects the same bytes in the cache, o and lse, and no other byte written.
void check_one_call_is_two(const AppendCase& c, const ServingCalls& calls);

}  // namespace attend::test
