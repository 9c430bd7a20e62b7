// attend ring: runs a random problem on the ranks of a ring. For each step, reports the computation time, the transfer
// time, and the exposed transfer time, during which no computation runs.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "commands/commands.hpp"
#include "cuda/driver/device.hpp"
#include "io/file.hpp"
#include "ranks/party.hpp"
#include "ranks/timeline.hpp"
#include "report/report.hpp"
#include "workload/executor.hpp"

namespace attend::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kColumns = 72;  // width of the drawing in characters

RingProblem problem_of(const RingOptions& options, int num_ranks, DeviceType device, Mode pass) {
  const io::FolderSpec& spec = options.spec;
  return {.num_ranks = num_ranks,
          .device = device,
          .dtype = spec.dtype,
          .batch = spec.batch,
          .num_heads_q = spec.num_heads,
          .num_heads_k = spec.num_heads_kv,
          .seqlen_q = spec.seqlen_q,
          .seqlen_k = spec.seqlen_k,
          .head_dim = spec.head_dim,
          .head_dim_v = spec.head_dim_v,
          .is_backward = pass == Mode::kBackward};
}

std::vector<RingCandidate> candidates(const RingOptions& options, int num_ranks, DeviceType device, Mode pass) {
  return explain_ring(problem_of(options, num_ranks, device, pass), options.attention.params("auto"), options.ring);
}

RingCandidate chosen(const RingOptions& options, int num_ranks, DeviceType device, Mode pass) {
  for (const RingCandidate& c : candidates(options, num_ranks, device, pass)) {
    if (c.chosen) return c;
  }
  throw Error(ErrorCode::kInternal, "ring: no algorithm");
}

Json to_json(const RingCandidate& c) {
  Json object = {{"algorithm", algorithm_name(c.algorithm)}, {"chosen", c.chosen}};
  if (!c.lack.empty()) object["lack"] = c.lack;
  object["why"] = c.why;
  object["estimated_us"] = c.estimated_us;
  object["sent_bytes"] = c.sent_bytes;
  object["memory_bytes"] = c.memory_bytes;
  object["steps"] = Json::array();
  for (const RingStep& s : c.steps) {
    object["steps"].push_back({{"what", s.what},
                               {"sent_bytes", s.sent_bytes},
                               {"compute_us", s.compute_us},
                               {"exchange_us", s.exchange_us},
                               {"exposed_us", s.exposed_us}});
  }
  return object;
}

void print(const RingCandidate& c) {
  const std::string about =
      c.steps.empty() ? "no: " + c.lack : fmt::format("about {:.0f} us: {}", c.estimated_us, c.why);
  fmt::print("{} {:<11} {}\n", c.chosen ? "*" : " ", algorithm_name(c.algorithm), about);
  if (!c.steps.empty() && !c.lack.empty()) fmt::print("    not chosen automatically: {}\n", c.lack);
  if (!c.chosen) return;
  for (const RingStep& s : c.steps) {
    fmt::print("    {}: {:.0f} us of products, {} bytes in {:.0f} us, {:.0f} us exposed\n", s.what, s.compute_us,
               s.sent_bytes, s.exchange_us, s.exposed_us);
  }
  fmt::print("    memory {} bytes\n", c.memory_bytes);
}

std::string title(const RingOptions& options, int num_ranks) {
  return fmt::format("{}{} over {} ranks, {}", io::folder_name(options.spec), options.attention.causal ? " causal" : "",
                     num_ranks, sharding_name(options.ring.sharding));
}

/// Prints the output of --explain. Makes no ranks. Returns the output as JSON.
Json explained(const RingOptions& options, int num_ranks, DeviceType device) {
  Json passes = Json::object();
  for (const Mode pass : ring_passes(options.mode)) {
    if (pass == Mode::kBoth) continue;
    fmt::print("{} of {}\n", mode_name(pass), title(options, num_ranks));
    for (const RingCandidate& c : candidates(options, num_ranks, device, pass)) {
      print(c);
      passes[mode_name(pass)].push_back(to_json(c));
    }
  }
  return passes;
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

/// Returns the median of the samples. Each sample is the time of the slowest rank.
double milliseconds(const std::vector<std::vector<PassTimes>>& ranks, std::size_t pass,
                    std::vector<double> PassTimes::*samples = &PassTimes::samples) {
  std::vector<double> slowest = ranks.front()[pass].*samples;
  for (const std::vector<PassTimes>& rank : ranks) {
    for (std::size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], (rank[pass].*samples)[i]);
  }
  return median(std::move(slowest));
}

/// Returns the median of each rank's samples.
std::vector<double> medians_by_rank(const std::vector<std::vector<PassTimes>>& ranks, std::size_t pass,
                                    std::vector<double> PassTimes::*samples) {
  std::vector<double> medians;
  for (const std::vector<PassTimes>& rank : ranks) medians.push_back(median(rank[pass].*samples));
  return medians;
}

