// The results of `attend ladder` as JSON. bench/ladder_table.py makes the table of docs/ladder.md from it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/report.hpp"

namespace attend::cli {

/// The matrix product with which the rungs of a group are compared.
struct Yardstick {
  DType dtype = DType::kF32;
  Mode beside = Mode::kForward;  ///< the pass with which the product was timed in alternation
  Timing timing;
  double tflops = 0;  ///< 0 if not measured
};

/// One rung and its measured times.
struct LadderRow {
  int number = 0;
  Result result;
  double share = 0;  ///< its TFLOP/s divided by those of the matrix product; 0 if not measured
  /// Its speed divided by that of the previous rung of its group. It is 0 for the first rung.
  double speed_up = 0;
};

struct LadderReport {
  std::string device_name, kernel_digest, date;
  std::vector<Yardstick> yardsticks;
  std::vector<LadderRow> rows;
};

/// Returns an object with the keys device_name, kernel_digest, sources (core::source_digests()), date, matrix_products
/// and rungs. A matrix product has the keys dtype, beside, size, ms, tflops and sm_mhz. A rung has the keys of
/// to_json(Result) and rung, share_of_matrix_product and speed_up. The last two are null if not measured.
[[nodiscard]] nlohmann::ordered_json to_json(const LadderReport& report);

}  // namespace attend::cli
