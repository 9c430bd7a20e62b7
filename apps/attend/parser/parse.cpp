#include "parser/parse.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "core/problem.hpp"
#include "cuda/driver/arch.hpp"
#include "cuda/launch/family.hpp"
#include "ladder/steps.hpp"
#include "parser/flags.hpp"
#include "parser/footers.hpp"
#include "parser/names.hpp"
#include "parser/problem_flags.hpp"
#include "parser/ring_flags.hpp"
#include "parser/score_flags.hpp"
#include "parser/sweep_flags.hpp"

namespace attend::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

std::vector<std::string> compute_names() {
  std::vector<std::string> names = {"auto"};
  for (const BackendInfo& backend : backends()) names.push_back(backend.name);
  return names;
}

/// Values of flags that can be converted to options only after the entire command line has been parsed.
struct Raw {
  std::string compute = "auto";
  std::size_t mode = 0;
  std::size_t dtype = 0;
  std::size_t device = 0;
  std::size_t ring = 0;  // 0 if there is no ring; otherwise 1 plus the index of the sharding
  std::size_t algorithm = 0;
  std::size_t cache_action = 0;
  bool grid_given = false;
  RingFlags ring_command;
  SweepFlags sweep_command;
  AttentionFlags attention;
  ProblemFlags problem;
  ScoreFlags score;
  std::optional<double> max_seconds;
  std::array<bool, core::kScoreTensors.size()> explain_tensors = {};
  std::int64_t heads_kv = 0, seqlen_k = 0, head_dim_v = 0;  // 0 means that the size is equal to that of q
  std::string computes = "auto";
  std::string archs = "sm_80,sm_90a,sm_120";
};

void add_outputs(CLI::App& app, std::int64_t& threads, std::filesystem::path& json, std::filesystem::path& csv) {
  add_integer(app, "--threads", threads, 1, kMaxThreads, "Threads of the CPU backend; all cores if not given");
  add_path(app, "--json", json, "Also write the results to this file, a JSON list of objects");
  add_path(app, "--csv", csv, "Also write the results to this file, as comma-separated values");
}

void add_generate(CLI::App& app, GenerateOptions& options, Raw& raw) {
  io::FolderSpec& spec = options.spec;
  add_integer(app, "--batch_size", spec.batch, 1, core::kMaxLength, "Sequences, 2 if not given");
  add_integer(app, "--num_heads", spec.num_heads, 1, core::kMaxLength, "Query heads, 8 if not given");
  add_integer(app, "--num_heads_kv", raw.heads_kv, 1, core::kMaxLength, "Key and value heads; those of Q if not given");
  add_integer(app, "--seq_len", spec.seqlen_q, 1, core::kMaxLength, "Query rows and keys, 512 if not given");
  add_integer(app, "--seq_len_k", raw.seqlen_k, 1, core::kMaxLength, "Keys; as many as query rows if not given");
  add_integer(app, "--head_dim", spec.head_dim, 1, core::kMaxHeadDim, "Columns of Q and K, 64 if not given");
  add_integer(app, "--head_dim_v", raw.head_dim_v, 1, core::kMaxHeadDim, "Columns of V; those of K if not given");
  add_choice(app, "--dtype", raw.dtype, dtype_names(flag_dtypes()), "Type of the numbers, f32 if not given");
  add_seed(app, "--seed", options.seed, "Seed of the values, 42 if not given");
  app.add_flag("--with_dout", options.with_dout, "Also write dO.bin, a random incoming gradient");
  add_path(app, "--output_dir", options.output_dir, "Folder in which the new folder is made, ./data if not given");
  app.footer(kGenerateFooter);
}