/// Prints the speed of the ring relative to that of one call without a mask. This call computes the same number of
/// pairs. It is faster than a masked call, because kernels are slower for tiles on the diagonal.
void show_unmasked(const std::vector<std::vector<PassTimes>>& ranks, std::size_t pass, double ms, Json& object) {
  const std::vector<double> by_rank = medians_by_rank(ranks, pass, &PassTimes::unmasked);
  const double slowest = *std::max_element(by_rank.begin(), by_rank.end());
  object["unmasked_ms"] = slowest;
  object["share_of_unmasked"] = slowest / ms;
  fmt::print("  one call with as many pairs without a mask {}: {:.1f} % of its speed\n", time_text(slowest),
             100 * slowest / ms);
}

/// Returns the time in milliseconds in which each rank computes attention on blocks. Without a ring, the rank's share
/// of the work takes less time. The difference is the cost of splitting and merging.
std::vector<double> computed_by_rank(const std::vector<std::vector<PassTimes>>& ranks, std::size_t pass) {
  std::vector<double> sums;
  for (const std::vector<PassTimes>& rank : ranks) {
    double sum = 0;
    for (const StepTimes& t : step_times(rank[pass].spans)) sum += t.compute;
    sums.push_back(sum);
  }
  return sums;
}

/// Returns the time in milliseconds in which each rank clears, copies, adds or rounds tensors. This time is not part of
/// computed_by_rank().
std::vector<double> copied_by_rank(const std::vector<std::vector<PassTimes>>& ranks, std::size_t pass) {
  std::vector<double> sums;
  for (const std::vector<PassTimes>& rank : ranks) {
    double sum = 0;
    for (const ring::Span& s : rank[pass].spans) {
      if (s.activity == ring::Activity::kCopy) sum += s.end_ms - s.begin_ms;
    }
    sums.push_back(sum);
  }
  return sums;
}

const char* activity_name(ring::Activity activity) {
  return activity == ring::Activity::kCompute ? "compute" : activity == ring::Activity::kExchange ? "exchange" : "copy";
}

std::string list_text(const std::vector<double>& milliseconds) {
  std::string text;
  for (const double ms : milliseconds) text += (text.empty() ? "" : ", ") + time_text(ms);
  return text;
}

Json step_json(const StepTimes& t) {
  return {{"step", t.step}, {"compute_ms", t.compute}, {"exchange_ms", t.exchange}, {"exposed_ms", t.exposed}};
}

/// Prints the steps of a pass, and adds its steps and spans to `object`.
void show_steps(const std::vector<std::vector<PassTimes>>& ranks, std::size_t pass, Json& object) {
  std::vector<std::vector<ring::Span>> spans;
  std::vector<std::vector<StepTimes>> steps;
  for (const std::vector<PassTimes>& rank : ranks) {
    spans.push_back(rank[pass].spans);
    steps.push_back(step_times(rank[pass].spans));
  }
  object["steps"] = Json::array();
  fmt::print("  {:<5} {:>11} {:>11} {:>11}   (slowest rank)\n", "step", "compute", "exchange", "exposed");
  for (const StepTimes& t : slowest(steps)) {
    fmt::print("  {:<5} {:>11} {:>11} {:>11}\n", t.step, time_text(t.compute), time_text(t.exchange),
               time_text(t.exposed));
    object["steps"].push_back(step_json(t));
  }
  fmt::print("{}", timeline_text(spans, kColumns));
  object["timeline"] = Json::array();
  for (std::size_t rank = 0; rank < spans.size(); ++rank) {
    for (const ring::Span& s : spans[rank]) {
      object["timeline"].push_back({{"rank", rank},
                                    {"activity", activity_name(s.activity)},
                                    {"step", s.step},
                                    {"begin_ms", s.begin_ms},
                                    {"end_ms", s.end_ms}});
    }
  }
}

/// Returns the JSON keys that identify the problem in a result. measured() adds the results.
Json problem_json(const RingOptions& options, const RingParty& party, Mode pass, RingAlgorithm algorithm) {
  const io::FolderSpec& spec = options.spec;
  return {{"ranks", party.num_ranks()},
          {"S", spec.seqlen_q},
          {"Sk", spec.seqlen_k},
          {"B", spec.batch},
          {"H", spec.num_heads},
          {"Hkv", spec.num_heads_kv},
          {"D", spec.head_dim},
          {"dtype", dtype_name(spec.dtype)},
          {"mode", mode_name(pass)},
          {"algorithm", algorithm_name(algorithm)},
          {"sharding", sharding_name(options.ring.sharding)},
          {"causal", options.attention.causal},
          {"window_left", options.attention.window_left},
          {"window_right", options.attention.window_right}};
}

