// Tiles of a bias of 16 bits, as the copy engine brings them to shared memory: panels of 64 keys, rows of 128 bytes,
// swizzled like those of k. ldmatrix reads them as accumulators of wgmma have their scores.
#pragma once

#include "../common/element.cuh"
#include "sm90_panel_fragment.cuh"

namespace attend {

// In shared memory, on kSwizzleAtom. Nothing where there is none: to be inherited from, so that it takes no place.
template <int kTiles, int kBytes>
struct Sm90BiasTiles {
  unsigned char bias[kTiles][kBytes];
};
template <int kBytes>
struct Sm90BiasTiles<0, kBytes> {};

// The bias of 64 rows and 64 keys, of which a thread of the warpgroup has those of its scores.
// kTransposed: rows of the accumulator are keys.
template <class Element, bool kTransposed>
class Sm90BiasFragment {
 public:
  // panel: of the first row. Can be read long before it is added.
  __device__ __forceinline__ void read(uint32 panel, int thread) { read_panel<kTransposed>(pairs_, panel, thread); }
  // 32 products become scores.
  __device__ __forceinline__ void add(float* s, float scale) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      s[2 * i] = fmaf(s[2 * i], scale, Element::low(pairs_[i]));
      s[2 * i + 1] = fmaf(s[2 * i + 1], scale, Element::high(pairs_[i]));
    }
  }

 private:
  uint32 pairs_[16];
};

}  // namespace attend
