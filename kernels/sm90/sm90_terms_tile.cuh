// Tiles of a term from memory, of 16 bits, as the copy engine brings them to shared memory: panels of 64 keys in rows
// of 128 bytes, swizzled as k is. ldmatrix reads them in the order of wgmma's accumulators.
#pragma once

#include "../common/element.cuh"
#include "sm90_panel_fragment.cuh"

namespace attend {

// In shared memory, on kSwizzleAtom. A base class, so that it takes no place without tiles.
template <int kTiles, int kBytes>
struct Sm90TermsTiles {
  unsigned char terms[kTiles][kBytes];
};
template <int kBytes>
struct Sm90TermsTiles<0, kBytes> {};

// A thread's part of 64 rows and 64 keys: the terms of its scores. kTransposed: rows of the accumulator are keys.
template <class Element, bool kTransposed>
class Sm90TermsFragment {
  static_assert(sizeof(typename Element::Storage) == sizeof(Bits16));

 public:
  // panel: address of the first row. The term can be read long before it is added.
  __device__ __forceinline__ void read(uint32 panel, int thread) { read_panel<kTransposed>(pairs_, panel, thread); }
  // s: 32 products, which become scores.
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
