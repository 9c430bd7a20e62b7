// Checks for any backend and every option: NaN and infinities reach exactly the results that depend on them, and masked
// or padded elements are never read.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "attend/tensor.hpp"

namespace attend::test {

/// One check. Failures are reported to GoogleTest.
struct NonFiniteCheck {
  const char* name;
  void (*check)(const std::string& compute, DType dtype);
  bool against_reference;  ///< compares with the reference, so running it on the reference itself checks nothing
};

inline void PrintTo(const NonFiniteCheck& check, std::ostream* out) {
  *out << check.name;
}

[[nodiscard]] const std::vector<NonFiniteCheck>& nonfinite_checks();

}  // namespace attend::test
