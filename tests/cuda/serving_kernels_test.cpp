// Tests that the kernels of append and merge compile without spills for every architecture, and the kernels of decode
// for each architecture that supports them. tests/gpu/append_test.cpp, decode_test.cpp and merge_test.cpp test their
// results on a GPU.
#include <gtest/gtest.h>

#include <cstdlib>

#include "cuda/driver/arch.hpp"
#include "cuda/jit_fixture.hpp"
#include "cuda/serving/append.hpp"
#include "cuda/serving/decode_variant.hpp"
#include "cuda/serving/long_rows.hpp"
#include "cuda/serving/merge.hpp"

namespace attend::test {
namespace {

class ServingKernels : public NvrtcTest {};

TEST_F(ServingKernels, CompileWithoutSpills) {
  cuda::Jit jit({.cache_root = ATTEND_TEST_KERNEL_CACHE, .kernel_dir = {}, .log_compiles = false, .print = {}});
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

TEST_F(ServingKernels, OfDecodeCompile) {
  cuda::Jit jit({.cache_root = ATTEND_TEST_KERNEL_CACHE, .kernel_dir = {}, .log_compiles = false, .print = {}});
  EXPECT_TRUE(cuda::decode_specs(cuda::find_arch("sm_75")).empty());
  std::vector<cuda::KernelSpec> specs = cuda::decode_specs(cuda::find_arch("sm_90a"));
  EXPECT_EQ(specs.size(), 13);
  specs.push_back(cuda::decode_specs(cuda::find_arch("sm_80")).front());
  for (const cuda::KernelSpec& spec : specs) {
    const cuda::Resources r = jit.compile(spec)->resources;
    EXPECT_LE(cuda::threads_of(spec) * r.registers * spec.min_blocks, 65536) << cuda::describe(spec);
    EXPECT_LE(r.static_smem_bytes + spec.dynamic_smem_bytes, 227U * 1024) << cuda::describe(spec);
  }
  EXPECT_EQ(jit.compile(specs.front())->resources.spill_store_bytes, 0);
}

/// Compiles half of the kernels. These include each head_dim and each method of loading keys and values.
/// ATTEND_TEST_ALL_KERNELS=1 compiles all kernels.
TEST_F(ServingKernels, OfLongRowsCompileWithoutSpills) {
  cuda::Jit jit({.cache_root = ATTEND_TEST_KERNEL_CACHE, .kernel_dir = {}, .log_compiles = false, .print = {}});
  EXPECT_TRUE(cuda::long_rows_specs(cuda::find_arch("sm_80")).empty());
  const std::vector<cuda::KernelSpec> specs = cuda::long_rows_specs(cuda::find_arch("sm_90a"));
  for (std::size_t n = 0; n < specs.size(); ++n) {
    constexpr std::size_t kOfHeadDim = 4;
    if ((n + n / kOfHeadDim) % 2 != 0 && std::getenv("ATTEND_TEST_ALL_KERNELS") == nullptr) continue;
    const cuda::KernelSpec& spec = specs[n];
    const cuda::Resources r = jit.compile(spec)->resources;
    EXPECT_EQ(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes, 0) << cuda::describe(spec);
    EXPECT_LE(r.static_smem_bytes + spec.dynamic_smem_bytes, 227U * 1024) << cuda::describe(spec);
  }
}

}  // namespace
}  // namespace attend::test
