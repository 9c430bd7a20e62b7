// Fuzzes the option parser with arbitrary argument lists, separated by newlines. The parser must return options or
// throw an Error. Returned options must satisfy the conditions that the rest of the program relies on.
#include <cmath>
#include <cstdint>

#include "fuzz/fuzz_support.hpp"
#include "parser/parse.hpp"

namespace {

using namespace attend;

void check(const cli::AttentionOptions& options) {
  fuzz::require(options.window_left >= -1 && options.window_right >= -1);
  fuzz::require(!options.scale || std::isfinite(*options.scale));
  for (const double number : options.score_numbers) fuzz::require(std::isfinite(number) && number >= 0);
  const Params params = options.params("auto");
  fuzz::require(params.dropout_p < 1);
}

struct Check {
  void operator()(const cli::GenerateOptions& options) const {
    fuzz::require(io::parse_folder_name(io::folder_name(options.spec)) == options.spec);
    fuzz::require(!options.output_dir.empty());
  }
  void operator()(const cli::RunOptions& options) const {
    check(options.attention);
    fuzz::require(options.repeat >= 1 && options.threads >= 0 && !options.compute.empty());
    fuzz::require(options.data.empty() != options.output_dir.empty());
    fuzz::require(options.data.empty() != options.q.empty());
    fuzz::require(options.ranks >= 0 && (options.ranks == 0 || options.ring));
  }
  void operator()(const cli::BenchOptions& options) const {
    check(options.attention);
    fuzz::require(options.repeat >= 1 && !options.computes.empty() && options.max_seconds >= 0);
    fuzz::require(!options.problem || io::parse_folder_name(io::folder_name(*options.problem)) == *options.problem);
  }
  void operator()(const cli::CompileOptions& options) const {
    fuzz::require(!options.archs.empty() && !options.compute.empty());
  }
  void operator()(const cli::LadderOptions& options) const {
    fuzz::require(options.repeat >= 1 && options.max_seconds >= 0);
  }
  void operator()(const cli::SweepOptions& options) const {
    check(options.attention);
    fuzz::require(options.repeat >= 1 && !options.compute.empty() && options.mode != cli::Mode::kBoth);
    fuzz::require(io::parse_folder_name(io::folder_name(options.spec)) == options.spec);
    for (const auto& setting : options.settings) fuzz::require(!setting.values.empty());
  }
  void operator()(const cli::InfoOptions& /*options*/) const {}
  void operator()(const cli::ExplainOptions& options) const {
    check(options.attention);
    fuzz::require(io::parse_folder_name(io::folder_name(options.spec)) == options.spec);
  }
  void operator()(const cli::RingOptions& options) const {
    check(options.attention);
    fuzz::require(options.repeat >= 1 && options.ranks >= 0 && options.threads >= 0);
    fuzz::require(options.ranks > 0 || !options.explain);
    fuzz::require(io::parse_folder_name(io::folder_name(options.spec)) == options.spec);
  }
  void operator()(const cli::CacheOptions& options) const {
    fuzz::require(!options.json || options.action != cli::CacheOptions::Action::kClear);
  }
  void operator()(const cli::Message& message) const { fuzz::require(!message.text.empty()); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> arguments;
  std::string argument;
  for (std::size_t i = 0; i < size; ++i) {
    if (data[i] == '\n') {
      arguments.push_back(std::move(argument));
      argument.clear();
    } else if (data[i] != '\0') {  // arguments cannot contain this byte
      argument += static_cast<char>(data[i]);
    }
  }
  if (!argument.empty()) arguments.push_back(std::move(argument));
  try {
    std::visit(Check(), cli::parse(arguments));
  } catch (const Error& error) {
    fuzz::require(error.what()[0] != '\0');
  }
  return 0;
}
