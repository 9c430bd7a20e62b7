// Checks of NaN and infinity that apply to every backend and option. NaN and infinities must reach exactly the results
// that depend on them. Masked or padded elements must never be read.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "attend/tensor.hpp"

namespace attend::test {

/// One check. The check reports failures to GoogleTest.
struct NonFiniteCheck {
  const char* name;
  void (*check)(const std::string& compute, DType dtype);
  bool against_reference;  ///< if set, the check compares with the reference; running it on the reference itself proves
                           ///< nothing
};

inline void PrintTo(const NonFiniteCheck& check, std::ostream* out) {
  *out << check.name;
}

[[nodiscard]] const std::vector<NonFiniteCheck>& nonfinite_checks();

}  // namespace attend::test
