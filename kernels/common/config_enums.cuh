// The enumerations that a kernel's Config may name. Included before every generated Config; the host uses them too.
#pragma once

namespace attend {

// Which keys a row sees. Masks align bottom right: see key_range.cuh. kWindow: left and right ends are arguments.
enum class MaskKind { kFull, kCausal, kWindow };

// The type of q, k, v, o and their gradients.
enum class ElementType { kF32, kF16, kBF16 };

// The type of cached keys and values beside a q of another one.
enum class CacheElement { kSame, kF8E4M3, kI8 };

// What a kernel of sm80_backward computes: gradients. kTerms: of the terms that scores get from memory, if they
// have rows.
enum class Sm80Gradient { kKeysValues, kKeys, kValues, kQueries, kTerms };

// Which block of a persistent kernel works on which tiles: attention/schedule.cuh.
enum class Schedule {
  kStatic,   // block b has tiles b, b + blocks, b + 2 blocks, ...
  kDynamic,  // whoever is free takes the next
};

}  // namespace attend
