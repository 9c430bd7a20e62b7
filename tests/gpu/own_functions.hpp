// Helpers shared by the tests of custom score functions and masks: a problem whose lengths are not multiples of any
// tile size, and a call with a block mask.
#pragma once

#include "attend/block_mask.hpp"
#include "gpu/gpu.hpp"

namespace attend::test {

[[nodiscard]] inline AttentionCase base_case(DType dtype) {
  return {.dtype = dtype,
          .batch = 2,
          .heads_q = 4,
          .heads_k = 2,
          .seqlen_q = 150,
          .seqlen_k = 277,
          .head_dim = 64,
          .head_dim_v = 64,
          .dlse = true,
          .seed = 7};
}

/// Runs forward and backward with a block mask on the named backends.
[[nodiscard]] inline Outputs run_with_block_mask(const Inputs& in, const BlockMask& mask, const char* forward_compute,
                                                 const char* backward_compute) {
  const Outputs out = make_outputs(in);
  ForwardCall call = forward_of(in, out, forward_compute);
  call.params.block_mask = &mask;
  forward(call);
  BackwardCall back = backward_of(in, out, backward_compute);
  back.params.block_mask = &mask;
  backward(back);
  wait_for(forward_compute);
  return out;
}

}  // namespace attend::test
