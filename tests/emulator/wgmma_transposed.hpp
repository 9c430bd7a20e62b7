// Replaces kernels/isa/wgmma_transposed.cuh for emulated kernels. A descriptor states how its operand is read, so the
// product is that of WgmmaOp.
#pragma once

#include "wgmma.cuh"

namespace attend {

template <ElementType kElement, int kColumns>
struct WgmmaTransposed {
  static void ss(float (&d)[kColumns / 2], MatrixDescriptor a, MatrixDescriptor b, bool accumulate) {
    WgmmaOp<kElement, kColumns>::template ss<true, 1>(d, a, b, accumulate);
  }
};

}  // namespace attend
