// What a climb of the ladder measured, as JSON and as the table of docs/ladder.md.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/file.hpp"
#include "report.hpp"

namespace attend::cli {

/// The matrix product that one group of rungs is held against.
struct Yardstick {
  DType dtype = DType::kF32;
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
  std::string device_name, kernel_digest;
  std::vector<Yardstick> yardsticks;
  std::vector<LadderRow> rows;
};

/// An object with device_name, kernel_digest, matrix_products (dtype, size, ms, tflops, sm_mhz) and rungs: the keys of
/// to_json(Result) with rung, share_of_matrix_product and speed_up; null where not measured.
[[nodiscard]] nlohmann::ordered_json to_json(const LadderReport& report);

/// The rows as a Markdown table.
[[nodiscard]] std::string markdown(const LadderReport& report);

/// `text` with everything between the markers replaced by `table`. @throws Error (kIo) naming `name` where there are no
/// markers.
[[nodiscard]] std::string with_table(const std::string& text, const std::string& table, const std::string& name);

}  // namespace attend::cli
