// Kernels of one stream that overlap: launched with programmatic stream serialization (StepShape::overlaps_previous).
// PTX ISA, parallel synchronization: griddepcontrol. sm_90. Without such a launch both do nothing.
#pragma once

namespace attend {

// By a block of the kernel before: the next may begin as soon as all blocks have said so or ended, where it finds room.
__device__ __forceinline__ void let_next_kernel_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Until the kernel before has ended, and what it wrote can be read.
__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace attend
