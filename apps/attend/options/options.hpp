// The options of each command as plain structs. parser/ fills them and commands/ reads them.
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

  /// Returns the library's parameters. `compute` must outlive them.
  [[nodiscard]] Params params(std::string_view compute) const;
};

/// `attend run`: its input is a folder, or .npy files together with an output folder.
struct RunOptions {
  std::string compute = "auto";
  Mode mode = Mode::kForward;
  AttentionOptions attention;
  std::filesystem::path data;  ///< empty: the .npy files below
  std::filesystem::path q, k, v, dout, o, lse;
  std::array<std::filesystem::path, core::kScoreTensors.size()> score_tensors;  ///< in the order of their rows
  std::optional<std::string> score;                                             ///< text of a score function
  std::optional<std::string> block_mask;                                        ///< text of a mask function
  std::vector<std::pair<std::string, std::filesystem::path>> captures;  ///< of both functions: names, .npy files
  std::filesystem::path output_dir;
  std::optional<RingParams> ring;  ///< over several ranks; none: this process alone
  std::int64_t ranks = 0;          ///< threads of this process as ranks; 0: the processes of an mpirun
  bool check = false;
  std::int64_t repeat = 1;
  std::int64_t threads = 0;  ///< 0: the library's choice
  std::filesystem::path json, csv;
};

/// `attend bench`
struct BenchOptions {
  std::string grid = "seed";              ///< seed, paper, gpt3, masks or a file
  std::optional<io::FolderSpec> problem;  ///< replaces the grid; with masks, the sizes of every entry
  std::optional<DeviceType> device;       ///< none: the device of the backends
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
  std::vector<std::string> archs;  ///< never empty; all names are known
  std::string compute = "all";     ///< a kernel's name, or all
  bool cover = false;              ///< only as many variants as cover every value once (cuda::covering_specs)
  std::filesystem::path json;
};

/// `attend ladder`
struct LadderOptions {
  std::vector<std::string> computes;  ///< names of rungs and products; empty: all
  std::int64_t repeat = 10;
  double max_seconds = 4;  ///< for one step
  std::filesystem::path json;
};

/// `attend sweep`
struct SweepOptions {
  struct Setting {
    std::string name;  ///< of a tunable parameter
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
  std::array<bool, core::kScoreTensors.size()> score_tensors = {};  ///< whether each is given, for every head
  std::optional<DeviceType> device;                                 ///< none: a GPU if there is one
  bool json = false;
};

/// `attend ring`
struct RingOptions {
  enum class Over { kAutomatic, kThreads, kNccl, kMpi };
  io::FolderSpec spec;  ///< of the complete sequence
  AttentionOptions attention;
  RingParams ring;
  Mode mode = Mode::kBoth;
  Over over = Over::kAutomatic;
  bool copy_engines = true;          ///< for transfers between GPUs over NCCL
  std::optional<DeviceType> device;  ///< none: GPUs if there are any
  std::int64_t ranks = 0;            ///< 0: those of mpirun, or one for each GPU, but at least two
  std::int64_t threads = 0;          ///< for each rank; 0: an equal share of the cores
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
