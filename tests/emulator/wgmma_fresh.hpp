// Replaces kernels/isa/wgmma_fresh.cuh for emulated kernels.
#pragma once

#include "wgmma.cuh"

namespace attend {

template <int kCount>
void pin_registers(uint32 (&)[kCount]) {}

template <ElementType kElement>
struct WgmmaFresh {
  template <bool kTransposeB>
  static void ss(float (&d)[32], MatrixDescriptor a, MatrixDescriptor b) {
    WgmmaOp<kElement, 64>::template ss<kTransposeB, 1>(d, a, b, false);
  }
  template <bool kTransposeB>
  static void rs(float (&d)[32], const uint32* a, MatrixDescriptor b) {
    WgmmaOp<kElement, 64>::template rs<kTransposeB, 1>(d, a, b, false);
  }
};

}  // namespace attend
