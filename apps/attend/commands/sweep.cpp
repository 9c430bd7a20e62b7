// attend sweep: times many variants of one kernel family on one problem. A variant is a set of values of the family's
// compile-time parameters. All variants run in one process, in alternation.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "commands/commands.hpp"
#include "cuda/jit/jit.hpp"
#include "cuda/launch/launcher.hpp"
#include "process/progress.hpp"
#include "process/system.hpp"
#include "report/report.hpp"
#include "workload/device_workload.hpp"
#include "workload/random_workload.hpp"

namespace attend::cli {
namespace {

using cuda::Family;

/// One variant of the sweep.
struct Point {
  cuda::Choice choice;
  // For example "block_n=64 stages=2". Empty for the variant that the family chooses by default.
  std::string settings = {};
  std::string error = {};  // reason why the variant cannot run; empty if it can
  int registers = 0, spill_bytes = 0;
  double difference = 0;  // largest difference from the result of the default variant
  Timing timing = {};
};

std::string settings_text(const std::vector<SweepOptions::Setting>& settings, const std::vector<std::size_t>& at) {
  std::string text;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    text += fmt::format("{}{}={}", i > 0 ? " " : "", settings[i].name, settings[i].values[at[i]]);
  }
  return text;
}

/// Returns the default variant of the family, followed by every combination of the values in the settings.
std::vector<Point> make_points(const SweepOptions& options, const Family& family, const core::Problem& p) {
  const cuda::DeviceInfo& device = cuda::device_info(p.q.device.index);
  const cuda::Choice own = family.choose(p, device);
  std::vector<Point> points = {{.choice = own}};
  const auto tunables = family.tunables(own.variant);
  std::vector<std::size_t> places;
  for (const SweepOptions::Setting& setting : options.settings) {
    const auto found = std::find_if(tunables.begin(), tunables.end(),
                                    [&](const cuda::Tunable& tunable) { return setting.name == tunable.name; });
    if (found == tunables.end()) {
      std::vector<std::string> names;
      for (const cuda::Tunable& tunable : tunables) names.push_back(tunable.name);
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--set: '{}', compute '{}' allows {}", setting.name, family.name,
                              names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
    }
    for (const std::int32_t value : setting.values) {
      const std::string allowed = found->allowed_instead_of(value, own.variant.ints()[found->at]);
      if (allowed.empty()) continue;
      throw Error(ErrorCode::kInvalidArgument, fmt::format("--set: {}={}, allowed {}", setting.name, value, allowed));
    }
    places.push_back(found->at);
  }
  std::vector<std::size_t> at(options.settings.size(), 0);
  while (!at.empty()) {
    Point point = {.choice = own, .settings = settings_text(options.settings, at)};
    for (std::size_t i = 0; i < at.size(); ++i) point.choice.variant.set(places[i], options.settings[i].values[at[i]]);
    points.push_back(std::move(point));
    std::size_t digit = 0;
    while (digit < at.size() && ++at[digit] == options.settings[digit].values.size()) at[digit++] = 0;
    if (digit == at.size()) break;
  }
  return points;
}

/// Compiles the kernels of all variants on all cores, and computes their launch grids.
void compile_all(std::vector<Point>& points, const Family& family, const core::Problem& p) {
  const cuda::DeviceInfo& device = cuda::device_info(p.q.device.index);
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < points.size(); i = next++) {
      Point& point = points[i];
      try {
        family.lay_out(p, device, point.choice);
        for (const cuda::KernelSpec& spec : family.kernels(point.choice.variant, device.arch())) {
          if (spec.dynamic_smem_bytes > static_cast<unsigned>(device.max_smem_per_block)) {
            throw Error(ErrorCode::kUnsupported, fmt::format("{} bytes of shared memory, allowed {}",
                                                             spec.dynamic_smem_bytes, device.max_smem_per_block));
          }
          const cuda::Resources& r = cuda::Jit::instance().compile(spec)->resources;
          point.registers = std::max(point.registers, r.registers);
          point.spill_bytes += r.spill_store_bytes + r.spill_load_bytes;
        }
      } catch (const Error& error) {
        const std::string what = error.what();
        const std::size_t assertion = what.find("error:");
        point.error = what.substr(assertion == std::string::npos ? 0 : assertion, 160);
        point.error = point.error.substr(0, point.error.find('\n'));
      }
    }
  };
  std::vector<std::jthread> workers;
  for (int i = 0; i < usable_cores(); ++i) workers.emplace_back(work);
}

