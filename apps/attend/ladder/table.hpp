// The results of `attend ladder` as JSON. bench/ladder_table.py makes the table of docs/ladder.md from it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/report.hpp"

namespace attend::cli {

/// The matrix product with which a group of rungs is compared. The rungs of a group have the same dtype and pass.
struct Yardstick {
  DType dtype = DType::kF32;
  Mode beside = Mode::kForward;  ///< pass of the rungs with which the product was timed in alternation
  Timing timing;
  double tflops = 0;  ///< 0 if not measured
};

/// One rung and its measured times.
struct LadderRow {
  int number = 0;
  Result result;
  double share = 0;  ///< TFLOP/s of the rung divided by TFLOP/s of the matrix product; 0 if not measured
  /// Speed of the rung divided by the speed of the previous rung of its group. 0 for the first rung of a group.
  double speed_up = 0;
};

struct LadderReport {
  std::string device_name, kernel_digest, date;
  std::vector<Yardstick> yardsticks;
  std::vector<LadderRow> rows;
};

/// Returns an object with the keys device_name, kernel_digest, sources (core::source_digests()), date, matrix_products
/// and rungs. Each element of matrix_products has the keys dtype, beside, size, ms, tflops and sm_mhz. Each element of
/// rungs has the keys of to_json(Result), and also rung, share_of_matrix_product and speed_up. The last two values are
/// null if not measured.
[[nodiscard]] nlohmann::ordered_json to_json(const LadderReport& report);

}  // namespace attend::cli
