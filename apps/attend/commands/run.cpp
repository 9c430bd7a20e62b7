// attend run: reads input files, computes attention, writes the results to files, and checks them on request.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "check/input_checks.hpp"
#include "commands/commands.hpp"
#include "io/file_set.hpp"
#include "io/npy.hpp"
#include "process/interrupt.hpp"
#include "ranks/executor.hpp"
#include "ranks/party.hpp"
#include "report/report.hpp"
#include "workload/executor.hpp"

namespace attend::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kNoLimit = 1e9;  // in seconds; high enough that only --repeat limits the number of runs

bool has_forward(Mode mode) {
  return mode != Mode::kBackward;
}
bool has_backward(Mode mode) {
  return mode != Mode::kForward;
}

/// Two names for each argument: the library's name and the user's name, for example the file name.
using Names = std::vector<std::pair<std::string, std::string>>;

/// A result and the file to which it is written.
struct Output {
  fs::path file;
  const io::HostTensor* tensor;
  bool npy;
  // Number of dimensions in the file. The remaining dimensions have size 1 and are left out. For example, logsumexp is
  // (B, H, S).
  std::size_t sizes;
};

struct Job {
  Workload work;
  Names names;
  std::vector<Output> outputs;
  std::string o_name;  // name of the file of O, if only backward is computed
};

io::HostTensor read_lse_like(const fs::path& path) {
  return io::read_npy(path, io::NpyRank::kLse);
}

void read_folder(const RunOptions& options, Job& job) {
  const fs::path& folder = options.data;
  // The lock prevents another process from replacing files while they are read, so O and logsumexp are from the same
  // run.
  const io::FolderLock lock(folder, io::FolderLock::Kind::kShared);
  const io::FolderSpec spec = io::parse_folder_path(folder);
  Workload& w = job.work;
  w.q = io::read_bin(folder, "Q.bin", spec.dtype, spec.q_shape());
  w.k = io::read_bin(folder, "K.bin", spec.dtype, spec.k_shape());
  w.v = io::read_bin(folder, "V.bin", spec.dtype, spec.v_shape());
  w.allocate_forward();
  if (has_backward(options.mode) && fs::exists(folder / "dO.bin")) {
    w.dout = io::read_bin(folder, "dO.bin", spec.dtype, spec.o_shape());
  }
  if (options.mode == Mode::kBackward) {
    for (const char* file : {"O.bin", "logsumexp.bin"}) {
      if (fs::exists(folder / file)) continue;
      throw Error(ErrorCode::kIo, fmt::format("{}: missing, allowed the result of an earlier run with --mode forward",
                                              (folder / file).string()));
    }
    w.o = io::read_bin(folder, "O.bin", spec.dtype, spec.o_shape());
    job.o_name = (folder / "O.bin").string();
    w.lse = io::read_bin(folder, "logsumexp.bin", io::lse_dtype(spec.dtype), spec.lse_shape());
  }
}

void read_npy_files(const RunOptions& options, Job& job) {
  Workload& w = job.work;
  w.q = io::read_npy(options.q, io::NpyRank::kExact);
  w.k = io::read_npy(options.k, io::NpyRank::kExact);
  w.v = io::read_npy(options.v, io::NpyRank::kExact);
  job.names = {{"q", options.q.string()}, {"k", options.k.string()}, {"v", options.v.string()}};
  w.allocate_forward();
  if (has_backward(options.mode) && !options.dout.empty()) {
    w.dout = io::read_npy(options.dout, io::NpyRank::kExact);
    job.names.emplace_back("dout", options.dout.string());
  }
  if (options.mode != Mode::kBackward) return;
  const fs::path o = options.o.empty() ? options.output_dir / "O.npy" : options.o;
  const fs::path lse = options.lse.empty() ? options.output_dir / "logsumexp.npy" : options.lse;
  for (const auto& [path, flag] : {std::pair{&o, "--o"}, {&lse, "--lse"}}) {
    if (fs::exists(*path)) continue;
    throw Error(ErrorCode::kIo,
                fmt::format("{}: missing, allowed the result of an earlier run with --mode forward ({})",
                            path->string(), flag));
  }
  w.o = io::read_npy(o, io::NpyRank::kExact);
  job.o_name = o.string();
  w.lse = read_lse_like(lse);
  job.names.insert(job.names.end(), {{"o", o.string()}, {"lse", lse.string()}});
}

