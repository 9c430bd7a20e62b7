// Shared memory of sm90_fp8_forward, including its barriers.
#pragma once

#include "../isa/wgmma_e4m3.cuh"
#include "sm90_fp8_shape.cuh"
#include "sm90_storage.cuh"

namespace attend {

template <class Config>
struct alignas(kSwizzleAtom) Sm90Fp8Storage {
  using Shape = Sm90Fp8Shape<Config>;
  // The transposed v of a tile, and the rows of ones that follow it as additional columns of v. The rows of ones never
  // change.
  struct Values {
    unsigned char v[Shape::kVBytes];
    uint4 ones[kFp8SumColumns * kSwizzleBytes / sizeof(uint4)];
  };
  unsigned char q[Shape::kQBytes];
  unsigned char k[Config::kStages][Shape::kKBytes];
  Values v[Config::kStages];
  Sm90Work work[kSm90WorkSlots];
  Mbarrier work_full[kSm90WorkSlots];   // The producer has written a query tile to this slot, and consumers may read
                                        // it.
  Mbarrier work_empty[kSm90WorkSlots];  // Each consumer warp has left the tile of this slot.
  Mbarrier q_full;                      // q has arrived.
  Mbarrier q_empty;                     // Each consumer warp has read q.
  Mbarrier k_full[Config::kStages];     // k_full, v_full, k_empty and v_empty signal the same for k and v.
  Mbarrier v_full[Config::kStages];
  Mbarrier k_empty[Config::kStages];
  Mbarrier v_empty[Config::kStages];

  // Initialises the barriers. One thread must call this, and the block must synchronise afterwards.
  __device__ __forceinline__ void init_barriers() {
    constexpr int kReaders = Config::kConsumers * kWarpgroup / kWarpThreads;
    for (int slot = 0; slot < kSm90WorkSlots; ++slot) {
      work_full[slot].init(1);
      work_empty[slot].init(arrivals_of_warps(kReaders));
    }
    q_full.init(1);
    q_empty.init(arrivals_of_warps(kReaders));
    for (int stage = 0; stage < Config::kStages; ++stage) {
      k_full[stage].init(1);
      v_full[stage].init(1);
      k_empty[stage].init(arrivals_of_warps(kReaders));
      v_empty[stage].init(arrivals_of_warps(kReaders));
    }
    mbarrier_init_fence();
  }

  // Writes the rows of ones. All threads must call this, and the block must synchronise afterwards.
  __device__ __forceinline__ void write_ones() {
    constexpr int kChunks = sizeof(Values::ones) / sizeof(uint4);
    for (int i = static_cast<int>(threadIdx.x); i < Config::kStages * kChunks; i += Shape::kThreads) {
      v[i / kChunks].ones[i % kChunks] = make_uint4(kE4M3Ones, kE4M3Ones, kE4M3Ones, kE4M3Ones);
    }
    fence_smem_for_async();
  }
};

}  // namespace attend
