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
  double seen = 1;  ///< number of pairs that operations() counts, divided by the number of all pairs of rows and keys
  Timing timing;
  double tflops = 0;                 ///< 10^12 operations per second; operations() returns the number of operations
  double gbps = 0;                   ///< 10^9 bytes per second; traffic() returns the number of bytes
  std::vector<TensorError> tensors;  ///< errors of each tensor; empty if not checked
};

[[nodiscard]] Result make_result(const Workload& w, Mode mode, const Choice& choice, const Timing& timing);

/// Returns a list with one object for each result. Every object has these keys: compute, mode, device, dtype, B, H,
/// Hkv, Sq, Sk, D, Dv, causal, window_left, window_right, the names of core::kScoreNumbers, threads, runs, ms (median),
/// ms_min, ms_p25, ms_p75, tflops, gbps, sm_mhz and device_name. sm_mhz is the clock of the GPU, or 0 on a CPU. A
/// result of a ring also has ranks and sharding. A result of --grid masks also has function and seen (Result::seen). A
/// checked result also has max_abs_err, mean_abs_err, mse, max_rel_err, passed and tensors. The four errors are the
/// largest of all tensors, and passed is true if all tensors passed. The value of tensors is a list with one object for
/// each tensor. This object has a name, the four errors, passed and tolerance. It also has mse_tolerance if the MSE is
/// checked. An infinite error is written as null, because JSON has no infinity.
[[nodiscard]] nlohmann::ordered_json to_json(const std::vector<Result>& results);

/// Returns the data of to_json() as comma-separated values, without `tensors`. The first line contains the names of the
/// columns, and each other line contains one result.
[[nodiscard]] std::string to_csv(const std::vector<Result>& results);

/// Formats a time. Examples: "3.21 ms", "45.0 us", "1.23 s".
[[nodiscard]] std::string time_text(double ms);

/// Formats a speed. Examples: "35.1 GFLOP/s", "1.20 TFLOP/s".
[[nodiscard]] std::string speed_text(double tflops);

/// Describes a problem. Example: "batch 2, heads 8 (2 key heads), ..., f32, causal".
[[nodiscard]] std::string problem_text(const Result& result);

/// Returns the table of errors. Its last column is PASS or FAIL.
[[nodiscard]] std::string check_table(const std::vector<Result>& results);

/// The files of --json and --csv. The constructor opens the files before the computation, so that a wrong path is
/// reported immediately. write() writes them after the computation.
class ResultFiles {
 public:
  ResultFiles(io::FileTransaction& transaction, const std::filesystem::path& json, const std::filesystem::path& csv);
  void write(const std::vector<Result>& results);

 private:
  io::FileTransaction& transaction_;
  std::optional<io::FileTransaction::Handle> json_, csv_;
};

/// The files of --json and --csv for a long measurement. save() replaces both files with new files that contain the
/// results so far. These results are kept if the program ends early. A pipe, /dev/stdout and similar outputs cannot be
/// replaced. finish() writes all results to such an output.
class GrowingResultFiles {
 public:
  /// @throws Error if a file cannot be written. The file is then unchanged.
  GrowingResultFiles(std::filesystem::path json, std::filesystem::path csv);
  void save(const std::vector<Result>& results);
  void finish(const std::vector<Result>& results);

  /// Returns the text about the results in the message about an interrupt, for example "the results so far are in
  /// b.json".
  [[nodiscard]] std::string text() const;

 private:
  std::filesystem::path json_, csv_;
};

}  // namespace attend::cli
