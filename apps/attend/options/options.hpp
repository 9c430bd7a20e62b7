// The options of each command, as plain structs. parser/ fills them, commands/ reads them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attend/attention.hpp"
#include "attend/ring.hpp"
#include "core/score_options.hpp"
#include "io/folder.hpp"

namespace attend::cli {

enum class Mode { kForward, kBackward, kBoth };

[[nodiscard]] const char* mode_name(Mode mode) noexcept;

/// `attend generate`
struct GenerateOptions {
  io::FolderSpec spec = {
      .batch = 2, .num_heads = 8, .seqlen_q = 512, .head_dim = 64};  ///< sizes and dtype, all checked
  std::uint64_t seed = 42;
  bool with_dout = false;  ///< also dO.bin
  std::filesystem::path output_dir = "./data";
};

/// The options of attention itself, shared by run and bench.
struct AttentionOptions {
  bool causal = false;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  std::optional<double> scale;
  std::array<double, core::kScoreNumbers.size()> score_numbers = {};  ///< in the order of their rows
  std::uint64_t seed = 42;                                            ///< of dropout
  std::uint64_t offset = 0;

  /// The library's parameters. `compute` has to outlive them.
  [[nodiscard]] Params params(std::string_view compute) const;
};

/// `attend run`: either a folder, or .npy files and an output folder.
struct RunOptions {
  std::string compute = "auto";
  Mode mode = Mode::kForward;
  AttentionOptions attention;
  std::filesystem::path data;  ///< empty: the .npy files below
  std::filesystem::path q, k, v, dout, o, lse;
  std::array<std::filesystem::path, core::kScoreTensors.size()> score_tensors;  ///< in the order of their rows
  std::optional<std::string> score;                                             ///< text of a score function
  std::optional<std::string> block_mask;                                        ///< text of a mask function
  std::vector<std::pair<std::string, std::filesystem::path>> captures;  ///< what they read: names and .npy files
  std::filesystem::path output_dir;
  std::optional<RingParams> ring;  ///< over several ranks; none: this process alone
  std::int64_t ranks = 0;          ///< of a ring, threads of this process; 0: the processes of an mpirun
  bool check = false;
  std::int64_t repeat = 1;
  std::int64_t threads = 0;  ///< 0: the library's choice
  std::filesystem::path json, csv;
};

/// `attend bench`
struct BenchOptions {
  std::string grid = "seed";              ///< seed, paper, gpt3, masks or a file
  std::optional<io::FolderSpec> problem;  ///< instead of the grid, or the sizes of masks
  std::optional<DeviceType> device;       ///< none: that of the backends
  std::vector<std::string> computes;      ///< never empty
  Mode mode = Mode::kBoth;
  DType dtype = DType::kF32;
  bool dtype_given = false;
  AttentionOptions attention;
  std::int64_t repeat = 10;
  double max_seconds = 2;  ///< for one row of the table
  std::int64_t threads = 0;
  std::filesystem::path json, csv;
};

/// `attend compile`
struct CompileOptions {
  std::vector<std::string> archs;  ///< never empty, each one known
  std::string compute = "all";     ///< a kernel's name, or all
  bool cover = false;              ///< only variants that together have everything once (cuda::covering_specs)
  std::filesystem::path json;
};

/// `attend ladder`
struct LadderOptions {
  std::vector<std::string> computes;  ///< rungs and products by name; empty: all
  std::int64_t repeat = 10;
  double max_seconds = 4;  ///< for one step
  std::filesystem::path json;
};

/// `attend sweep`
struct SweepOptions {
  struct Setting {
    std::string name;  ///< of a tunable
    std::vector<std::int32_t> values;
  };
  std::string compute;  ///< a family's name
  io::FolderSpec spec;
  AttentionOptions attention;
  Mode mode = Mode::kForward;  ///< or kBackward
  std::vector<Setting> settings;
  std::int64_t repeat = 15;
  double max_seconds = 2;  ///< for one variant
  std::filesystem::path json;
};

/// `attend info`
struct InfoOptions {
  bool json = false;
};

/// `attend info --explain B,H,S,D`
struct ExplainOptions {
  io::FolderSpec spec;
  AttentionOptions attention;
  std::array<bool, core::kScoreTensors.size()> score_tensors = {};  ///< given, of every head
  std::optional<DeviceType> device;                                 ///< none: a GPU where there is one
  bool json = false;
};

/// `attend ring`
struct RingOptions {
  enum class Over { kAutomatic, kThreads, kNccl, kMpi };
  io::FolderSpec spec;  ///< of the whole
  AttentionOptions attention;
  RingParams ring;
  Mode mode = Mode::kBoth;
  Over over = Over::kAutomatic;
  bool copy_engines = true;          ///< between GPUs over NCCL
  std::optional<DeviceType> device;  ///< none: GPUs where there are any
  std::int64_t ranks = 0;            ///< 0: of mpirun, or one for each GPU, but two at least
  std::int64_t threads = 0;          ///< of a rank; 0: its share of the cores
  std::int64_t repeat = 5;
  bool explain = false;
  std::filesystem::path json;
};

/// `attend cache`
struct CacheOptions {
  enum class Action { kShow, kClear, kLimit };
  Action action = Action::kShow;
  bool json = false;
};

}  // namespace attend::cli
