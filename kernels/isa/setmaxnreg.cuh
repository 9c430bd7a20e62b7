// Moves registers between warpgroups while a block runs. PTX ISA, miscellaneous: setmaxnreg. Requires sm_90a. All warps
// of a warpgroup must call the functions. kRegisters is a multiple of 8 from 24 to 256. take_registers() waits until
// other warpgroups have released enough registers.
#pragma once

namespace attend {

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace attend