/// Returns the largest difference between corresponding elements of two results. It is infinity if only one of two
/// corresponding elements is NaN.
double largest_difference(const io::HostTensor& a, const io::HostTensor& b) {
  const auto numbers = [](const io::HostTensor& t) { return static_cast<const float*>(t.view().data); };
  double largest = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const float x = numbers(a)[i], y = numbers(b)[i];
    if (std::isnan(x) != std::isnan(y)) return std::numeric_limits<double>::infinity();
    if (!std::isnan(x)) largest = std::max(largest, std::abs(double{x} - double{y}));
  }
  return largest;
}

nlohmann::ordered_json to_json(const Point& point, double tflops) {
  nlohmann::ordered_json object = {{"settings", point.settings.empty() ? "chosen" : point.settings}};
  if (!point.error.empty()) {
    object["error"] = point.error;
    return object;
  }
  object["ms"] = point.timing.median_ms;
  object["fastest_ms"] = point.timing.fastest_ms;
  object["tflops"] = tflops;
  object["registers"] = point.registers;
  object["spill_bytes"] = point.spill_bytes;
  object["difference"] = point.difference;
  return object;
}

/// Times the variants that can run, in alternation. Sets the error text of the variants that cannot run. Sorts all
/// variants, the fastest first.
void time_points(std::vector<Point>& points, const SweepOptions& options, const Family& family, const Workload& w,
                 DeviceWorkload& device) {
  const io::HostTensor& result = options.mode == Mode::kForward ? w.o : w.dk;
  if (options.mode == Mode::kBackward) device.run(Mode::kForward);
  std::optional<io::HostTensor> own;
  std::vector<Sampler> samplers;
  std::vector<Point*> timed;
  for (Point& point : points) {
    if (!point.error.empty()) continue;
    Sampler sampler = device.sampler(options.mode, [&family, &point](const core::Problem& problem, Stream stream) {
      cuda::launch(family, problem, point.choice, stream);
    });
    try {
      (void)sampler();
    } catch (const Error& error) {
      point.error = error.what();
      continue;
    }
    device.fetch();
    if (!own) own.emplace(result.converted(DType::kF32));
    point.difference = largest_difference(result.converted(DType::kF32), *own);
    samplers.push_back(std::move(sampler));
    timed.push_back(&point);
  }
  const std::vector<Timing> timings = time_in_turns(samplers, options.repeat, options.max_seconds);
  for (std::size_t i = 0; i < timed.size(); ++i) timed[i]->timing = timings[i];
  std::stable_sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
    return std::pair(!a.error.empty(), a.timing.median_ms) < std::pair(!b.error.empty(), b.timing.median_ms);
  });
}

/// Prints a line for each variant. @return these values as JSON
nlohmann::ordered_json show(const std::vector<Point>& points, double operations) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Point& point : points) {
    const double seconds = point.timing.median_ms / 1000;
    const double tflops = seconds > 0 ? operations / seconds / 1e12 : 0;
    list.push_back(to_json(point, tflops));
    const std::string settings = point.settings.empty() ? "(chosen)" : point.settings;
    if (point.error.empty()) {
      fmt::print("{:>10} {:>10.1f} {:>6} {:>7} {:>10.1e}  {}\n", time_text(point.timing.median_ms), tflops,
                 point.registers, point.spill_bytes, point.difference, settings);
    } else {
      fmt::print("{:>10} {:>10} {:>6} {:>7} {:>10}  {}: {}\n", "-", "-", "-", "-", "-", settings, point.error);
    }
  }
  return list;
}

}  // namespace

int sweep(const SweepOptions& options) {
  const Family& family = *cuda::find_family(options.compute);
  const Mode mode = options.mode == Mode::kForward ? Mode::kForward : Mode::kBoth;
  const Workload w = random_workload({options.spec, false}, options.attention, mode);
  const Choice place = choose_compute(family.name, DeviceType::kCUDA, w, options.mode);
  core::Problem p = options.mode == Mode::kForward ? w.forward_problem() : w.backward_problem();
  p.q.device = place.device;
  io::FileTransaction files;
  std::optional<io::FileTransaction::Handle> json;
  if (!options.json.empty()) json = files.create(options.json);

  std::vector<Point> points = make_points(options, family, p);
  compile_all(points, family, p);
  DeviceWorkload device(w, place, false);
  time_points(points, options, family, w, device);
  fmt::print("{} {} of {}{} on {}\n{:>10} {:>10} {:>6} {:>7} {:>10}  {}\n", family.name, mode_name(options.mode),
             io::folder_name(options.spec), options.attention.causal ? " causal" : "", device_name(place.device),
             "median", "TFLOP/s", "regs", "spills", "difference", "settings");
  const nlohmann::ordered_json list = show(points, operations(w, options.mode, share_seen(w)));
  if (json) {
    files.append(*json, list.dump(2) + "\n");
    files.commit();
  }
  return kExitDone;
}

}  // namespace attend::cli
