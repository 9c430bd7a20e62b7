// Data that a warp of a decode block works with, and decisions about how the block starts.
#pragma once

#include "decode_piece.cuh"

namespace attend {

// Messages between the warps of a block.
struct DecodeTold {
  int count;    // number of nodes in the current list of nodes
  int changed;  // 1 if the schedule is incorrect for this call
  int filled;   // number of ring slots that have been filled
  int ended;    // number of blocks of the previous launch that had ended when this block began
};
static_assert(sizeof(DecodeTold) <= kDecodeToldBytes);

// References to a warp's data.
template <class Config>
struct DecodeContext {
  const DecodeArgs& args;
  const DecodeSchedule<Config>& schedule;
  const DecodeCursor<Config>& first;  // cursor at the block's first piece
  DecodeCursor<Config>& cursor;
  DecodeRing<Config> ring;
  char* smem;  // the block's shared memory

  // Returns the messages between warps.
  [[nodiscard]] __device__ __forceinline__ DecodeTold& told() const {
    return *reinterpret_cast<DecodeTold*>(smem + DecodeSizes<Config>::kSmem.told);
  }
};

// Number of slots that a step fills.
template <class Config>
constexpr int kSlotsOfStep = DecodeSizes<Config>::kLoadsValues ? 2 : 1;

// Whether a step is loaded before the schedule is confirmed. If the schedule is incorrect, the step's slots are
// released, so the ring must have room for a complete step.
template <class Config>
constexpr bool kLoadsEarly = DecodeRing<Config>::kSlots >= kSlotsOfStep<Config>;

// Returns whether the block keeps the sequences that it has read. If so, it can compute the schedule before the
// sequences' lengths are final.
template <class Config>
[[nodiscard]] __device__ __forceinline__ bool keeps_sequences(const DecodeArgs& args) {
  return args.num_sequences <= kDecodeKept;
}
// Returns the room for kept sequences, or null if none are kept. The room is the memory of the list of nodes, which is
// written later.
template <class Config>
[[nodiscard]] __device__ __forceinline__ DecodeSequence* kept_sequences(const DecodeArgs& args, char* smem) {
  static_assert(kDecodeKept * sizeof(DecodeSequence) <= kDecodeListed * kDecodeListedBytes);
  if (!keeps_sequences<Config>(args)) return nullptr;
  return reinterpret_cast<DecodeSequence*>(smem + DecodeSizes<Config>::kSmem.list);
}

}  // namespace attend
