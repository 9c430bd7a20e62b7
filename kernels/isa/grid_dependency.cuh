// Programmatic dependent launch: a kernel starts while the previous kernel of its stream still runs. Its blocks use
// free space on the multiprocessors, and wait there. PTX ISA, parallel synchronisation: griddepcontrol. Requires sm_90
// or later. On other GPUs no launch requests an early start, and the functions do nothing.
#pragma once

namespace attend {

// Waits until the previous kernel has ended. If every kernel waits, all earlier kernels have then ended too. Their
// writes are visible afterwards. Every block calls this before it accesses device memory. There is one exception. A
// kernel that may run at the same time as the previous kernel waits only at its end (sm90_producer.cuh). This is
// correct because the previous kernel has waited for all kernels before it. The function returns at once if the launch
// did not request an early start.
__device__ __forceinline__ void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Allows the next kernel to start when all blocks have called this function or have ended. Kernels call it after
// wait_for_kernels_before(), so that at most one kernel waits.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace attend
