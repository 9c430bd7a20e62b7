// append() with decode() in one call against one after the other, on any machine.
#pragma once

#include <functional>
#include <vector>

#include "attend/serving.hpp"
#include "serving/append_case.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {

/// The calls as a machine runs them: it is done with each when that returns.
struct ServingCalls {
  std::function<void(const AppendCall&)> append;
  Decode decode;
  std::function<void(const AppendCall&, const DecodeCall&)> append_and_decode;
};

[[nodiscard]] ServingCalls cpu_calls();

/// Every kind of cache, rotation and row; caches of the dtype of q.
[[nodiscard]] std::vector<AppendCase> append_and_decode_cases();

/// Expects the same bytes in the cache, o and lse, and no others written.
void check_one_call_is_two(const AppendCase& c, const ServingCalls& calls);

}  // namespace attend::test