void read_optional(Job& job, std::optional<io::HostTensor>& tensor, const char* name, const fs::path& path,
                   io::NpyRank rank) {
  if (path.empty()) return;
  tensor = io::read_npy(path, rank);
  job.names.emplace_back(name, path.string());
}

/// Reads the custom score and the custom mask. Each may read all captured tensors.
void read_own(const RunOptions& options, Job& job) {
  std::vector<UserScore::Capture> captures;
  for (const auto& [name, path] : options.captures) captures.push_back({name, io::read_npy_array(path)});
  Workload& w = job.work;
  try {
    if (options.block_mask) {
      const MaskFunction function(*options.block_mask, views_of(captures));
      w.block_mask = make_block_mask(function, {w.q.shape()[0], w.q.shape()[1], w.q.shape()[2], w.k.shape()[2]});
    }
    if (options.score) w.score = std::make_shared<const UserScore>(*options.score, std::move(captures));
  } catch (const Error& error) {
    const bool is_of_mask = std::string_view(error.what()).starts_with("mask");
    // Completes the flag's name, for example "--score: column 3: ...".
    throw Error(error.code(), std::string(is_of_mask ? "--block_" : "--") + error.what());
  }
}

void plan_outputs(const RunOptions& options, Job& job) {
  const Workload& w = job.work;
  const bool npy = options.data.empty();
  const fs::path folder = npy ? options.output_dir : options.data;
  const auto add = [&](const char* name, const io::HostTensor& tensor, bool as_npy, bool drop_last = false) {
    const std::size_t sizes = drop_last ? 3 : 4;
    job.outputs.push_back({folder / (std::string(name) + (as_npy ? ".npy" : ".bin")), &tensor, as_npy, sizes});
  };
  if (has_forward(options.mode)) {
    add("O", w.o, npy);
    add("logsumexp", w.lse, npy, true);
  }
  if (has_backward(options.mode)) {
    add("dQ", w.dq, npy);
    add("dK", w.dk, npy);
    add("dV", w.dv, npy);
    // The gradients of option tensors are written as .npy files, like these tensors.
    for (std::size_t i = 0; i < w.score_gradients.size(); ++i) {
      if (w.score_gradients[i]) add(core::kScoreTensors[i].gradient, *w.score_gradients[i], true);
    }
    for (std::size_t i = 0; i < w.capture_gradients.size(); ++i) {
      const UserScore::Capture& capture = *w.score->learned_captures()[i];
      add(("d_" + capture.name).c_str(), w.capture_gradients[i], true);
      job.outputs.back().sizes = capture.array.shape.size();
    }
  }
}

void load(const RunOptions& options, Job& job) {
  job.work.options = options.attention;
  if (options.data.empty()) {
    read_npy_files(options, job);
  } else {
    read_folder(options, job);
  }
  for (std::size_t i = 0; i < options.score_tensors.size(); ++i) {
    const core::ScoreTensor& row = core::kScoreTensors[i];
    read_optional(job, job.work.score_tensors[i], row.name, options.score_tensors[i],
                  row.is_of_scores() ? io::NpyRank::kBroadcast : io::NpyRank::kSlopes);
  }
  read_own(options, job);
  if (has_backward(options.mode)) job.work.allocate_backward();
  const auto flag_of = [&](const char* name) { job.names.emplace_back(name, std::string("--") + name); };
  for (const char* name : {"compute", "scale", "window_left", "window_right", "score", "block_mask"}) flag_of(name);
  for (const core::ScoreNumber& row : core::kScoreNumbers) flag_of(row.name);
  plan_outputs(options, job);
}

/// Replaces the library's argument name in an error. For example, "k: num_heads_k 3, ..." becomes "K.npy: num_heads_k
/// 3, ...".
Error renamed(const Error& error, const Names& names) {
  const std::string message = error.what();
  for (const auto& [inside, outside] : names) {
    if (message.starts_with(inside + ":")) return {error.code(), outside + message.substr(inside.size())};
  }
  return error;
}

std::string output_header(const Output& output) {
  if (!output.npy) return "";
  const Shape& shape = output.tensor->shape();
  return io::npy_header(output.tensor->dtype(), std::span(shape).first(output.sizes));
}

