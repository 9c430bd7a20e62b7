// The kernels of append and merge compile without spills for every architecture. What they compute:
// tests/gpu/append_test.cpp and merge_test.cpp, on a GPU.
#include <gtest/gtest.h>

#include "cuda/driver/arch.hpp"
#include "cuda/jit_fixture.hpp"
#include "cuda/serving/append.hpp"
#include "cuda/serving/merge.hpp"

namespace attend::test {
namespace {

class ServingKernels : public NvrtcTest {};

TEST_F(ServingKernels, CompileWithoutSpills) {
  cuda::Jit jit({.cache_root = {}, .kernel_dir = {}, .log_compiles = false, .print = {}});
  for (const char* target : {"sm_75", "sm_80", "sm_90a", "sm_120"}) {
    std::vector<cuda::KernelSpec> specs = cuda::append_specs(target);
    for (cuda::KernelSpec& spec : cuda::merge_specs(target)) specs.push_back(std::move(spec));
    for (const cuda::KernelSpec& spec : specs) {
      const auto code = jit.compile(spec);
      const cuda::Resources& r = code->resources;
      EXPECT_GT(r.registers, 0) << cuda::describe(spec);
      EXPECT_EQ(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes, 0) << cuda::describe(spec);
      EXPECT_LE(r.static_smem_bytes, 48 * 1024) << cuda::describe(spec);
      EXPECT_LE(cuda::threads_of(spec) * r.registers * spec.min_blocks, 65536) << cuda::describe(spec);
    }
  }
}

}  // namespace
}  // namespace attend::test