void add_run(CLI::App& app, RunOptions& options, Raw& raw) {
  app.add_option("--compute", raw.compute, "Backend; auto (the fastest one here) if not given")
      ->type_name(fmt::format("{}", fmt::join(compute_names(), "|")));
  add_choice(app, "--mode", raw.mode, {"forward", "backward", "both"}, "What to compute, forward if not given");
  add_path(app, "--data", options.data, "Folder with Q.bin, K.bin and V.bin; its name gives their sizes");
  add_path(app, "--q", options.q, "Q as a .npy file, (batch, heads, seqlen, head_dim)");
  add_path(app, "--k", options.k, "K as a .npy file");
  add_path(app, "--v", options.v, "V as a .npy file");
  add_path(app, "--dout", options.dout, "Gradient of O as a .npy file, for backward; ones if not given");
  add_path(app, "--o", options.o, "O as a .npy file, for backward alone; OUTPUT_DIR/O.npy if not given");
  add_path(app, "--lse", options.lse,
           "logsumexp (batch, heads, seqlen), likewise; OUTPUT_DIR/logsumexp.npy if not given");
  add_path(app, "--output_dir", options.output_dir, "Folder for the results of .npy inputs");
  for (std::size_t i = 0; i < options.score_tensors.size(); ++i) {
    const core::ScoreTensor& row = core::kScoreTensors[i];
    add_path(app, fmt::format("--{}", row.name), options.score_tensors[i], row.help);
  }
  raw.score.add(app);
  raw.attention.add(app, options.attention);
  add_seed(app, "--seed", options.attention.seed,
           "Seed of the dropout, 42 if not given: the same seed and offset drop the same entries");
  add_seed(app, "--offset", options.attention.offset, "Offset of the dropout's random numbers, 0 if not given");
  add_choice(app, "--ring", raw.ring, {"off", "contiguous", "zigzag", "striped"},
             "Split the sequence over ranks with this sharding; off if not given");
  add_integer(
      app, "--ranks", options.ranks, 1, kMaxRanks,
      "With --ring: number of threads of this process that are the ranks; the processes of an mpirun if not given");
  add_algorithm(app, raw.algorithm);
  app.add_flag("--check", options.check, "Compare with the float64 reference; exit status 1 if the results differ");
  add_integer(app, "--repeat", options.repeat, 1, kMaxRepeat,
              "Runs, of which the median time is reported; 1 if not given");
  add_outputs(app, options.threads, options.json, options.csv);
  app.footer(kRunFooter);
}

void add_bench(CLI::App& app, BenchOptions& options, Raw& raw) {
  add_choice(app, "--device", raw.device, {"auto", "cpu", "cuda"}, "Device; that of the backends if not given");
  app.add_option_function<std::string>(
         "--grid",
         [&options, &raw](const std::string& text) {
           if (text.empty()) refuse("--grid: '', allowed seed, paper, gpt3, masks or a file");
           options.grid = text;
           raw.grid_given = true;
         },
         "Sizes: seed (ten sizes, the default), paper (those of the FlashAttention papers), gpt3, or a JSON file. "
         "masks: custom masks and scores at one size")
      ->type_name("seed|paper|gpt3|masks|FILE");
  app.add_option("--compute", raw.computes, "Backends, comma-separated; auto if not given")->type_name("A,B,...");
  add_choice(app, "--mode", raw.mode, {"both", "forward", "backward"}, "What to time, both if not given");
  raw.problem.dtype = 0;  // f32
  raw.problem.add(app, "--problem", options.attention);
  app.get_option("--dtype")->each([&options](const std::string&) { options.dtype_given = true; });
  add_integer(app, "--repeat", options.repeat, 1, kMaxRepeat, "Runs of each row of the table, 10 if not given");
  add_real(app, "--max_seconds", raw.max_seconds, 0, kInfinity, false,
           "Longest time for the runs of a row in seconds, 2 if not given");
  add_outputs(app, options.threads, options.json, options.csv);
  app.footer(kBenchFooter);
}

void add_compile(CLI::App& app, CompileOptions& options, Raw& raw) {
  app.add_option("--arch", raw.archs, "Architectures, comma-separated; sm_80,sm_90a,sm_120 if not given")
      ->type_name("A,B,...");
  app.add_option("--compute", options.compute, "Kernel, all if not given")->type_name("NAME|all");
  app.add_flag("--cover", options.cover,
               "Only a few variants, in which each constant of a kernel has each of its values at least once");
  add_path(app, "--json", options.json, "Also write the table to this file, a JSON list of objects");
  app.footer(kCompileFooter);
}

