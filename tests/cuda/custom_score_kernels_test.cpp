// Kernels with functions of scores, by the compiler: every family, both passes, without warnings or spills.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "attend/score_function.hpp"
#include "core/score_function_state.hpp"
#include "cuda/driver/nvrtc.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "cuda/jit/ptxas_log.hpp"
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

struct Function {
  const char* text;
  std::vector<ScoreCapture> captures;
};

std::vector<Function> functions() {
  return {{"score - slope[h] * abs(q + k_len - q_len - k)", {capture("slope", DType::kF32, {8})}},
          {"50 * tanh(score / 50)", {}},
          {"where(doc[q] == doc[k], score, -inf)", {capture("doc", DType::kI32, {1000})}},
          {"score + table[h][clamp(q - k, -128, 127) + 128]", {capture("table", DType::kBF16, {8, 256})}}};
}

struct Compiled {
  int registers = 0, spilled_bytes = 0;
};

/// With a function, as launches compile it.
Compiled compile(cuda::KernelSpec spec, const core::CustomScore& score) {
  cuda::set_custom_score(spec, score);
  const cuda::Program program = cuda::make_program(spec, {});
  const cuda::CompileOutput output =
      cuda::Nvrtc::instance().compile(program.name, program.text, program.headers, program.options);
  EXPECT_FALSE(output.cubin.empty()) << output.log;
  const cuda::Resources resources = cuda::parse_ptxas_log(output.log, program.entry);
  for (const std::string& warning : resources.warnings) ADD_FAILURE() << spec.name << ": " << warning;
  return {resources.registers, resources.spill_store_bytes + resources.spill_load_bytes};
}

TEST_F(CustomScoreKernels, CompileWithoutWarningsOrSpills) {
  const char* const only = std::getenv("ATTEND_TEST_FAMILY");
  const cuda::DeviceInfo gpu = device("sm_90a", 132);
  for (const cuda::Family* family : cuda::families()) {
    if (only != nullptr && std::string(only) != family->name) continue;
    for (const bool backward : {false, true}) {
      for (const bool causal : {false, true}) {
        for (const std::int64_t head_dim : {64, 128, 192}) {
          for (const Function& f : functions()) {
            const ScoreFunction function(f.text, f.captures);
            MadeUp made(DType::kBF16, {.head_dim = head_dim, .head_dim_v = head_dim}, {.causal = causal}, backward);
            made.problem.custom_score = &function.state()->custom;
            if (family->lack(made.problem, gpu)) continue;
            for (const cuda::KernelSpec& spec : family->kernels(family->choose(made.problem, gpu).variant, gpu.arch())) {
              const Compiled compiled = compile(spec, function.state()->custom);
              std::printf("%s %s d %d %s: %d registers, %d bytes spilled\n", spec.name.c_str(),
                          causal ? "causal" : "full", static_cast<int>(head_dim), f.text, compiled.registers,
                          compiled.spilled_bytes);
              EXPECT_EQ(compiled.spilled_bytes, 0);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace attend::test
