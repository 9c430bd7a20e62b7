// Runs attention with a block mask.
#pragma once

#include <gtest/gtest.h>

#include <string_view>

#include "mask/mask_cookbook.hpp"
#include "support/attention_case.hpp"

namespace attend::test {

/// Runs forward and backward and returns the outputs. `mask` may be null.
inline Outputs run_with(const BlockMask* mask, const Inputs& in, std::string_view compute) {
  Outputs out = make_outputs(in);
  ForwardCall call = forward_of(in, out, compute);
  call.params.block_mask = mask;
  forward(call);
  BackwardCall back = backward_of(in, out, compute);
  back.params.block_mask = mask;
  backward(back);
  for (const TensorBuffer* t : {&out.o, &out.lse, &out.dq, &out.dk, &out.dv}) EXPECT_TRUE(t->gaps_intact());
  return out;
}

}  // namespace attend::test
