// Data that a warp of a decode block works with, and the block's start.
#pragma once

#include "decode_piece.cuh"

namespace attend {

struct DecodeTold {
  int count;    // number of nodes in the current list
  int changed;  // 1: the schedule is not correct for this call
  int filled;   // filled slots of the ring
  int ended;    // blocks of the previous launch that had ended when this block began
};
static_assert(sizeof(DecodeTold) <= kDecodeToldBytes);

// References to a warp's data.
template <class Config>
struct DecodeContext {
  const DecodeArgs& args;
  const DecodeSchedule<Config>& schedule;
  const DecodeCursor<Config>& first;  // at the block's first piece
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

// Whether a step is loaded before the schedule is confirmed. If the schedule is wrong the step's slots are released, so
// a full step must fit into the ring.
template <class Config>
constexpr bool kLoadsEarly = DecodeRing<Config>::kSlots >= kSlotsOfStep<Config>;

// Returns whether sequences are kept, so that the schedule can be made before their lengths are final.
template <class Config>
[[nodiscard]] __device__ __forceinline__ bool keeps_sequences(const DecodeArgs& args) {
  return args.num_sequences <= kDecodeKept;
}
// Returns the room for kept sequences, or null if none are kept. It overlays the list of nodes, which is written later.
template <class Config>
[[nodiscard]] __device__ __forceinline__ DecodeSequence* kept_sequences(const DecodeArgs& args, char* smem) {
  static_assert(kDecodeKept * sizeof(DecodeSequence) <= kDecodeListed * kDecodeListedBytes);
  if (!keeps_sequences<Config>(args)) return nullptr;
  return reinterpret_cast<DecodeSequence*>(smem + DecodeSizes<Config>::kSmem.list);
}

}  // namespace attend
