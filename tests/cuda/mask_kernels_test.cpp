// Compiles the kernels that build block masks on the GPU. The kernels must compile without warnings or spills.
// tests/gpu/made_mask_test.cpp tests their results.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "attend/block_mask.hpp"
#include "cuda/jit_fixture.hpp"
#include "cuda/masks/mask_kernels.hpp"
#include "mask/gpu_tiles.hpp"

namespace attend::test {
namespace {

class MaskMakers : public NvrtcTest {};

ScoreCapture capture(const char* name, DType dtype, std::vector<std::int64_t> shape) {
  static const double kSomewhere = 0;
  return {name, {.data = &kSomewhere, .dtype = dtype, .shape = std::move(shape), .device = {DeviceType::kCUDA, 0}}};
}

TEST_F(MaskMakers, CompileWithoutSpills) {
  const std::vector<MaskFunction> masks = {
      MaskFunction("k <= q"),
      MaskFunction("false"),
      MaskFunction("k <= valid", {capture("valid", DType::kI64, {})}),
      MaskFunction("k <= q && doc[q] == doc[k]", {capture("doc", DType::kI32, {8192})}),
      MaskFunction("abs(q // 16 - k // 16) <= 3 && abs(q % 16 - k % 16) <= 3"),
      MaskFunction("x[q] * 0.1 + x[k] / 3 < sqrt(x[k]) && keep[b, h, q // 32, k // 32] && float(q) % 7.5 < floor(x[k])",
                   {capture("x", DType::kBF16, {8192}), capture("keep", DType::kBool, {2, 2, 32, 32})})};
  for (const MaskFunction& mask : masks) {
    const core::MaskProgram program = mask::gpu_program(mask.state());
    for (const char* target : {"sm_75", "sm_90a"}) {
      for (const cuda::KernelSpec& spec : cuda::MaskKernels(program, program.captures).specs(target)) {
        const cuda::Resources r = compiled_without_warnings(spec);
        EXPECT_GT(r.registers, 0) << cuda::describe(spec);
        EXPECT_EQ(r.spill_store_bytes + r.spill_load_bytes, 0) << mask.text() << " " << cuda::describe(spec);
      }
    }
  }
}

}  // namespace
}  // namespace attend::test