void add_ladder(CLI::App& app, LadderOptions& options, Raw& raw) {
  raw.computes = "all";
  app.add_option("--compute", raw.computes,
                 "Kernels of the ladder and production kernels, comma-separated; all if not given")
      ->type_name("A,B,...|all");
  add_integer(app, "--repeat", options.repeat, 1, kMaxRepeat, "Samples of each kernel, 10 if not given");
  add_real(app, "--max_seconds", raw.max_seconds, 0, kInfinity, false,
           "Longest time for a kernel in seconds, 4 if not given");
  add_path(app, "--json", options.json, "Also write the results to this file");
  app.footer(kLadderFooter);
}

GenerateOptions finish(GenerateOptions options, const Raw& raw) {
  io::FolderSpec& spec = options.spec;
  spec.num_heads_kv = raw.heads_kv == 0 ? spec.num_heads : raw.heads_kv;
  spec.seqlen_k = raw.seqlen_k == 0 ? spec.seqlen_q : raw.seqlen_k;
  spec.head_dim_v = raw.head_dim_v == 0 ? spec.head_dim : raw.head_dim_v;
  spec.dtype = flag_dtypes().at(raw.dtype);
  if (spec.num_heads % spec.num_heads_kv != 0) {
    refuse(fmt::format("--num_heads_kv: {}, allowed a divisor of --num_heads {}", spec.num_heads_kv, spec.num_heads));
  }
  if (const auto tensor = io::oversized_tensor(spec)) {
    refuse(fmt::format("--batch_size, --num_heads, --seq_len, --head_dim: {} {}, allowed at most 2^62 bytes", *tensor,
                       dtype_name(spec.dtype)));
  }
  return options;
}

RunOptions finish(RunOptions options, const Raw& raw) {
  options.compute = known_name("--compute", raw.compute, compute_names());
  options.mode = std::array{Mode::kForward, Mode::kBackward, Mode::kBoth}.at(raw.mode);
  raw.attention.finish(options.attention);
  if (raw.ring == 0 && options.ranks != 0) refuse("--ranks: given without --ring, allowed with it");
  if (raw.ring != 0) {
    options.ring = RingParams(std::array{Sharding::kContiguous, Sharding::kZigzag, Sharding::kStriped}.at(raw.ring - 1),
                              static_cast<RingAlgorithm>(raw.algorithm));
    check_run_on_ring(options);
  }
  raw.score.finish(options);
  if (raw.ring == 0 && raw.algorithm != 0) refuse("--algorithm: given without --ring, allowed with it");
  const std::pair<const char*, const std::filesystem::path*> npy_flags[] = {
      {"--q", &options.q},       {"--k", &options.k}, {"--v", &options.v},    {"--output_dir", &options.output_dir},
      {"--dout", &options.dout}, {"--o", &options.o}, {"--lse", &options.lse}};
  constexpr std::size_t kRequired = 4;  // number of flags that are required, which come first
  for (std::size_t i = 0; i < std::size(npy_flags); ++i) {
    const auto& [flag, path] = npy_flags[i];
    if (options.data.empty() && i < kRequired && path->empty()) {
      const bool npy = !(options.q.empty() && options.k.empty() && options.v.empty());
      refuse(fmt::format("{}: not given, allowed --data DIR, or all of --q, --k, --v and --output_dir",
                         npy ? flag : "--data"));
    }
    if (!options.data.empty() && !path->empty()) refuse(fmt::format("{}: given with --data, allowed without it", flag));
  }
  return options;
}

BenchOptions finish(BenchOptions options, const Raw& raw) {
  const std::vector<std::string> allowed = compute_names();
  for (const std::string& name : split_at_commas(raw.computes)) {
    options.computes.push_back(known_name("--compute", name, allowed));
  }
  if (raw.device != 0) options.device = raw.device == 1 ? DeviceType::kCPU : DeviceType::kCUDA;
  options.mode = std::array{Mode::kBoth, Mode::kForward, Mode::kBackward}.at(raw.mode);
  options.dtype = problem_dtypes().at(raw.problem.dtype);
  if (options.dtype == DType::kF8E4M3 && options.mode != Mode::kForward) {
    refuse(fmt::format("--mode: {} with --dtype f8e4m3, allowed forward", mode_name(options.mode)));
  }
  options.max_seconds = raw.max_seconds.value_or(options.max_seconds);
  if (raw.problem.sizes.empty()) {
    raw.problem.finish_without_sizes("--problem", options.attention);
  } else {
    if (raw.grid_given && options.grid != "masks") {
      refuse(fmt::format("--grid: '{}' with --problem, allowed masks, or none", options.grid));
    }
    options.problem = raw.problem.finish("--problem", options.attention);
  }
  return options;
}

