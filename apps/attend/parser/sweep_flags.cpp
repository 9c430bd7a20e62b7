#include "parser/sweep_flags.hpp"

#include <fmt/format.h>

#include <limits>

#include "cuda/launch/family.hpp"
#include "parser/flags.hpp"
#include "parser/footers.hpp"
#include "parser/names.hpp"

namespace attend::cli {

void SweepFlags::add(CLI::App& app, SweepOptions& options) {
  app.add_option("--compute", options.compute, "Family of kernels")->required()->type_name("NAME");
  problem.add(app, "--problem", options.attention);
  add_choice(app, "--mode", mode, {"forward", "backward"}, "What to time, forward if not given");
  app.add_option("--set", settings, "Values of a tunable to time; may be given several times")
      ->type_name("NAME=A,B,...")
      ->allow_extra_args(false);
  add_integer(app, "--repeat", options.repeat, 1, kMaxRepeat, "Samples of each variant, 15 if not given");
  add_real(app, "--max_seconds", max_seconds, 0, std::numeric_limits<double>::infinity(), false,
           "Longest time for a variant in seconds, 2 if not given");
  add_path(app, "--json", options.json, "Also write the table to this file");
  app.footer(kSweepFooter);
}

SweepOptions SweepFlags::finish(SweepOptions options) const {
  options.mode = mode == 0 ? Mode::kForward : Mode::kBackward;
  options.max_seconds = max_seconds.value_or(options.max_seconds);
  options.spec = problem.finish("--problem", options.attention);
  std::vector<std::string> allowed;
  for (const cuda::Family* family : cuda::families()) allowed.emplace_back(family->name);
  options.compute = known_name("--compute", options.compute, allowed);
  for (const std::string& text : settings) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("--set: '{}', allowed NAME=A,B,...", text));
    }
    SweepOptions::Setting setting = {text.substr(0, equals), {}};
    for (const std::string& value : split_at_commas(text.substr(equals + 1))) {
      setting.values.push_back(static_cast<std::int32_t>(parse_integer("--set", value, 0, 1 << 20)));
    }
    options.settings.push_back(std::move(setting));
  }
  return options;
}

}  // namespace attend::cli
