// Element types that a tensor of a serving call may have in memory. A kernel receives the type as a number at run time.
// The computation does not depend on the type, so one kernel handles all types.
#pragma once

#include "../common/portable.cuh"

namespace attend {

enum class StoredElement : uint32 { kF32, kF16, kBF16, kF64, kF8E4M3, kI8 };

[[nodiscard]] ATTEND_HOST_DEVICE constexpr int stored_bytes(StoredElement element) {
  switch (element) {
    case StoredElement::kF32:
      return 4;
    case StoredElement::kF16:
    case StoredElement::kBF16:
      return 2;
    case StoredElement::kF64:
      return 8;
    case StoredElement::kF8E4M3:
    case StoredElement::kI8:
      return 1;
  }
  return 0;
}

}  // namespace attend