/// Ensures that no output replaces an input file, even through a link.
void keep_inputs(const RunOptions& options, io::FileTransaction& files) {
  for (const fs::path& file : {options.q, options.k, options.v, options.dout, options.o, options.lse}) {
    if (!file.empty()) files.keep_input(file);
  }
  for (const fs::path& file : options.score_tensors) {
    if (!file.empty()) files.keep_input(file);
  }
  for (const auto& [name, file] : options.captures) files.keep_input(file);
  if (options.data.empty()) return;
  for (const char* name : {"Q.bin", "K.bin", "V.bin", "dO.bin"}) files.keep_input(options.data / name);
  for (const std::string& name : io::tensor_files()) files.keep_from_links(options.data / name);
}

/// Inputs, open output files and the chosen backend. prepare() makes them before the computation.
struct Prepared {
  Job job;
  Choice choice;
  std::string note;
  io::FileTransaction files;
  std::vector<io::FileTransaction::Handle> handles;
  std::optional<ResultFiles> result_files;
};

/// Loads the inputs, checks the arguments, and then opens the output files. These are the steps that can fail. `writes`
/// is false for the ranks of a ring that write no files.
void prepare(const RunOptions& options, bool writes, Prepared& prepared) {
  Job& job = prepared.job;
  load(options, job);
  const auto device = options.ring ? std::optional(DeviceType::kCPU) : std::nullopt;
  try {
    prepared.choice = choose_compute(options.compute, device, job.work, options.mode);
  } catch (const Error& error) {
    throw renamed(error, job.names);
  }
  if (!writes) return;
  prepared.note = nonfinite_note(job.work);
  if (options.mode == Mode::kBackward) check_earlier_results(job.work, job.o_name);
  if (options.data.empty()) prepared.files.make_folders(options.output_dir);
  keep_inputs(options, prepared.files);
  for (const Output& output : job.outputs) {
    const auto bytes = static_cast<std::int64_t>(output_header(output).size() + output.tensor->bytes().size());
    prepared.handles.push_back(prepared.files.create(output.file, bytes));
  }
  prepared.result_files.emplace(prepared.files, options.json, options.csv);
}

std::vector<Result> compute(const RunOptions& options, const Prepared& prepared, RingSession* ring) {
  const Workload& w = prepared.job.work;
  const Choice& choice = prepared.choice;
  const std::unique_ptr<Executor> executor =
      ring == nullptr ? make_executor(w, choice, false) : make_ring_executor(w, choice, *options.ring, *ring);
  std::vector<Result> results;
  for (const Mode pass : {Mode::kForward, Mode::kBackward}) {
    if (pass == Mode::kForward ? !has_forward(options.mode) : !has_backward(options.mode)) continue;
    Timing timing = time_in_turns({executor->sampler(pass)}, options.repeat, kNoLimit).front();
    timing.sm_mhz = executor->clock_mhz();
    results.push_back(make_result(w, pass, choice, timing));
    if (ring == nullptr) continue;
    results.back().ranks = ring->context().size();
    results.back().sharding = sharding_name(options.ring->sharding);
  }
  executor->fetch();
  return results;
}

/// Returns a text with the names of the backend and the device. Examples: "fa2 (chosen by auto), NVIDIA H200" and
/// "wgmma_specialized forward, simt backward (chosen by auto), NVIDIA H200".
std::string backend_text(const RunOptions& options, const Choice& choice, const Result& result) {
  const bool differ = !choice.forward.empty() && !choice.backward.empty() && choice.forward != choice.backward;
  std::string text = differ ? fmt::format("{} forward, {} backward", choice.forward, choice.backward) : result.compute;
  if (options.compute == "auto") {
    text += fmt::format(" (chosen by auto{})", choice.note.empty() ? "" : "; no GPU: " + choice.note);
  }
  if (choice.device.type == DeviceType::kCPU) {
    text += fmt::format(", {} thread{}", result.threads, result.threads == 1 ? "" : "s");
  }
  return text + ", " + device_name(choice.device);
}

void print_times(const RunOptions& options, const Choice& choice, const std::vector<Result>& results) {
  const Result& first = results.front();
  fmt::print("backend  {}\n", backend_text(options, choice, first));
  if (first.ranks > 0) fmt::print("ring     {} rank{}, {}\n", first.ranks, first.ranks == 1 ? "" : "s", first.sharding);
  fmt::print("input    {}\n", options.data.empty() ? options.q.string() + " ..." : options.data.string());
  fmt::print("problem  {}\n\n", problem_text(first));
  fmt::print("{:<10} {:>12} {:>15} {:>12}  {}\n", "pass", "time", "speed", "traffic", "timed");
  for (const Result& r : results) {
    fmt::print("{:<10} {:>12} {:>15} {:>7.2f} GB/s  {}\n", mode_name(r.mode), time_text(r.timing.median_ms),
               speed_text(r.tflops), r.gbps,
               r.timing.runs == 1 ? "1 run" : fmt::format("median of {} runs", r.timing.runs));
  }
}

