#include "report/report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace attend::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Returns the largest errors of all tensors of a pass. The errors of logsumexp affect only `passed`. They are not
/// compared with the errors of O, because logsumexp has a different magnitude.
TensorError worst_of(const std::vector<TensorError>& tensors) {
  TensorError worst;
  worst.passed = true;
  for (const TensorError& t : tensors) {
    worst.passed = worst.passed && t.passed;
    if (t.name == "logsumexp") continue;
    worst.max_abs = std::max(worst.max_abs, t.max_abs);
    worst.mean_abs = std::max(worst.mean_abs, t.mean_abs);
    worst.mse = std::max(worst.mse, t.mse);
    worst.max_rel = std::max(worst.max_rel, t.max_rel);
  }
  return worst;
}

void put_errors(Json& object, const TensorError& error) {
  object["max_abs_err"] = error.max_abs;
  object["mean_abs_err"] = error.mean_abs;
  object["mse"] = error.mse;
  object["max_rel_err"] = error.max_rel;
  object["passed"] = error.passed;
}

Json to_json(const Result& r) {
  Json object = {{"compute", r.compute},
                 {"mode", mode_name(r.mode)},
                 {"device", r.device},
                 {"dtype", dtype_name(r.dtype)},
                 {"B", r.batch},
                 {"H", r.heads},
                 {"Hkv", r.heads_kv},
                 {"Sq", r.seqlen_q},
                 {"Sk", r.seqlen_k},
                 {"D", r.head_dim},
                 {"Dv", r.head_dim_v},
                 {"causal", r.options.causal},
                 {"window_left", r.options.window_left},
                 {"window_right", r.options.window_right}};
  for (std::size_t i = 0; i < core::kScoreNumbers.size(); ++i) {
    object[core::kScoreNumbers[i].name] = r.options.score_numbers[i];
  }
  object.update({{"threads", r.threads},
                 {"runs", r.timing.runs},
                 {"ms", r.timing.median_ms},
                 {"ms_min", r.timing.fastest_ms},
                 {"ms_p25", r.timing.quartile_ms[0]},
                 {"ms_p75", r.timing.quartile_ms[1]},
                 {"tflops", r.tflops},
                 {"gbps", r.gbps},
                 {"sm_mhz", r.timing.sm_mhz},
                 {"device_name", r.device_name}});
  if (r.ranks > 0) {
    object["ranks"] = r.ranks;
    object["sharding"] = r.sharding;
  }
  if (!r.function.empty()) {
    object["function"] = r.function;
    object["seen"] = r.seen;
  }
  if (r.tensors.empty()) return object;
  put_errors(object, worst_of(r.tensors));
  for (const TensorError& tensor : r.tensors) {
    Json entry = {{"name", tensor.name}};
    put_errors(entry, tensor);
    entry["tolerance"] = tensor.tolerance;
    if (std::isfinite(tensor.mse_tolerance)) entry["mse_tolerance"] = tensor.mse_tolerance;
    object["tensors"].push_back(std::move(entry));
  }
  return object;
}

std::string csv_field(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.is_null() ? "inf" : value.dump();
}

}  // namespace

Result make_result(const Workload& w, Mode mode, const Choice& choice, const Timing& timing) {
  const double seconds = timing.median_ms / 1000;
  Result r;
  r.compute = choice.compute(mode);
  r.device = choice.device.type == DeviceType::kCPU ? "cpu" : "cuda";
  r.device_name = device_name(choice.device);
  r.mode = mode;
  r.dtype = w.q.dtype();
  r.batch = w.q.shape()[0];
  r.heads = w.q.shape()[1];
  r.heads_kv = w.k.shape()[1];
  r.seqlen_q = w.q.shape()[2];
  r.seqlen_k = w.k.shape()[2];
  r.head_dim = w.q.shape()[3];
  r.head_dim_v = w.v.shape()[3];
  r.options = w.options;
  r.threads = r.compute == "cpu" ? cpu_threads() : 1;
  r.timing = timing;
  r.seen = share_seen(w);
  r.tflops = seconds > 0 ? operations(w, mode, r.seen) / seconds / 1e12 : 0;
  r.gbps = seconds > 0 ? traffic(w, mode) / seconds / 1e9 : 0;
  return r;
}

Json to_json(const std::vector<Result>& results) {
  Json list = Json::array();
  for (const Result& result : results) list.push_back(to_json(result));
  return list;
}

