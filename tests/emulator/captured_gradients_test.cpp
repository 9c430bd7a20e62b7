// Runs GPU kernels on the CPU to test the gradients of tensors that score functions read.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "core/score_function_state.hpp"
#include "cuda/launch/captured_steps.hpp"
#include "cuda/launch/custom_score_text.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/kernel_args.hpp"
#include "emulator/emulated_kernel.hpp"
#include "kernels/attention/saved_row.cuh"
#include "score/score_case.hpp"

namespace attend::test {
namespace {

cuda::DeviceInfo hopper() {
  const cuda::Arch& arch = cuda::find_arch("sm_90a");
  return {.index = 0,
          .name = "sm_90a",
          .major = arch.major,
          .minor = arch.minor,
          .num_multiprocessors = 132,
          .max_smem_per_block = arch.max_smem_per_block};
}

/// Returns the captures' gradients from the family's kernels. One kernel prepares the inputs, and the other sums the
/// gradients.
std::map<std::string, std::vector<double>> emulated(const char* name, const ScoreCase& c, const Inputs& in) {
  const Outputs out = make_outputs(in);
  const ScoreFunction function = function_of(c);
  ForwardCall forward_call = forward_of(in, out, "cpu");
  forward_call.params.score = &function;
  forward(forward_call);
  BackwardCall call = backward_of(in, out, "cpu");
  call.params.score = &function;
  std::vector<CaptureBuffer> gradients;
  for (const CaptureBuffer& b : c.captures) {
    if (b.dtype() == DType::kI32) continue;
    const std::vector<double> zeros(static_cast<std::size_t>(b.numel()), 0);
    gradients.emplace_back(b.name(), DType::kF32, b.shape(), zeros);
    const ConstStridedTensor view = gradients.back().capture().tensor;
    call.captures.push_back({b.name(), {const_cast<void*>(view.data), view.dtype, view.shape, view.stride}});
  }
  const core::Problem p = core::make_problem(call);
  const cuda::Family* family = cuda::find_family(name);
  const cuda::Choice choice = family->choose(p, hopper());
  std::vector<cuda::KernelSpec> specs = family->kernels(choice.variant, hopper().arch());
  std::vector<SavedRow> saved(static_cast<std::size_t>(p.q.shape[0] * p.num_heads_q * p.q.shape[2]));
  const bool folds_scale = family->name == std::string("sm80_backward");
  BackwardOptionArgs args = cuda::backward_option_args(cuda::backward_args(p, saved.data(), folds_scale), p);
  if (folds_scale) args.base.scale = cuda::made_up_scale(p, true);
  const BackwardOptionArgs of_captures = cuda::captured_args(args, p);
  for (std::size_t step = 0; step < specs.size(); ++step) {
    const bool prepares = specs[step].name == "simt_backward_prepare";
    if (!prepares && specs[step].name != "simt_captures") continue;
    cuda::set_custom_score(specs[step], function.state()->custom);
    const auto blocks = static_cast<unsigned>(choice.steps[step].blocks);
    EmulatedKernel(specs[step]).launch(prepares ? &args : &of_captures, blocks, 1);
  }
  std::map<std::string, std::vector<double>> found;
  for (const CaptureBuffer& g : gradients) found[g.name()] = g.values();
  return found;
}

struct Function {
  const char* text;
  std::vector<CaptureBuffer> captures;
};

std::vector<Function> functions() {
  const CaptureBuffer table("table", DType::kF32, {4, 16}, normal_values(64, 1)),
      gain("gain", DType::kF32, {4}, {0.5, 1, 1.5, 2}),
      of_keys("of_keys", DType::kBF16, {2, 100}, normal_values(200, 2)), cap("cap", DType::kF32, {}, {3.0}),
      document("document", DType::kI32, {100}, std::vector<double>(100, 1));
  return {{"score + table[h][clamp(q - k, -8, 7) + 8]", {table}},
          {"gain[h] * score + of_keys[b][k]", {gain, of_keys}},
          {"cap * tanh(score / cap) - gain[h] * abs(q - k) / 8", {cap, gain}},
          {"score > 0 ? score * gain[q % 4] : (document[k] == 1 ? score : -inf)", {gain, document}},
          {"score + table[h][clamp(int(4 * score) + 8, 0, 15)] * sin(float(q - k))", {table}}};
}

class EmulatedCaptures : public testing::TestWithParam<std::size_t> {};

INSTANTIATE_TEST_SUITE_P(All, EmulatedCaptures, testing::Range<std::size_t>(0, 5));

std::vector<AttentionCase> cases() {
  const AttentionCase base = {.dtype = DType::kF32,
                              .batch = 2,
                              .heads_q = 4,
                              .heads_k = 2,
                              .seqlen_q = 50,
                              .seqlen_k = 90,
                              .head_dim = 24,
                              .head_dim_v = 40,
                              .dlse = true,
                              .seed = 7};
  std::vector<AttentionCase> all(3, base);
  all[0].causal = true, all[0].dropout_p = 0.3;
  all[1].varlen_q = {5, 0, 31}, all[1].varlen_k = {9, 4, 70}, all[1].head_dim = 80, all[1].scale = -0.2;
  all[2].window_left = 20, all[2].window_right = 5, all[2].softcap = 5, all[2].seqlen_q = 90;
  return all;
}

/// Compares the gradients with the reference. @param budget allowed error relative to the largest magnitude
void expect_reference(const char* family, const ScoreCase& c, double budget) {
  SCOPED_TRACE(family + (" " + describe(c.attention)));
  const Inputs in = make_inputs(c.attention);
  const auto found = emulated(family, c, in);
  const ScoreResults truth = run_score(c, as_f64(in), "reference");
  ASSERT_FALSE(found.empty());
  for (const auto& [name, values] : found) {
    const std::vector<double>& wanted = truth.captures.at(name);
    double largest = 1e-3, error = 0;
    for (std::size_t n = 0; n < wanted.size(); ++n) {
      largest = std::max(largest, std::abs(wanted[n]));
      error = std::max(error, std::isfinite(values[n]) ? std::abs(values[n] - wanted[n]) : INFINITY);
    }
    std::printf("%s %s: d%s %.1e/%.1e\n", family, describe(c.attention).c_str(), name.c_str(), error, budget * largest);
    EXPECT_LE(error, budget * largest) << name;
  }
}

TEST_P(EmulatedCaptures, AreTheReference) {
  if (!why_no_emulation().empty()) GTEST_SKIP() << why_no_emulation();
  const Function f = functions()[GetParam()];
  SCOPED_TRACE(f.text);
  // The function converts to int, so it is not continuous.
  const bool has_steps = std::string(f.text).find("int(") != std::string::npos;
  for (AttentionCase a : cases()) {
    if (a.softcap > 0 && has_steps) continue;
    expect_reference("simt", {a, f.text, f.captures}, 4e-5);
    a.dtype = DType::kBF16;
    if (a.softcap == 0 && !has_steps) expect_reference("sm80_backward", {a, f.text, f.captures}, 0x1p-5);
  }
}

}  // namespace
}  // namespace attend::test
