// Base class of the computing warps of a decode block.
#pragma once

#include "decode_context.cuh"
#include "decode_rows.cuh"
#include "decode_scale.cuh"
#include "decode_stack.cuh"

namespace attend {

template <class Config>
class DecodeTeam {
 protected:
  using Sizes = DecodeSizes<Config>;
  using Place = typename DecodeRing<Config>::Place;
  static constexpr DecodeSmem kSmem = Sizes::kSmem;

  __device__ __forceinline__ explicit DecodeTeam(const DecodeContext<Config>& block)
      : block_(block),
        role_(DecodeRole<Config>::of_this_warp()),
        rows_(reinterpret_cast<DecodeRow*>(block.smem + kSmem.rows)),
        q_rows_(block.smem + kSmem.q + role_.first_row() * Sizes::kQRow),
        p_rows_(block.smem + kSmem.p + role_.first_row() * Sizes::kPRow),
        maxima_(reinterpret_cast<float*>(block.smem + kSmem.maxima) + role_.first_row() * kTeamWarps),
        sums_(reinterpret_cast<float*>(block.smem + kSmem.sums) + role_.first_row() * kTeamWarps),
        exponents_(reinterpret_cast<int*>(block.smem + kSmem.exponents) + role_.first_row() * kTeamWarps),
        scale_(DecodeScale::of(block.args)),
        stack_(block.smem + kSmem.stack, static_cast<char*>(block.args.stack) + static_cast<int64>(blockIdx.x) *
                                                                                    block.args.stack_nodes *
                                                                                    decode_stack_bytes(Sizes::kTile)) {}

  // Releases a slot that the warp has read.
  __device__ __forceinline__ void release(int slot) const {
    __syncwarp();  // waits until all lanes have read the slot; the warp may then release it
    arrive_as_warp(block_.ring.empty(slot));
  }

  DecodeContext<Config> block_;
  DecodeRole<Config> role_;
  DecodeRow* rows_;
  char* q_rows_;  // this member and the four members below point to the data of the warp's team
  char* p_rows_;
  float* maxima_;
  float* sums_;
  int* exponents_;
  DecodeScale scale_;
  DecodeStack<Config> stack_;
  Place place_;
};

}  // namespace attend
