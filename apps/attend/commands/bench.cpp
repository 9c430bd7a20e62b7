// attend bench: times several backends on the same problems. Their runs alternate.
#include <fmt/format.h>

#include <cstdio>

#include "commands/commands.hpp"
#include "process/interrupt.hpp"
#include "process/progress.hpp"
#include "process/system.hpp"
#include "report/report.hpp"
#include "workload/executor.hpp"
#include "workload/grid.hpp"
#include "workload/own_functions.hpp"
#include "workload/random_workload.hpp"

namespace attend::cli {
namespace {

/// Throws if the tensors of a problem do not fit into memory together.
void require_memory_for(const io::FolderSpec& spec) {
  double bytes = 0;
  for (const Shape& shape : {spec.q_shape(), spec.k_shape(), spec.v_shape(), spec.o_shape()}) {
    const auto size = io::tensor_bytes(spec.dtype, shape);
    bytes += size ? 2.0 * static_cast<double>(*size) : 1e18;  // memory for the tensor and for its gradient
  }
  io::require_memory(io::folder_name(spec), static_cast<std::int64_t>(bytes));
}

std::vector<Mode> passes(Mode mode) {
  if (mode == Mode::kBoth) return {Mode::kForward, Mode::kBackward};
  return {mode};
}

void print_header() {
  fmt::print("{:<18} {:<9} {:>4} {:>4} {:>4} {:>6} {:>6} {:>4} {:<5} {:<11} {:>11} {:>11} {:>14} {:>9} {:>7}\n",
             "compute", "pass", "B", "H", "Hkv", "Sq", "Sk", "D", "dtype", "mask", "median", "fastest", "speed", "GB/s",
             "SM MHz");
}

void print_row(const Result& r) {
  const std::string mask = !r.function.empty() ? r.function : r.options.causal ? "causal" : "full";
  fmt::print("{:<18} {:<9} {:>4} {:>4} {:>4} {:>6} {:>6} {:>4} {:<5} {:<11} {:>11} {:>11} {:>14} {:>9.2f} {:>7}\n",
             r.compute, mode_name(r.mode), r.batch, r.heads, r.heads_kv, r.seqlen_q, r.seqlen_k, r.head_dim,
             dtype_name(r.dtype), mask, time_text(r.timing.median_ms), time_text(r.timing.fastest_ms),
             speed_text(r.tflops), r.gbps, r.timing.sm_mhz > 0 ? fmt::format("{:.0f}", r.timing.sm_mhz) : "-");
}

std::vector<GridEntry> entries_of(const BenchOptions& options) {
  if (options.grid == "masks") {
    io::FolderSpec spec = masks_spec(device_of(options.computes, options.device));
    if (options.dtype_given) spec.dtype = options.dtype;
    return masks_grid(options.problem.value_or(spec));
  }
  if (options.problem) return {{.spec = *options.problem}};
  return load_grid(options.grid, options.dtype);
}

std::string title(const GridEntry& entry) {
  return io::folder_name(entry.spec) + (entry.function.empty() ? "" : " " + entry.function);
}

/// A backend that is timed on the current problem.
struct Contender {
  Choice choice;
  std::unique_ptr<Executor> executor;
};

/// Returns the backends that support the problem. Prints a line for each backend that does not.
std::vector<Contender> contenders(const BenchOptions& options, const GridEntry& entry, const Workload& w) {
  std::vector<Contender> found;
  for (const std::string& name : options.computes) {
    try {
      Choice choice = choose_compute(name, options.device, w, options.mode);
      auto executor = make_executor(w, choice, true);
      found.push_back({std::move(choice), std::move(executor)});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      fmt::print("{:<18} left out at {}: {}\n", name, title(entry), error.what());
    }
  }
  return found;
}

std::vector<Result> time_problem(const BenchOptions& options, const Workload& w, const std::vector<Contender>& list,
                                 Mode pass) {
  std::vector<Sampler> samplers;
  for (const Contender& c : list) {
    // Backward reads the results of forward. If only backward is timed, forward must run first.
    if (pass == Mode::kBackward && options.mode == Mode::kBackward) c.executor->run(Mode::kForward);
    samplers.push_back(c.executor->sampler(pass));
  }
  std::vector<Timing> timings = time_in_turns(samplers, options.repeat, options.max_seconds);
  std::vector<Result> results;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].choice.device.type == DeviceType::kCUDA) {
      (void)samplers[i]();  // runs the backend again, so that the GPU's clock is read under its load
      timings[i].sm_mhz = list[i].executor->clock_mhz();
    }
    results.push_back(make_result(w, pass, list[i].choice, timings[i]));
  }
  return results;
}

}  // namespace

int bench(const BenchOptions& options) {
  // Output to files and pipes is line-buffered too, so that rows appear immediately.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  set_threads(options.threads);
  const std::vector<GridEntry> grid = entries_of(options);
  for (const GridEntry& entry : grid) require_memory_for(entry.spec);
  GrowingResultFiles result_files(options.json, options.csv);

  fmt::print("attend {}, {}, SIMD {}, {} threads\n", version(), cpu_model(), cpu_simd_target(), cpu_threads());
  const std::vector<Mode> modes = passes(options.mode);
  Progress progress("bench", static_cast<std::int64_t>(grid.size() * modes.size()));
  std::vector<Result> results;
  std::string told;  // text about the device that was printed last, so that the same text is not printed again
  for (const GridEntry& entry : grid) {
    const Workload w = random_workload(entry, options.attention, options.mode);
    progress.note(title(entry));
    progress.hide();
    const std::vector<Contender> list = contenders(options, entry, w);
    for (const Contender& c : list) {
      const std::string now =
          device_name(c.choice.device) + (c.choice.note.empty() ? "" : "; no GPU: " + c.choice.note);
      if (std::exchange(told, now) == now) continue;
      fmt::print("on {}\n", now);
      print_header();
    }
    for (const Mode pass : modes) {
      for (Result& result : time_problem(options, w, list, pass)) {
        result.function = entry.function;
        print_row(result);
        results.push_back(result);
      }
      if (results.empty()) continue;
      result_files.save(results);
      set_interrupted_results(result_files.text());
      progress.advance();
      progress.hide();
    }
  }
  if (results.empty()) throw Error(ErrorCode::kUnsupported, "bench: no backend supports any of these problems");
  result_files.finish(results);
  return kExitDone;
}

}  // namespace attend::cli