std::string to_csv(const std::vector<Result>& results) {
  std::string text;
  for (std::size_t i = 0; i < results.size(); ++i) {
    Json object = to_json(results[i]);
    object.erase("tensors");
    std::string names;
    std::string values;
    for (const auto& [key, value] : object.items()) {
      names += (names.empty() ? "" : ",") + key;
      values += (values.empty() ? "" : ",") + csv_field(value);
    }
    text += (i == 0 ? names + "\n" : "") + values + "\n";
  }
  return text;
}

std::string time_text(double ms) {
  if (ms < 1) return fmt::format("{:.1f} us", ms * 1000);
  return ms < 1000 ? fmt::format("{:.2f} ms", ms) : fmt::format("{:.2f} s", ms / 1000);
}

std::string speed_text(double tflops) {
  return tflops < 1 ? fmt::format("{:.1f} GFLOP/s", tflops * 1000) : fmt::format("{:.2f} TFLOP/s", tflops);
}

std::string problem_text(const Result& r) {
  std::string text = fmt::format("batch {}, heads {}", r.batch, r.heads);
  if (r.heads_kv != r.heads) text += fmt::format(" ({} of keys)", r.heads_kv);
  text += fmt::format(", seqlen {}", r.seqlen_q);
  if (r.seqlen_k != r.seqlen_q) text += fmt::format(" ({} keys)", r.seqlen_k);
  text += fmt::format(", head_dim {}", r.head_dim);
  if (r.head_dim_v != r.head_dim) text += fmt::format(" ({} of V)", r.head_dim_v);
  text += fmt::format(", {}", dtype_name(r.dtype));
  if (r.options.causal) text += ", causal";
  if (r.options.window_left >= 0 || r.options.window_right >= 0) {
    text += fmt::format(", window {} {}", r.options.window_left, r.options.window_right);
  }
  for (std::size_t i = 0; i < core::kScoreNumbers.size(); ++i) {
    const double number = r.options.score_numbers[i];
    if (number != 0) text += fmt::format(", {} {}", core::kScoreNumbers[i].name, number);
  }
  return text;
}

namespace {

std::string verdict(const TensorError& t) {
  return t.passed ? "PASS" : t.fault.empty() ? "FAIL" : "FAIL: " + t.fault;
}

}  // namespace

std::string check_table(const std::vector<Result>& results) {
  std::string text = fmt::format("{:<10} {:>12} {:>12} {:>12} {:>12} {:>12}  {}\n", "tensor", "max abs err", "allowed",
                                 "mean abs err", "MSE", "max rel err", "result");
  for (const Result& result : results) {
    for (const TensorError& t : result.tensors) {
      text += fmt::format("{:<10} {:>12.2e} {:>12.2e} {:>12.2e} {:>12.2e} {:>12.2e}  {}\n", t.name, t.max_abs,
                          t.tolerance, t.mean_abs, t.mse, t.max_rel, verdict(t));
    }
  }
  return text + "(max rel err: the largest error divided by the largest magnitude of the reference)\n";
}

ResultFiles::ResultFiles(io::FileTransaction& transaction, const std::filesystem::path& json,
                         const std::filesystem::path& csv)
    : transaction_(transaction) {
  if (!json.empty()) json_ = transaction_.create(json);
  if (!csv.empty()) csv_ = transaction_.create(csv);
}

void ResultFiles::write(const std::vector<Result>& results) {
  if (json_) transaction_.append(*json_, to_json(results).dump(2) + "\n");
  if (csv_) transaction_.append(*csv_, to_csv(results));
}

namespace {

void write_files(const std::vector<Result>& results, const std::filesystem::path& json,
                 const std::filesystem::path& csv) {
  io::FileTransaction files;
  ResultFiles(files, json, csv).write(results);
  files.commit();
}

/// Returns `path` if the file can be replaced at any time. Otherwise returns an empty path.
std::filesystem::path replaceable(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) ? "" : path;
}

}  // namespace

GrowingResultFiles::GrowingResultFiles(std::filesystem::path json, std::filesystem::path csv)
    : json_(std::move(json)), csv_(std::move(csv)) {
  io::FileTransaction files;  // checks that the files can be written, and is never committed
  const ResultFiles trial(files, json_, csv_);
}

void GrowingResultFiles::save(const std::vector<Result>& results) {
  write_files(results, replaceable(json_), replaceable(csv_));
}

void GrowingResultFiles::finish(const std::vector<Result>& results) {
  write_files(results, json_, csv_);
}

std::string GrowingResultFiles::text() const {
  std::string names = replaceable(json_).string();
  if (const auto csv = replaceable(csv_); !csv.empty()) names += (names.empty() ? "" : ", ") + csv.string();
  return names.empty() ? "nothing was written" : "the results so far are in " + names;
}

}  // namespace attend::cli
