// The results of `attend ladder` as JSON. bench/ladder_table.py makes the table of docs/ladder.md from it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/report.hpp"

namespace attend::cli {

/// The matrix product with which a group of rungs is compared.
struct Yardstick {
  DType dtype = DType::kF32;
  Mode beside = Mode::kForward;  ///< the pass that it was timed in alternation with
  Timing timing;
  double tflops = 0;  ///< 0: not measured
};

/// One rung with its times.
struct LadderRow {
  int number = 0;
  Result result;
  double share = 0;     ///< of the yardstick's TFLOP/s; 0: not measured
  double speed_up = 0;  ///< over the previous rung of its group; 0: it is the first
};

struct LadderReport {
  std::string device_name, kernel_digest, date;
  std::vector<Yardstick> yardsticks;
  std::vector<LadderRow> rows;
};

/// Returns an object with device_name, kernel_digest, sources (core::source_digests()), date, matrix_products (dtype,
/// beside, size, ms, tflops, sm_mhz) and rungs. A rung has the keys of to_json(Result) and rung,
/// share_of_matrix_product and speed_up, which are null if not measured.
[[nodiscard]] nlohmann::ordered_json to_json(const LadderReport& report);

}  // namespace attend::cli
