// Compiles kernels with score functions in every family, for forward and backward. The kernels must compile without
// warnings and with few or no register spills.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "attend/block_mask.hpp"
#include "attend/score_function.hpp"
#include "core/score_function_state.hpp"
#include "cuda/jit_fixture.hpp"
#include "cuda/launch/custom_score_text.hpp"
#include "made_up.hpp"

namespace attend::test {
namespace {

class CustomScoreKernels : public NvrtcTest {};

ScoreCapture capture(const char* name, DType dtype, std::vector<std::int64_t> shape) {
  static const double kSomewhere = 0;
  return {name, {.data = &kSomewhere, .dtype = dtype, .shape = std::move(shape), .device = {DeviceType::kCUDA, 0}}};
}

/// Limit for spilled bytes in a kernel that uses all registers. Some spills are allowed, because captured values are
/// loaded for 32 scores at a time.
constexpr int kMostSpilledBytes = 160;
// Also covers registers that a function call may overwrite, and sums that are kept across sin().
constexpr int kMostSpilledAroundCalls = 280;

constexpr int kMostSpilledBySeveralLoads = 640;  // three loads per score need more registers than sm90_backward has

struct Function {
  const char* text;
  std::vector<ScoreCapture> captures;
  int most_spilled_bytes = kMostSpilledBytes;
};

std::vector<Function> functions() {
  return {{"score - slope[h] * abs(q + k_len - q_len - k)", {capture("slope", DType::kF32, {8})}},
          {"50 * tanh(score / 50)", {}},
          {"where(doc[q] == doc[k], score, -inf)", {capture("doc", DType::kI32, {1000})}},
          {"score + table[h][clamp(q - k, -128, 127) + 128]", {capture("table", DType::kBF16, {8, 256})}},
          {"score + near[h][clamp(q - k, -9, 9) + 9] + pairs[q][k] + far[h][clamp(q - k, -99, 99) + 99]",
           {capture("near", DType::kF32, {8, 19}), capture("pairs", DType::kF32, {1000, 1000}),
            capture("far", DType::kF32, {8, 199})},
           kMostSpilledBySeveralLoads},
          {"score + wave[h] * sin(float(q - k) / 10)", {capture("wave", DType::kF32, {8})}, kMostSpilledAroundCalls},
          // The gradient of `cut` is 0.
          {"float(q) > cut[h] ? -inf : score", {capture("cut", DType::kF32, {8})}}};
}

struct Compiled {
  int registers = 0, spilled_bytes = 0;
};

/// Compiles the kernel with the score function, as a launch does.
Compiled compile(cuda::KernelSpec spec, const core::CustomScore& score) {
  cuda::set_custom_score(spec, score);
  const cuda::Resources resources = compiled_without_warnings(spec);
  return {resources.registers, resources.spill_store_bytes + resources.spill_load_bytes};
}

bool reads_floats(const Function& f) {
  return !f.captures.empty() && f.captures.front().tensor.dtype != DType::kI32;
}

/// Feature of the kernel in addition to the score function. kGradients computes the gradient of the function's first
/// capture.
enum class Beside { kNothing, kGradients, kBlockMask };

/// Compiles the kernels that a family uses for a score function. Returns the number of kernels.
int compile_all(const cuda::Family& family, const Function& f, std::int64_t head_dim, bool backward, Beside beside) {
  const cuda::DeviceInfo gpu = device("sm_90a", 132);
  const ScoreFunction function(f.text, f.captures);
  const BlockMask mask = make_block_mask(MaskFunction("k <= q || k < 5"), {1, 1, 1000, 1000});
  Params params = {.causal = true};
  if (beside == Beside::kBlockMask) params = {.block_mask = &mask};
  MadeUp made(DType::kBF16, {.head_dim = head_dim, .head_dim_v = head_dim}, params, backward);
  made.problem.custom_score = &function.state()->custom;
  if (beside == Beside::kGradients) {
    static float gradient = 0;
    Tensor of_first = function.state()->custom.captured.front();
    of_first.data = &gradient, of_first.dtype = DType::kF32;
    made.problem.captured_gradients.push_back({0, of_first});
  }
  if (family.lack(made.problem, gpu)) return 0;
  int compiled = 0;
  for (const cuda::KernelSpec& spec : family.kernels(family.choose(made.problem, gpu).variant, gpu.arch())) {
    const Compiled one = compile(spec, function.state()->custom);
    std::printf("%s d %d %s%s: %d registers, %d bytes spilled\n", spec.name.c_str(), static_cast<int>(head_dim), f.text,
                beside == Beside::kGradients   ? " with gradients"
                : beside == Beside::kBlockMask ? " with a block mask"
                                               : "",
                one.registers, one.spilled_bytes);
    EXPECT_LE(one.spilled_bytes, f.most_spilled_bytes);
    ++compiled;
  }
  return compiled;
}

/// If ATTEND_TEST_FAMILY is set, compiles only that family, but for all head_dims.
TEST_F(CustomScoreKernels, CompileWithoutWarnings) {
  const char* const only = std::getenv("ATTEND_TEST_FAMILY");
  int compiled = 0;
  for (const cuda::Family* family : cuda::families()) {
    if (only != nullptr ? std::string(only) != family->name : std::string(family->name) == "simt") continue;
    for (const bool backward : {false, true}) {
      for (const std::int64_t head_dim :
           only != nullptr ? std::vector<std::int64_t>{64, 128, 192} : std::vector<std::int64_t>{128}) {
        for (const Function& f : functions()) {
          for (const Beside beside : {Beside::kNothing, Beside::kGradients, Beside::kBlockMask}) {
            if (beside == Beside::kGradients && !(backward && reads_floats(f))) continue;
            compiled += compile_all(*family, f, head_dim, backward, beside);
          }
        }
      }
    }
  }
  EXPECT_GT(compiled, 0);
}

}  // namespace
}  // namespace attend::test
