// Results as a person, a JSON reader and a spreadsheet want them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "check/check.hpp"
#include "io/file.hpp"
#include "workload/executor.hpp"
#include "workload/timing.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// One timed computation: forward or backward of one problem with one backend.
struct Result {
  std::string compute;
  std::string device = "cpu";  // cpu or cuda
  std::string device_name;
  Mode mode = Mode::kForward;  // kForward or kBackward
  DType dtype = DType::kF32;
  std::int64_t batch = 0, heads = 0, heads_kv = 0, seqlen_q = 0, seqlen_k = 0, head_dim = 0, head_dim_v = 0;
  AttentionOptions options;
  int threads = 0;
  int ranks = 0;         ///< of a ring; 0: no ring
  std::string sharding;  ///< likewise, empty
  std::string function;  ///< a mask or score of the caller's own (GridEntry); empty: none
  double seen = 1;       ///< part of the pairs of rows and keys that count
  Timing timing;
  double tflops = 0;                 ///< 10^12 operations a second, see operations()
  double gbps = 0;                   ///< 10^9 bytes a second, see traffic()
  std::vector<TensorError> tensors;  ///< empty: not checked
};

[[nodiscard]] Result make_result(const Workload& w, Mode mode, const Choice& choice, const Timing& timing);

/// A list with one object for each result. Always: compute, mode, device, dtype, B, H, Hkv, Sq, Sk, D, Dv, causal,
/// window_left, window_right, the numbers of core::kScoreNumbers by name, threads, runs, ms (median), ms_min, ms_p25,
/// ms_p75, tflops, gbps, sm_mhz (the GPU's clock, 0 on a CPU), device_name. Of a ring: ranks, sharding. Of --grid
/// masks: function, seen (part of the pairs that count in tflops). If checked:
/// max_abs_err, mean_abs_err, mse, max_rel_err (the largest of any tensor), passed (all of them) and `tensors`, a list
/// of objects with name, the same five keys, tolerance and, where it is judged, mse_tolerance. An infinite error is
/// null, as JSON has no infinity.
[[nodiscard]] nlohmann::ordered_json to_json(const std::vector<Result>& results);

/// The same without `tensors`: a line of names, and a line for each result.
[[nodiscard]] std::string to_csv(const std::vector<Result>& results);

/// "3.21 ms", "45.0 us", "1.23 s"
[[nodiscard]] std::string time_text(double ms);

/// "35.1 GFLOP/s", "1.20 TFLOP/s"
[[nodiscard]] std::string speed_text(double tflops);

/// "batch 2, heads 8 (2 key heads), ..., f32, causal"
[[nodiscard]] std::string problem_text(const Result& result);

/// The table of errors, with a column that says PASS or FAIL.
[[nodiscard]] std::string check_table(const std::vector<Result>& results);

/// --json and --csv: files that are opened before the work, so that a bad path costs no time, and filled after it.
class ResultFiles {
 public:
  ResultFiles(io::FileTransaction& transaction, const std::filesystem::path& json, const std::filesystem::path& csv);
  void write(const std::vector<Result>& results);

 private:
  io::FileTransaction& transaction_;
  std::optional<io::FileTransaction::Handle> json_, csv_;
};

/// --json and --csv of a long measurement: save() replaces both files by what there is so far, so that no end of the
/// program costs what it had measured. Places that are written to and not replaced (a pipe, /dev/stdout) get the
/// results once, from finish().
class GrowingResultFiles {
 public:
  /// @throws Error where a file cannot be written; it has not changed then.
  GrowingResultFiles(std::filesystem::path json, std::filesystem::path csv);
  void save(const std::vector<Result>& results);
  void finish(const std::vector<Result>& results);

  /// "what was measured is in b.json", or that it is nowhere.
  [[nodiscard]] std::string text() const;

 private:
  std::filesystem::path json_, csv_;
};

}  // namespace attend::cli
