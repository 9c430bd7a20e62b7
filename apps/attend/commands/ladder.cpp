// attend ladder: checks and then times every rung that this GPU supports. It also times matrix products of cuBLAS.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <ctime>
#include <optional>

#include "check/check.hpp"
#include "commands/commands.hpp"
#include "core/dtype_traits.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/jit/sources.hpp"
#include "cuda/launch/family.hpp"
#include "io/file.hpp"
#include "ladder/matrix_product.hpp"
#include "ladder/steps.hpp"
#include "ladder/table.hpp"
#include "workload/executor.hpp"
#include "workload/random_workload.hpp"

namespace attend::cli {
namespace {

/// Steps with the same element type and problem size. They are compared with each other.
struct Group {
  DType dtype;
  io::FolderSpec spec;
  std::vector<LadderStep> steps;
};

/// Returns the requested steps that this GPU supports. Prints a line for each step that it does not support.
std::vector<LadderStep> climbable(const LadderOptions& options) {
  std::vector<LadderStep> steps;
  const cuda::Arch& arch = cuda::device_info(0).arch();
  for (const LadderStep& step : ladder_steps(arch)) {
    const auto& asked = options.computes;
    if (!asked.empty() && std::find(asked.begin(), asked.end(), step.family->name) == asked.end()) continue;
    if (!step.family->supports(arch)) {
      fmt::print("{:02} {:<20} left out: no kernel for {}\n", step.number, step.family->name, arch.target);
      continue;
    }
    steps.push_back(step);
  }
  return steps;
}

Mode passes_of(const cuda::Family& family) {
  if (!family.has_backward) return Mode::kForward;
  return family.has_forward ? Mode::kBoth : Mode::kBackward;
}

/// Computes one problem with the step and compares the result with the reference. Returns true if all errors are within
/// their tolerances. If the step has no forward pass, the backend that `auto` chooses computes o and lse.
bool passes_check(const LadderStep& step, const GridEntry& entry) {
  const Mode mode = passes_of(*step.family);
  const Workload w = random_workload(entry, {}, mode);
  const Choice choice = choose_compute(step.family->name, DeviceType::kCUDA, w, mode);
  const auto executor = make_executor(w, choice, false);
  executor->run(Mode::kForward);
  if (mode != Mode::kForward) executor->run(Mode::kBackward);
  executor->fetch();
  const CheckReport report = check(w, mode);
  bool passed = true;
  for (const auto* list : {&report.forward, &report.backward}) {
    for (const TensorError& t : *list) {
      if (!t.passed) {
        fmt::print("{:02} {:<20} {} {}{}: {} max abs err {:.2e}, allowed {:.2e}  FAIL\n", step.number,
                   step.family->name, io::folder_name(entry.spec), dtype_name(entry.spec.dtype),
                   entry.causal ? " causal" : "", t.name, t.max_abs, t.tolerance);
      }
      passed = passed && t.passed;
    }
  }
  return passed;
}

bool check_step(const LadderStep& step) {
  bool passed = true;
  int cases = 0;
  for (const DType dtype : core::kDTypes) {
    if (!step.family->dtypes.has(dtype)) continue;
    for (const std::int64_t head_dim : {64, 128}) {
      for (const bool causal : {false, true}) {
        for (io::FolderSpec spec :
             {square_problem(1, 2, 129, head_dim, dtype).spec, square_problem(2, 2, 100, head_dim, dtype).spec}) {
          spec.num_heads_kv = 1;
          spec.seqlen_k += spec.batch == 2 ? 57 : 0;
          passed = passes_check(step, {spec, causal}) && passed;
          ++cases;
        }
      }
    }
  }
  fmt::print("{:02} {:<20} {} of {} cases\n", step.number, step.family->name, passed ? "PASS, all" : "FAIL, some",
             cases);
  std::fflush(stdout);
  return passed;
}

std::vector<Group> groups(const std::vector<LadderStep>& steps) {
  std::vector<Group> list = {{DType::kF32, square_problem(8, 16, 2048, 64, DType::kF32).spec, {}},
                             {DType::kBF16, square_problem(2, 16, 8192, 128, DType::kBF16).spec, {}}};
  for (Group& group : list) {
    for (const LadderStep& step : steps) {
      if (step.family->dtypes.has(group.dtype)) group.steps.push_back(step);
    }
  }
  return list;
}

void time_group(const Group& group, Mode pass, const LadderOptions& options, LadderReport& report) {
  std::vector<LadderStep> steps;
  for (const LadderStep& step : group.steps) {
    if (pass == Mode::kForward ? step.family->has_forward : step.family->has_backward) steps.push_back(step);
  }
  if (steps.empty()) return;
  const cuda::ContextGuard context(0);
  const Workload w = random_workload({group.spec, false}, {}, pass == Mode::kForward ? Mode::kForward : Mode::kBoth);
  const auto product = MatrixProduct::make(group.dtype);
  std::vector<std::unique_ptr<Executor>> executors;
  std::vector<Choice> choices;
  std::vector<Sampler> samplers;
  for (const LadderStep& step : steps) {
    choices.push_back(choose_compute(step.family->name, DeviceType::kCUDA, w, pass));
    executors.push_back(make_executor(w, choices.back(), true));
    if (pass == Mode::kBackward) executors.back()->run(Mode::kForward);
    samplers.push_back(executors.back()->sampler(pass));
  }
  if (product) samplers.push_back(product->sampler());
  std::vector<Timing> timings = time_in_turns(samplers, options.repeat, options.max_seconds);
  for (std::size_t i = 0; i < samplers.size(); ++i) {
    (void)samplers[i]();  // runs the step again, so that the GPU's clock is read under its load
    timings[i].sm_mhz = executors.front()->clock_mhz();
  }
  Yardstick yardstick = {group.dtype, pass, {}, 0};
  if (product) {
    yardstick.timing = timings.back();
    yardstick.tflops = MatrixProduct::tflops(yardstick.timing.median_ms);
    report.yardsticks.push_back(yardstick);
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    LadderRow row = {steps[i].number, make_result(w, pass, choices[i], timings[i]), 0, 0};
    if (yardstick.tflops > 0) row.share = row.result.tflops / yardstick.tflops;
    if (i > 0)
      row.speed_up = report.rows.back().result.tflops > 0 ? row.result.tflops / report.rows.back().result.tflops : 0;
    fmt::print("{:02} {:<20} {:<9} {:>11} {:>10.2f} TFLOP/s {:>6} of cuBLAS {:>8}  {:.0f} MHz\n", row.number,
               row.result.compute, mode_name(pass), time_text(row.result.timing.median_ms), row.result.tflops,
               row.share > 0 ? fmt::format("{:.1f} %", 100 * row.share) : "-",
               row.speed_up > 0 ? fmt::format("{:.2f}x", row.speed_up) : "", row.result.timing.sm_mhz);
    report.rows.push_back(std::move(row));
  }
  std::fflush(stdout);
}

/// Returns the date in UTC in the form "2026-01-31".
std::string today() {
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
}

}  // namespace

int ladder(const LadderOptions& options) {
  (void)choose_compute("auto", DeviceType::kCUDA,
                       random_workload(square_problem(1, 1, 8, 64, DType::kF32), {}, Mode::kForward),
                       Mode::kForward);  // throws if there is no GPU
  io::FileTransaction files;
  std::optional<io::FileTransaction::Handle> json;
  if (!options.json.empty()) json = files.create(options.json);

  const std::vector<LadderStep> steps = climbable(options);
  LadderReport report = {cuda::device_info(0).name, cuda::kernel_digest(), today(), {}, {}};
  fmt::print("{}: checking against the float64 reference\n", report.device_name);
  bool passed = true;
  for (const LadderStep& step : steps) passed = check_step(step) && passed;
  if (!passed) return kExitCheckFailed;
  fmt::print("timing\n");
  for (const Group& group : groups(steps)) {
    for (const Mode pass : {Mode::kForward, Mode::kBackward}) time_group(group, pass, options, report);
  }
  if (json) files.append(*json, to_json(report).dump(2) + "\n");
  files.commit();
  return kExitDone;
}

}  // namespace attend::cli