/// Prints the time of pass `i` and its exposed transfer time. @return these values as JSON
Json measured_pass(const RingOptions& options, const RingParty& party, const std::vector<std::vector<PassTimes>>& ranks,
                   Mode pass, std::size_t i) {
  const DeviceType device = party.first_device().type;
  const RingCandidate way = chosen(options, party.num_ranks(), device, pass == Mode::kBoth ? Mode::kForward : pass);
  const double ms = milliseconds(ranks, i);
  const std::vector<double> alone = medians_by_rank(ranks, i, &PassTimes::alone);
  const auto [quickest, slowest] = std::minmax_element(alone.begin(), alone.end());
  const double ideal = *slowest;
  Json object = problem_json(options, party, pass, way.algorithm);
  object["ms"] = ms;
  object["alone_ms"] = ideal;
  object["alone_ms_by_rank"] = alone;
  object["share_of_ideal"] = ideal / ms;
  object["over"] = party.name();
  object["device_name"] = device_name(party.first_device());
  fmt::print("\n{:<9} {} by {}; the slowest rank's share alone {}: {:.1f} % of ideal\n", mode_name(pass), time_text(ms),
             algorithm_name(way.algorithm), time_text(ideal), 100 * ideal / ms);
  fmt::print("  alone, by rank: {}: {:.1f} % between the fastest and the slowest\n", list_text(alone),
             100 * (ideal / *quickest - 1));
  if (!ranks.front()[i].unmasked.empty()) show_unmasked(ranks, i, ms, object);
  const bool on_gpus = !ranks.front()[i].single.empty();
  if (on_gpus) {
    const double single = milliseconds(ranks, i, &PassTimes::single);
    const double alone_single = milliseconds(ranks, i, &PassTimes::alone_single);
    object["ms_of_one_call"] = single;
    object["alone_ms_of_one_call"] = alone_single;
    fmt::print("  a single call {}, its share alone {}: {:.1f} % of ideal\n", time_text(single),
               time_text(alone_single), 100 * alone_single / single);
  }
  if (pass == Mode::kBoth) return object;
  const std::vector<double> computed = computed_by_rank(ranks, i);
  object["computed_ms_by_rank"] = computed;
  fmt::print("  products in the ring, by rank: {}\n", list_text(computed));
  if (on_gpus) {
    const std::vector<double> copied = copied_by_rank(ranks, i);
    object["copied_ms_by_rank"] = copied;
    fmt::print("  clearing, copies and rounding, by rank: {}\n", list_text(copied));
  }
  fmt::print("  {}\n", way.why);
  show_steps(ranks, i, object);
  return object;
}

Json measured(const RingOptions& options, const RingParty& party, const std::vector<std::vector<PassTimes>>& ranks) {
  fmt::print("{}, {}, {}\n", title(options, party.num_ranks()), party.name(), device_name(party.first_device()));
  Json list = Json::array();
  const std::vector<Mode> passes = ring_passes(options.mode);
  for (std::size_t i = 0; i < passes.size(); ++i) list.push_back(measured_pass(options, party, ranks, passes[i], i));
  return list;
}

/// Runs --explain with --ranks. This case starts no ranks and needs no GPU.
int explain_without_ranks(const RingOptions& options) {
  const bool gpu = options.device ? *options.device == DeviceType::kCUDA : !cuda::unusable_gpu(0);
  io::FileTransaction files;
  std::optional<io::FileTransaction::Handle> json;
  if (!options.json.empty()) json = files.create(options.json);
  const DeviceType device = gpu ? DeviceType::kCUDA : DeviceType::kCPU;
  const Json result = explained(options, static_cast<int>(options.ranks), device);
  if (json) files.append(*json, result.dump(1) + "\n");
  files.commit();
  return kExitDone;
}

}  // namespace

int show_ring(const RingOptions& options) {
  if (options.explain) return explain_without_ranks(options);
  const std::unique_ptr<RingParty> party = make_ring_party(options);
  const bool is_first = party->is_first();
  const DeviceType device = party->first_device().type;
  io::FileTransaction files;
  std::optional<io::FileTransaction::Handle> json;
  const bool may_begin = party->prepare([&] {
    for (const Mode pass : ring_passes(options.mode)) (void)chosen(options, party->num_ranks(), device, pass);
    if (is_first && !options.json.empty()) json = files.create(options.json);
  });
  if (!may_begin) return kExitDone;
  set_threads(options.threads > 0 ? options.threads : party->threads_of_rank());
  const auto ranks = party->run([&](const RingContext& context, Device place, const std::function<void()>& together) {
    return time_rank(options, context, place, together);
  });
  if (!is_first) return kExitDone;
  const Json result = measured(options, *party, ranks);
  if (json) {
    files.append(*json, result.dump(1) + "\n");
    files.commit();
  }
  return kExitDone;
}

}  // namespace attend::cli
