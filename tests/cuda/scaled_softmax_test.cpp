// Tests the baseline's kernels. The kernels must compile without spills for every architecture, and unsupported calls
// must be refused. python/tests/test_cuda.py tests their results on a GPU.
#include "baseline/scaled_softmax.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attend/error.hpp"
#include "cuda/jit_fixture.hpp"

namespace attend::test {
namespace {

using testing::HasSubstr;

class ScaledSoftmax : public NvrtcTest {};

TEST_F(ScaledSoftmax, CompilesWithoutSpills) {
  cuda::Jit jit({.cache_root = ATTEND_TEST_KERNEL_CACHE, .kernel_dir = {}, .log_compiles = false, .print = {}});
  alignas(16) static constexpr char somewhere[16] = {};  // only the address of this memory is checked
  for (const char* target : {"sm_75", "sm_80", "sm_90a", "sm_120"}) {
    for (const std::int64_t seqlen_k : {8, 2048, 4096, 16384}) {
      for (const bool backward : {false, true}) {
        cuda::ScaledSoftmax call = {.seqlen_k = seqlen_k, .causal = backward};
        if (backward) call.p = somewhere;
        const cuda::KernelSpec spec = cuda::scaled_softmax_spec(call, cuda::find_arch(target));
        const auto code = jit.compile(spec);
        EXPECT_GT(code->resources.registers, 0) << cuda::describe(spec);
        EXPECT_EQ(code->resources.spill_store_bytes + code->resources.spill_load_bytes, 0) << cuda::describe(spec);
        EXPECT_LE(cuda::threads_of(spec) * code->resources.registers, 65536) << cuda::describe(spec);
      }
    }
  }
}

std::string refusal(const cuda::ScaledSoftmax& call) {
  try {
    (void)cuda::scaled_softmax_spec(call, cuda::find_arch("sm_90a"));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    return error.what();
  }
  return "nothing was refused";
}

TEST(ScaledSoftmaxRefuses, WhatItDoesNotTake) {
  const auto with_keys = [](std::int64_t seqlen_k) { return cuda::ScaledSoftmax{.seqlen_k = seqlen_k}; };
  for (const std::int64_t seqlen_k : {0, 4, 12, 16392}) {
    EXPECT_THAT(refusal(with_keys(seqlen_k)), HasSubstr("allowed multiples of 8 to 16384")) << seqlen_k;
  }
  EXPECT_EQ(refusal(with_keys(16384)), "nothing was refused");
  EXPECT_EQ(refusal({.dtype = DType::kF32}), "scaled_softmax: f32, allowed f16, bf16");
  const auto odd = reinterpret_cast<const void*>(std::uintptr_t{24});  // NOLINT(performance-no-int-to-ptr)
  EXPECT_THAT(refusal({.in = odd}), HasSubstr("allowed multiples of 16 bytes"));
}

}  // namespace
}  // namespace attend::test
