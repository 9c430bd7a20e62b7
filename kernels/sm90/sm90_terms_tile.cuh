// Tiles of a 16-bit bias (a term from memory), as the copy engine writes them to shared memory. They are panels of 64
// keys in rows of 128 bytes, swizzled like k. ldmatrix reads them in the order of wgmma's accumulators.
#pragma once

#include "../common/element.cuh"
#include "sm90_panel_fragment.cuh"

namespace attend {

// Bias tiles in shared memory, aligned to kSwizzleAtom. This is a base class, so that it needs no space without tiles.
template <int kTiles, int kBytes>
struct Sm90TermsTiles {
  unsigned char terms[kTiles][kBytes];
};
template <int kBytes>
struct Sm90TermsTiles<0, kBytes> {};

// A thread's bias entries for 64 rows and 64 keys. kTransposed: rows of the accumulator are keys.
template <class Element, bool kTransposed>
class Sm90TermsFragment {
  static_assert(sizeof(typename Element::Storage) == sizeof(Bits16));

 public:
  // Reads the entries. panel: address of the first row. add() may follow much later.
  __device__ __forceinline__ void read(uint32 panel, int thread) { read_panel<kTransposed>(pairs_, panel, thread); }
  // Turns 32 products in s into scores.
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
