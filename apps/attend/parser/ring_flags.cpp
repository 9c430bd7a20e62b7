#include "parser/ring_flags.hpp"

#include <fmt/format.h>

#include <array>
#include <string>

#include "core/score_options.hpp"
#include "parser/flags.hpp"
#include "parser/footers.hpp"

namespace attend::cli {

void add_algorithm(CLI::App& app, std::size_t& algorithm) {
  add_choice(app, "--algorithm", algorithm, {"automatic", "exchange", "all_gather", "all_to_all", "two_level"},
             "How the ranks of a ring exchange data, automatic if not given");
}

void check_run_on_ring(const RunOptions& options) {
  const auto refuse = [](const std::string& message) { throw Error(ErrorCode::kInvalidArgument, message); };
  if (options.compute != "auto" && options.compute != "cpu" && options.compute != "reference") {
    refuse(fmt::format("--compute: '{}' with --ring, allowed auto, cpu, reference", options.compute));
  }
  for (std::size_t i = 0; i < options.score_tensors.size(); ++i) {
    const core::ScoreTensor& row = core::kScoreTensors[i];
    if (options.score_tensors[i].empty()) continue;
    if (!has_only(row.mod, core::kTraitsOfSingleScores)) {
      refuse(fmt::format("--{}: given with --ring, allowed without it", row.name));
    }
    if (row.gradient != nullptr && options.mode != Mode::kForward) {
      refuse(
          fmt::format("--{}: given with --ring and a backward pass, which has no gradient of it; allowed with "
                      "--mode forward",
                      row.name));
    }
  }
}

void RingFlags::add(CLI::App& app, RingOptions& options) {
  problem.add(app, "--problem", options.attention, flag_dtypes());
  add_integer(app, "--ranks", options.ranks, 1, kMaxRanks, "Ranks; if not given, one for each GPU, and at least 2");
  add_choice(app, "--sharding", sharding, {"zigzag", "contiguous", "striped"},
             "Which tokens each rank has, zigzag if not given");
  add_algorithm(app, algorithm);
  add_choice(app, "--mode", mode, {"both", "forward", "backward"}, "What to compute, both if not given");
  add_choice(app, "--over", over, {"auto", "threads", "nccl", "mpi"},
             "Whether the ranks are threads, GPUs over NCCL or MPI processes, see below");
  add_choice(app, "--copy_engines", copy_engines, {"on", "off"},
             "Whether copy engines move blocks between GPUs over NCCL where possible, on if not given");
  add_choice(app, "--device", device, {"auto", "cpu", "cuda"}, "Device; auto (GPUs if there are any) if not given");
  app.add_flag("--explain", options.explain, "Only print the estimated time of each algorithm");
  add_integer(app, "--repeat", options.repeat, 1, kMaxRepeat, "Samples of each time, 5 if not given");
  add_integer(app, "--threads", options.threads, 1, kMaxThreads,
              "Threads of a rank; its share of the cores if not given");
  add_path(app, "--json", options.json, "Also write the results to this file");
  app.footer(kRingFooter);
}

RingOptions RingFlags::finish(RingOptions options) const {
  options.spec = problem.finish("--problem", options.attention);
  options.ring = {std::array{Sharding::kZigzag, Sharding::kContiguous, Sharding::kStriped}.at(sharding),
                  static_cast<RingAlgorithm>(algorithm)};
  options.mode = std::array{Mode::kBoth, Mode::kForward, Mode::kBackward}.at(mode);
  options.copy_engines = copy_engines == 0;
  options.over = static_cast<RingOptions::Over>(over);
  if (options.explain && options.ranks == 0) {
    throw Error(ErrorCode::kInvalidArgument, "--ranks: not given with --explain, allowed 1 or more");
  }
  if (device != 0) options.device = device == 1 ? DeviceType::kCPU : DeviceType::kCUDA;
  return options;
}

}  // namespace attend::cli
