// Enumerations that a kernel's Config may use. Included before every generated Config; the host uses them too.
#pragma once

namespace attend {

// The keys that a row sees. Masks align bottom right: see key_range.cuh. kWindow: the left and right ends are
// arguments.
enum class MaskKind { kFull, kCausal, kWindow };

// The type of q, k, v, o and their gradients.
enum class ElementType { kF32, kF16, kBF16 };

// The type of cached keys and values, which may differ from q's.
enum class CacheElement { kSame, kF8E4M3, kI8 };

// The gradients that a kernel of sm80_backward computes. kTerms: of the terms that are read from memory, if they differ
// between rows.
enum class Sm80Gradient { kKeysValues, kKeys, kValues, kQueries, kTerms };

// The assignment of tiles to blocks of a persistent kernel: attention/schedule.cuh.
enum class Schedule {
  kStatic,   // block b has tiles b, b + blocks, b + 2 blocks, ...
  kDynamic,  // the next free block takes the next tile
};

}  // namespace attend
