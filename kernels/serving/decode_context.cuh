// What a warp of a decode block works with, and the block's start.
#pragma once

#include "decode_piece.cuh"

namespace attend {

struct DecodeTold {
  int count;    // of the nodes in the list that is there
  int changed;  // 1: the schedule is not the call's
  int filled;   // slots of the ring
  int ended;    // blocks of the launch before that had ended when this one began
};
static_assert(sizeof(DecodeTold) <= kDecodeToldBytes);

// Of a warp: where it finds what.
template <class Config>
struct DecodeContext {
  const DecodeArgs& args;
  const DecodeSchedule<Config>& schedule;
  const DecodeCursor<Config>& first;  // at the block's first piece
  DecodeCursor<Config>& cursor;
  DecodeRing<Config> ring;
  char* smem;  // of the block

  // What warps tell each other.
  [[nodiscard]] __device__ __forceinline__ DecodeTold& told() const {
    return *reinterpret_cast<DecodeTold*>(smem + DecodeSizes<Config>::kSmem.told);
  }
};

// Slots that a step fills.
template <class Config>
constexpr int kSlotsOfStep = DecodeSizes<Config>::kLoadsValues ? 2 : 1;

// Is a step loaded before it is known whether the schedule is the call's? It is given back then, so it must find room.
template <class Config>
constexpr bool kLoadsEarly = DecodeRing<Config>::kSlots >= kSlotsOfStep<Config>;

// Are sequences kept, so that the schedule can be made before their lengths are certain?
template <class Config>
[[nodiscard]] __device__ __forceinline__ bool keeps_sequences(const DecodeArgs& args) {
  return args.num_sequences <= kDecodeKept;
}
// Where: in the memory of the list of nodes, which comes last. Null: they are not.
template <class Config>
[[nodiscard]] __device__ __forceinline__ DecodeSequence* kept_sequences(const DecodeArgs& args, char* smem) {
  static_assert(kDecodeKept * sizeof(DecodeSequence) <= kDecodeListed * kDecodeListedBytes);
  if (!keeps_sequences<Config>(args)) return nullptr;
  return reinterpret_cast<DecodeSequence*>(smem + DecodeSizes<Config>::kSmem.list);
}

}  // namespace attend
