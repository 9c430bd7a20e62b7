// Programmatic dependent launch: a kernel starts while the previous one in its stream still runs. Its blocks use free
// space on the multiprocessors, and wait there. PTX ISA, parallel synchronisation: griddepcontrol. sm_90 and later. The
// functions do nothing on other GPUs, where no launch requests it.
#pragma once

namespace attend {

// Waits for the end of the previous kernel, and therefore of all earlier kernels, if each of them waits too. Their
// writes are visible afterwards. Every block calls it before it accesses device memory. A kernel that may run at the
// same time as the previous one, which has already waited, calls it at the end (sm90_producer.cuh). Returns at once if
// the launch did not request an early start.
__device__ __forceinline__ void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Allows the next kernel to start once all blocks have called this or have ended. Called after
// wait_for_kernels_before(), so that at most one kernel waits.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace attend