CompileOptions finish(CompileOptions options, const Raw& raw) {
  options.archs = split_at_commas(raw.archs);
  for (const std::string& arch : options.archs) {
    try {
      (void)cuda::find_arch(arch);
    } catch (const Error& error) {
      // Puts the flag's name before the message, for example "--arch: 'sm_1', allowed ...".
      refuse(fmt::format("--{}", error.what()));
    }
  }
  std::vector<std::string> allowed = {"all"};
  for (const cuda::Family* family : cuda::families()) allowed.emplace_back(family->name);
  options.compute = known_name("--compute", options.compute, allowed);
  return options;
}

LadderOptions finish(LadderOptions options, const Raw& raw) {
  options.max_seconds = raw.max_seconds.value_or(options.max_seconds);
  if (raw.computes == "all") return options;
  const std::vector<std::string_view> names = ladder_names();
  const std::vector<std::string> allowed(names.begin(), names.end());
  for (const std::string& name : split_at_commas(raw.computes)) {
    options.computes.push_back(known_name("--compute", name, allowed));
  }
  return options;
}

void add_cache(CLI::App& app, CacheOptions& options, Raw& raw) {
  add_choice(app, "action", raw.cache_action, {"show", "clear", "limit"}, "What to do, show if not given");
  app.add_flag("--json", options.json, "Print JSON instead of text");
  app.footer(kCacheFooter);
}

CacheOptions finish(CacheOptions options, const Raw& raw) {
  options.action = static_cast<CacheOptions::Action>(raw.cache_action);
  if (options.json && options.action == CacheOptions::Action::kClear) {
    refuse("--json: given with clear, allowed with show, limit");
  }
  return options;
}

void add_info(CLI::App& app, InfoOptions& options, Raw& raw, AttentionOptions& attention) {
  app.add_flag("--json", options.json, "Print JSON instead of text");
  raw.problem.add(app, "--explain", attention);
  for (std::size_t i = 0; i < raw.explain_tensors.size(); ++i) {
    const core::ScoreTensor& row = core::kScoreTensors[i];
    app.add_flag(row.flag, raw.explain_tensors[i], row.flag_help);
  }
  add_choice(app, "--device", raw.device, {"auto", "cpu", "cuda"}, "Device; auto (a GPU if there is one) if not given");
  app.footer(kInfoFooter);
}

Command finish(const InfoOptions& options, const Raw& raw, AttentionOptions attention) {
  if (raw.problem.sizes.empty()) return options;
  ExplainOptions explain = {.spec = raw.problem.finish("--explain", attention),
                            .attention = attention,
                            .score_tensors = raw.explain_tensors,
                            .device = {},
                            .json = options.json};
  if (raw.device != 0) explain.device = raw.device == 1 ? DeviceType::kCPU : DeviceType::kCUDA;
  return explain;
}

/// Throws an error if the command line contains a flag that the command does not have. The error suggests a similar
/// flag, which CLI11's message does not.
void check_flags(const CLI::App& command, const std::vector<std::string>& arguments) {
  std::vector<std::string> known = {"--help"};
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const std::string& argument : arguments) {
    if (!argument.starts_with("--") || argument == "--") continue;
    const std::string flag = argument.substr(0, argument.find('='));
    if (std::find(known.begin(), known.end(), flag) != known.end()) continue;
    refuse(fmt::format("{}: no flag of attend {}{} (see attend {} --help)", flag, command.get_name(),
                       did_you_mean(flag, known), command.get_name()));
  }
}

/// Throws if the first word is neither a command nor a flag such as --help.
void check_command(const std::vector<std::string>& arguments) {
  constexpr std::array<std::string_view, 9> kCommands = {"generate", "run",  "bench", "compile", "ladder",
                                                         "sweep",    "ring", "cache", "info"};
  const std::string allowed = fmt::format("{} (see attend --help)", fmt::join(kCommands, ", "));
  if (arguments.empty()) refuse("no command given, allowed " + allowed);
  const std::string& first = arguments.front();
  if (first.starts_with('-')) return;
  const std::vector<std::string> names(kCommands.begin(), kCommands.end());
  if (std::find(names.begin(), names.end(), first) == names.end()) {
    refuse(fmt::format("command: '{}', allowed {}{}", first, allowed, did_you_mean(first, names)));
  }
}

