// What a climb of the ladder measured, as JSON; bench/ladder_table.py makes the table of docs/ladder.md of it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/report.hpp"

namespace attend::cli {

/// The matrix product that one group of rungs is held against.
struct Yardstick {
  DType dtype = DType::kF32;
  Mode beside = Mode::kForward;  ///< the pass that it was timed in turns with
  Timing timing;
  double tflops = 0;  ///< 0: not measured
};

/// One timed rung.
struct LadderRow {
  int number = 0;
  Result result;
  double share = 0;     ///< of the yardstick's TFLOP/s; 0: not measured
  double speed_up = 0;  ///< on the rung before it in its group; 0: there is none
};

struct LadderReport {
  std::string device_name, kernel_digest, date;
  std::vector<Yardstick> yardsticks;
  std::vector<LadderRow> rows;
};

/// An object with device_name, kernel_digest, sources (core::source_digests()), date, matrix_products (dtype, beside,
/// size, ms, tflops, sm_mhz) and rungs: the keys of to_json(Result) with rung, share_of_matrix_product and speed_up;
/// null where not measured.
[[nodiscard]] nlohmann::ordered_json to_json(const LadderReport& report);

}  // namespace attend::cli
