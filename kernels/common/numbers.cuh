// Constants of float32 that device code cannot include from the C library.
#pragma once

namespace attend {

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

}  // namespace attend