/// Results of parsing: the options and flags of each command.
struct CommandLine {
  CLI::App app{"Exact attention, forward and backward: O = softmax(scale Q K^T + bias) V", "attend"};
  Raw raw;
  GenerateOptions generate;
  RunOptions run;
  BenchOptions bench;
  CompileOptions compile;
  LadderOptions ladder;
  SweepOptions sweep;
  RingOptions ring;
  CacheOptions cache;
  InfoOptions info;
  AttentionOptions explained;

  /// Adds all commands by name, without their flags. --help lists the names.
  CommandLine() {
    app.set_version_flag("--version", std::string("attend ") + version());
    app.require_subcommand(1);
    app.footer(kMainFooter);
    app.add_subcommand("generate", "Write random Q, K and V");
    app.add_subcommand("run", "Compute attention of tensors in files, and check it");
    app.add_subcommand("bench", "Time attention over a grid of sizes");
    app.add_subcommand("compile", "Compile the GPU kernels, without a GPU");
    app.add_subcommand("ladder", "Check and time every kernel of the ladder on this GPU");
    app.add_subcommand("sweep", "Time many variants of one family of kernels");
    app.add_subcommand("ring", "Run a ring of ranks, and show its steps and the exchange time that is not hidden");
    app.add_subcommand("cache", "Show or clear the compiled kernels on disk");
    app.add_subcommand("info", "Show what this machine and this build can do");
  }

  /// Adds the flags of the command on the command line. The flags of other commands are not needed.
  void add_flags(const std::string& command) {
    const auto sub = [&]() -> CLI::App& { return *app.get_subcommand(command); };
    if (command == "generate") add_generate(sub(), generate, raw);
    if (command == "run") add_run(sub(), run, raw);
    if (command == "bench") add_bench(sub(), bench, raw);
    if (command == "compile") add_compile(sub(), compile, raw);
    if (command == "ladder") add_ladder(sub(), ladder, raw);
    if (command == "sweep") raw.sweep_command.add(sub(), sweep);
    if (command == "ring") raw.ring_command.add(sub(), ring);
    if (command == "cache") add_cache(sub(), cache, raw);
    if (command == "info") add_info(sub(), info, raw, explained);
  }

  /// Returns the options of the command that was parsed.
  [[nodiscard]] Command finished() {
    if (app.got_subcommand("generate")) return finish(std::move(generate), raw);
    if (app.got_subcommand("run")) return finish(std::move(run), raw);
    if (app.got_subcommand("bench")) return finish(std::move(bench), raw);
    if (app.got_subcommand("compile")) return finish(std::move(compile), raw);
    if (app.got_subcommand("ladder")) return finish(std::move(ladder), raw);
    if (app.got_subcommand("sweep")) return raw.sweep_command.finish(std::move(sweep));
    if (app.got_subcommand("ring")) return raw.ring_command.finish(std::move(ring));
    if (app.got_subcommand("cache")) return finish(cache, raw);
    return finish(info, raw, explained);
  }
};

}  // namespace

Command parse(const std::vector<std::string>& given) {
  const std::vector<std::string> arguments = with_plain_flags(given);
  const std::string command = arguments.empty() ? "" : arguments.front();
  CommandLine line;
  line.add_flags(command);
  check_command(arguments);
  if (!command.starts_with('-')) check_flags(*line.app.get_subcommand(command), arguments);
  try {
    // CLI11 expects the arguments in reverse order.
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    line.app.parse(reversed);
  } catch (const CLI::CallForVersion& version_text) {
    return Message{std::string(version_text.what()) + "\n"};
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return Message{line.app.help()};
    const auto chosen = line.app.get_subcommands();
    refuse(
        fmt::format("{} (see attend {}--help)", error.what(), chosen.empty() ? "" : chosen.back()->get_name() + " "));
  }
  return line.finished();
}

}  // namespace attend::cli