void print_outputs(const std::vector<Output>& outputs) {
  std::string names;
  for (const Output& output : outputs) names += (names.empty() ? "" : ", ") + output.file.filename().string();
  fmt::print("\nwrote {} to {}\n", names, outputs.front().file.parent_path().string());
}

/// Compares the results with the reference. Adds the errors to `results` and prints them. Returns true if all errors
/// are within their tolerances.
bool check_results(const RunOptions& options, const Workload& w, std::vector<Result>& results) {
  const CheckReport report = check(w, options.mode);
  bool passed = true;
  for (Result& result : results) {
    result.tensors = result.mode == Mode::kForward ? report.forward : report.backward;
    for (const TensorError& tensor : result.tensors) passed = passed && tensor.passed;
  }
  fmt::print("\ncheck against the float64 reference\n{}", check_table(results));
  return passed;
}

/// Prints and writes the results. Called in a single process, or on the first rank of a ring.
int finish(const RunOptions& options, Prepared& prepared, std::vector<Result>& results) {
  const Job& job = prepared.job;
  print_times(options, prepared.choice, results);
  if (!prepared.note.empty()) fmt::print("\nnote: {}\n", prepared.note);
  const bool passed = !options.check || check_results(options, job.work, results);
  for (std::size_t i = 0; i < prepared.handles.size(); ++i) {
    prepared.files.append(prepared.handles[i], output_header(job.outputs[i]));
    for (auto rest = job.outputs[i].tensor->bytes(); !rest.empty();) {
      // Size in bytes of the pieces that are written. The program checks for an interrupt between two pieces.
      constexpr std::size_t kPiece = 1 << 26;
      stop_if_interrupted();
      const auto piece = rest.first(std::min(rest.size(), kPiece));
      prepared.files.append(prepared.handles[i], piece);
      rest = rest.subspan(piece.size());
    }
  }
  prepared.result_files->write(results);
  prepared.files.commit();
  print_outputs(job.outputs);
  const std::string pass = prepared.note.empty() ? "PASS" : fmt::format("PASS (note: {})", prepared.note);
  if (options.check) fmt::print("{}\n", passed ? pass : "FAIL: see the lines marked FAIL above");
  return passed ? kExitDone : kExitCheckFailed;
}

/// Sets the number of threads of a rank. By default the ranks on a machine share its cores equally.
void set_threads_of_rank(const RunOptions& options, int ranks_here) {
  set_threads(options.threads > 0 ? options.threads : std::max(1, cpu_threads() / ranks_here));
}

/// Runs the entire command on one rank of a ring, or in a single process if `ring` is null.
int run_rank(const RunOptions& options, RingSession* ring) {
  const bool is_first = ring == nullptr || ring->is_first();
  Prepared prepared;
  if (!done_on_every_rank(ring, [&] { prepare(options, is_first, prepared); })) return kExitDone;
  std::vector<Result> results;
  const bool is_done = done_on_every_rank(ring, [&] {
    try {
      results = compute(options, prepared, ring);
    } catch (const Error& error) {
      throw renamed(error, prepared.job.names);
    }
  });
  if (!is_done) return kExitDone;
  return is_first ? finish(options, prepared, results) : kExitDone;
}

}  // namespace

int run(const RunOptions& options) {
  if (!options.ring) {
    set_threads(options.threads);
    return run_rank(options, nullptr);
  }
  if (options.ranks == 0) {
    const std::unique_ptr<RingSession> ring = join_ring();
    set_threads_of_rank(options, ring->local_size());
    return run_rank(options, ring.get());
  }
  if (is_of_mpirun()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--ranks: given under mpirun, whose -n sets the number; allowed without mpirun");
  }
  const int ranks = static_cast<int>(options.ranks);
  set_threads_of_rank(options, ranks);
  return on_threads(ranks, [&](RingSession& ring) { return run_rank(options, &ring); });
}

}  // namespace attend::cli
