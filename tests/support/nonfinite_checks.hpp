// NaN and infinities reach exactly the results that depend on them; what is masked or padded is never read: as checks
// that any backend with every option can be put to.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "attend/tensor.hpp"

namespace attend::test {

/// Reports failures to GoogleTest.
struct NonFiniteCheck {
  const char* name;
  void (*check)(const std::string& compute, DType dtype);
  bool against_reference;  ///< compares with the reference, which has nothing to learn from it
};

inline void PrintTo(const NonFiniteCheck& check, std::ostream* out) {
  *out << check.name;
}

[[nodiscard]] const std::vector<NonFiniteCheck>& nonfinite_checks();

}  // namespace attend::test
