// Prints results as text, as JSON and as comma-separated values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "check/check.hpp"
#include "io/file.hpp"
#include "workload/executor.hpp"
#include "workload/timing.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// One timed computation: the forward or backward pass of one problem with one backend.
struct Result {
  std::string compute;
  std::string device = "cpu";  // "cpu" or "cuda"
  std::string device_name;
  Mode mode = Mode::kForward;  // kForward or kBackward
  DType dtype = DType::kF32;
  std::int64_t batch = 0, heads = 0, heads_kv = 0, seqlen_q = 0, seqlen_k = 0, head_dim = 0, head_dim_v = 0;
  AttentionOptions options;
  int threads = 0;
  int ranks = 0;         ///< number of ranks; 0 if there is no ring
  std::string sharding;  ///< sharding of the ring; empty if there is no ring
  /// Name of a custom mask or score (GridEntry). Empty if there is none.
  std::string function;
  double seen = 1;  ///< fraction of the pairs of rows and keys that operations() counts
  Timing timing;
  double tflops = 0;                 ///< 10^12 operations per second; operations() defines their number
  double gbps = 0;                   ///< 10^9 bytes per second; traffic() defines their number
  std::vector<TensorError> tensors;  ///< errors of each tensor; empty if not checked
};

[[nodiscard]] Result make_result(const Workload& w, Mode mode, const Choice& choice, const Timing& timing);

/// Returns a list with one object for each result. An object always has these keys: compute, mode, device, dtype, B, H,
/// Hkv, Sq, Sk, D, Dv, causal, window_left, window_right, the names of core::kScoreNumbers, threads, runs, ms (median),
/// ms_min, ms_p25, ms_p75, tflops, gbps, sm_mhz (clock of the GPU, or 0 on a CPU) and device_name. Results of a ring
/// also have ranks and sharding. Results of --grid masks also have function and seen, the fraction of the pairs that
/// tflops counts. Checked results also have max_abs_err, mean_abs_err, mse and max_rel_err (the largest of any tensor),
/// passed (true if all tensors passed) and `tensors`. This is a list of objects with name, the same five keys,
/// tolerance and, if the MSE is judged, mse_tolerance. An infinite error is null, because JSON has no infinity.
[[nodiscard]] nlohmann::ordered_json to_json(const std::vector<Result>& results);

/// Returns the data of to_json() without `tensors`: a line of names, followed by one line for each result.
[[nodiscard]] std::string to_csv(const std::vector<Result>& results);

/// Formats a time. Examples: "3.21 ms", "45.0 us", "1.23 s".
[[nodiscard]] std::string time_text(double ms);

/// Formats a speed. Examples: "35.1 GFLOP/s", "1.20 TFLOP/s".
[[nodiscard]] std::string speed_text(double tflops);

/// Describes a problem. Example: "batch 2, heads 8 (2 key heads), ..., f32, causal".
[[nodiscard]] std::string problem_text(const Result& result);

/// Returns the table of errors. Its last column is PASS or FAIL.
[[nodiscard]] std::string check_table(const std::vector<Result>& results);

/// The files of --json and --csv. They are opened before the computation, so that a wrong path is reported immediately.
/// They are written after it.
class ResultFiles {
 public:
  ResultFiles(io::FileTransaction& transaction, const std::filesystem::path& json, const std::filesystem::path& csv);
  void write(const std::vector<Result>& results);

 private:
  io::FileTransaction& transaction_;
  std::optional<io::FileTransaction::Handle> json_, csv_;
};

/// The files of --json and --csv for a long measurement. save() replaces both with the results so far, so that these
/// are kept if the program ends early. An output that cannot be replaced, such as a pipe or /dev/stdout, receives all
/// results once, from finish().
class GrowingResultFiles {
 public:
  /// @throws Error if a file cannot be written. The file is then unchanged.
  GrowingResultFiles(std::filesystem::path json, std::filesystem::path csv);
  void save(const std::vector<Result>& results);
  void finish(const std::vector<Result>& results);

  /// Returns the text for an interrupt: "the results so far are in b.json", or that nothing was written.
  [[nodiscard]] std::string text() const;

 private:
  std::filesystem::path json_, csv_;
};

}  // namespace attend::cli
