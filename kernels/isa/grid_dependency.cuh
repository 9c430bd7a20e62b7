// A kernel that starts while the one before it in its stream still runs: programmatic dependent launch. Its blocks take
// the room that blocks of the kernel before leave, and wait there. PTX ISA, parallel synchronisation: griddepcontrol.
// sm_90 and later; nothing on others, where no launch asks for it.
#pragma once

namespace attend {

// Waits for the end of the kernel before, so of all before, if each waits likewise; what they wrote is visible then. By
// every block, before it reads or writes device memory; a kernel that may run beside the one before, which has waited
// already, waits at its end (sm90_producer.cuh). Returns at once if the launch asked for no early start.
__device__ __forceinline__ void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start when all blocks have called this or have ended. After wait_for_kernels_before(): so that
// no more than one kernel waits.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace attend
