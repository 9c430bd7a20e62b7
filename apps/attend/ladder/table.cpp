#include "ladder/table.hpp"

#include <nlohmann/json.hpp>

#include "core/source_digests.hpp"
#include "ladder/matrix_product.hpp"

namespace attend::cli {
namespace {

using Json = nlohmann::ordered_json;

Json number_or_null(double value) {
  return value > 0 ? Json(value) : Json(nullptr);
}

}  // namespace

Json to_json(const LadderReport& report) {
  Json object = {{"device_name", report.device_name}, {"kernel_digest", report.kernel_digest}};
  for (const core::SourceDigest& source : core::source_digests()) object["sources"][source.part] = source.digest;
  object["date"] = report.date;
  object["matrix_products"] = Json::array();
  for (const Yardstick& y : report.yardsticks) {
    if (y.tflops <= 0) continue;
    object["matrix_products"].push_back({{"dtype", dtype_name(y.dtype)},
                                         {"beside", mode_name(y.beside)},
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

}  // namespace attend::cli
