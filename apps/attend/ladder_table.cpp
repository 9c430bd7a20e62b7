#include "ladder_table.hpp"

#include <fmt/format.h>

#include <string_view>

#include "attend/error.hpp"
#include "matrix_product.hpp"

namespace attend::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kBegin = "<!-- begin ladder -->";
constexpr std::string_view kEnd = "<!-- end ladder -->";

Json number_or_null(double value) {
  return value > 0 ? Json(value) : Json(nullptr);
}

std::string shape_text(const Result& r) {
  return fmt::format("({}, {}, {}, {})", r.batch, r.heads, r.seqlen_q, r.head_dim);
}

}  // namespace

Json to_json(const LadderReport& report) {
  Json object = {{"device_name", report.device_name}, {"kernel_digest", report.kernel_digest}};
  object["matrix_products"] = Json::array();
  for (const Yardstick& y : report.yardsticks) {
    if (y.tflops <= 0) continue;
    object["matrix_products"].push_back({{"dtype", dtype_name(y.dtype)},
                                         {"size", MatrixProduct::kSize},
                                         {"ms", y.timing.median_ms},
                                         {"tflops", y.tflops},
                                         {"sm_mhz", y.timing.sm_mhz}});
  }
  for (const LadderRow& row : report.rows) {
    Json entry = {{"rung", row.number}};
    entry.update(to_json(std::vector<Result>{row.result}).front());
    entry["share_of_matrix_product"] = number_or_null(row.share);
    entry["speed_up"] = number_or_null(row.speed_up);
    object["rungs"].push_back(std::move(entry));
  }
  return object;
}

std::string markdown(const LadderReport& report) {
  std::string text = fmt::format("Measured on one {}, in one run, rungs in turns.\n", report.device_name);
  for (const Yardstick& y : report.yardsticks) {
    if (y.tflops <= 0) continue;
    text += fmt::format("Matrix product by cuBLAS in {0}, {1} x {1} x {1}: {2:.1f} TFLOP/s.\n", dtype_name(y.dtype),
                        MatrixProduct::kSize, y.tflops);
  }
  text +=
      "\n| rung | pass | type | (B, H, S, D) | time | TFLOP/s | GB/s | of the matrix product | on the rung before |\n";
  text += "|---|---|---|---|---:|---:|---:|---:|---:|\n";
  for (const LadderRow& row : report.rows) {
    const Result& r = row.result;
    text += fmt::format("| {:02} `{}` | {} | {} | {} | {} | {:.2f} | {:.1f} | {} | {} |\n", row.number, r.compute,
                        mode_name(r.mode), dtype_name(r.dtype), shape_text(r), time_text(r.timing.median_ms), r.tflops,
                        r.gbps, row.share > 0 ? fmt::format("{:.1f} %", 100 * row.share) : "",
                        row.speed_up > 0 ? fmt::format("{:.2f}x", row.speed_up) : "");
  }
  return text;
}

std::string with_table(const std::string& text, const std::string& table, const std::string& name) {
  const std::size_t begin = text.find(kBegin);
  const std::size_t end = text.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: no table, allowed a file with the lines {} and {}", name, kBegin, kEnd));
  }
  return text.substr(0, begin) + std::string(kBegin) + "\n" + table + text.substr(end);
}

}  // namespace attend::cli
