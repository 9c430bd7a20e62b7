// Tiles of a 16-bit bias in shared memory, as TMA writes them. A tile consists of panels of 64 keys, with rows of 128
// bytes and the same swizzle as k. ldmatrix reads the panels in the order of wgmma accumulators.
#pragma once

#include "../common/element.cuh"
#include "sm90_panel_fragment.cuh"

namespace attend {

// Bias tiles in shared memory, aligned to kSwizzleAtom. The storage derives from this class, because an empty base
// class needs no space if there are no bias tiles.
template <int kTiles, int kBytes>
struct Sm90TermsTiles {
  unsigned char terms[kTiles][kBytes];
};
template <int kBytes>
struct Sm90TermsTiles<0, kBytes> {};

// This thread's bias entries of a tile of 64 query rows and 64 keys. If kTransposed is set, the accumulator's rows are
// keys.
template <class Element, bool kTransposed>
class Sm90TermsFragment {
  static_assert(sizeof(typename Element::Storage) == sizeof(Bits16));

 public:
  // Reads the entries from shared memory. `panel` is the address of the panel's first row. The caller may call add()
  // much later.
  __device__ __forceinline__ void read(uint32 panel, int thread) { read_panel<kTransposed>(pairs_, panel, thread); }
  // Turns 32 products q.k in s into scores: multiplies them by `scale` and adds the bias.
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
