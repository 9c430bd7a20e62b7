// Enumerations that a kernel's Config may use. Every generated Config includes this file, and the host uses it too.
#pragma once

namespace attend {

// Which keys a row sees. Masks are aligned at the bottom right (key_range.cuh). The ends of a kWindow mask are
// arguments of the kernel.
enum class MaskKind { kFull, kCausal, kWindow };

// Type of q, k, v, o and their gradients.
enum class ElementType { kF32, kF16, kBF16 };

// Type of cached keys and values. It may differ from the type of q.
enum class CacheElement { kSame, kF8E4M3, kI8 };

// The gradients that one kernel of sm80_backward computes. kTerms is the gradient of the bias, if the bias differs
// between rows.
enum class Sm80Gradient { kKeysValues, kKeys, kValues, kQueries, kTerms };

// How tiles are assigned to the blocks of a persistent kernel (attention/schedule.cuh).
enum class Schedule {
  kStatic,   // of n blocks, block b computes the tiles b, b + n, b + 2 n, ...
  kDynamic,  // the next free block computes the next tile
};

}  // namespace attend
