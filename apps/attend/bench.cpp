// attend bench: the same problems for several backends, timed.
#include <fmt/format.h>

#include "commands.hpp"
#include "grid.hpp"
#include "io/random_normal.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "system.hpp"

namespace attend::cli {
namespace {

constexpr std::uint64_t kSeed = 42;

io::HostTensor random_tensor(DType dtype, const Shape& shape, io::NormalStream stream) {
  io::HostTensor values(DType::kF32, shape);
  io::fill_normal({static_cast<float*>(values.view().data), static_cast<std::size_t>(values.numel())}, kSeed, stream,
                  0);
  return dtype == DType::kF32 ? std::move(values) : values.converted(dtype);
}

/// Throws where all the tensors of a problem together do not fit into memory.
void require_memory_for(const io::FolderSpec& spec) {
  double bytes = 0;
  for (const Shape& shape : {spec.q_shape(), spec.k_shape(), spec.v_shape(), spec.o_shape()}) {
    const auto size = io::tensor_bytes(spec.dtype, shape);
    bytes += size ? 2.0 * static_cast<double>(*size) : 1e18;  // itself and its gradient
  }
  io::require_memory(io::folder_name(spec), static_cast<std::int64_t>(bytes));
}

Workload make_workload(const io::FolderSpec& spec, const BenchOptions& options) {
  Workload w;
  w.options = options.attention;
  w.q = random_tensor(spec.dtype, spec.q_shape(), io::NormalStream::kQ);
  w.k = random_tensor(spec.dtype, spec.k_shape(), io::NormalStream::kK);
  w.v = random_tensor(spec.dtype, spec.v_shape(), io::NormalStream::kV);
  w.allocate_forward();
  if (options.mode == Mode::kForward) return w;
  w.dout = random_tensor(spec.dtype, spec.o_shape(), io::NormalStream::kDOut);
  w.allocate_backward();
  return w;
}

std::vector<Mode> passes(Mode mode) {
  if (mode == Mode::kBoth) return {Mode::kForward, Mode::kBackward};
  return {mode};
}

void print_header() {
  fmt::print("{:<10} {:<9} {:>4} {:>4} {:>4} {:>6} {:>6} {:>4} {:<5} {:>11} {:>11} {:>14} {:>9}\n", "compute", "pass",
             "B", "H", "Hkv", "Sq", "Sk", "D", "dtype", "median", "fastest", "speed", "GB/s");
}

void print_row(const Result& r) {
  fmt::print("{:<10} {:<9} {:>4} {:>4} {:>4} {:>6} {:>6} {:>4} {:<5} {:>11} {:>11} {:>14} {:>9.2f}\n", r.compute,
             mode_name(r.mode), r.batch, r.heads, r.heads_kv, r.seqlen_q, r.seqlen_k, r.head_dim, dtype_name(r.dtype),
             time_text(r.timing.median_ms), time_text(r.timing.fastest_ms), speed_text(r.tflops), r.gbps);
  std::fflush(stdout);
}

Result time_pass(const BenchOptions& options, const Workload& w, const std::string& compute, Mode pass) {
  // Backward reads what forward gives; alone, that has to be computed first.
  if (pass == Mode::kBackward && options.mode == Mode::kBackward) w.forward(compute);
  const Timing timing = time_calls(options.repeat, options.max_seconds, [&] {
    if (pass == Mode::kForward) {
      w.forward(compute);
    } else {
      w.backward(compute);
    }
  });
  return make_result(w, pass, compute, timing);
}

}  // namespace

int bench(const BenchOptions& options) {
  set_threads(options.threads);
  const std::vector<io::FolderSpec> grid = load_grid(options.grid, options.dtype);
  for (const io::FolderSpec& spec : grid) require_memory_for(spec);
  io::FileTransaction files;
  ResultFiles result_files(files, options.json, options.csv);
  const std::vector<Mode> modes = passes(options.mode);

  fmt::print("attend {}, {}, SIMD {}, {} threads{}\n", version(), cpu_model(), cpu_simd_target(), cpu_threads(),
             options.attention.causal ? ", causal" : "");
  print_header();
  Progress progress("bench", static_cast<std::int64_t>(grid.size() * options.computes.size() * modes.size()));
  std::vector<Result> results;
  for (const io::FolderSpec& spec : grid) {
    const Workload w = make_workload(spec, options);
    for (const std::string& name : options.computes) {
      const std::string compute = resolve_compute(name);
      for (const Mode pass : modes) {
        progress.note(fmt::format("{} {} {}", compute, mode_name(pass), io::folder_name(spec)));
        results.push_back(time_pass(options, w, compute, pass));
        progress.hide();
        print_row(results.back());
        progress.advance();
      }
    }
  }
  result_files.write(results);
  files.commit();
  return kExitDone;
}

}  // namespace attend::cli
