// Structs with the options of each command. parser/ fills them in and commands/ reads them.
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

/// Options of `attend generate`.
struct GenerateOptions {
  io::FolderSpec spec = {
      .batch = 2, .num_heads = 8, .seqlen_q = 512, .head_dim = 64};  ///< sizes and dtype, all checked by the parser
  std::uint64_t seed = 42;
  bool with_dout = false;  ///< if true, dO.bin is written too
  std::filesystem::path output_dir = "./data";
};

/// Options of attention that the commands share.
struct AttentionOptions {
  bool causal = false;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  std::optional<double> scale;
  /// Values of the options in core::kScoreNumbers, in that order.
  std::array<double, core::kScoreNumbers.size()> score_numbers = {};
  std::uint64_t seed = 42;  ///< seed of dropout
  std::uint64_t offset = 0;

  /// Returns the library's parameters. The characters of `compute` must outlive them.
  [[nodiscard]] Params params(std::string_view compute) const;
};

/// Options of `attend run`. Its input is a folder, or .npy files together with an output folder.
struct RunOptions {
  std::string compute = "auto";
  Mode mode = Mode::kForward;
  AttentionOptions attention;
  std::filesystem::path data;  ///< input folder; if empty, the .npy files below are read
  std::filesystem::path q, k, v, dout, o, lse;
  /// Files of the tensors in core::kScoreTensors, in that order.
  std::array<std::filesystem::path, core::kScoreTensors.size()> score_tensors;
  std::optional<std::string> score;       ///< text of a score function
  std::optional<std::string> block_mask;  ///< text of a mask function
  /// Names and .npy files of the tensors that both functions may read.
  std::vector<std::pair<std::string, std::filesystem::path>> captures;
  std::filesystem::path output_dir;
  std::optional<RingParams> ring;  ///< set if the computation runs on the ranks of a ring
  /// Number of threads of this process that are ranks. If 0, the ranks are the processes of an mpirun.
  std::int64_t ranks = 0;
  bool check = false;
  std::int64_t repeat = 1;
  std::int64_t threads = 0;  ///< 0 selects the library's default
  std::filesystem::path json, csv;
};

/// Options of `attend bench`.
struct BenchOptions {
  std::string grid = "seed";  ///< "seed", "paper", "gpt3", "masks", or the path of a grid file
  /// If set, replaces the grid. With the grid "masks", it sets the sizes of every entry.
  std::optional<io::FolderSpec> problem;
  std::optional<DeviceType> device;   ///< if unset, the device of the backends
  std::vector<std::string> computes;  ///< names of backends; never empty
  Mode mode = Mode::kBoth;
  DType dtype = DType::kF32;
  bool dtype_given = false;
  AttentionOptions attention;
  std::int64_t repeat = 10;
  double max_seconds = 2;  ///< time limit for one row of the table
  std::int64_t threads = 0;
  std::filesystem::path json, csv;
};

/// Options of `attend compile`.
struct CompileOptions {
  std::vector<std::string> archs;  ///< names of architectures; never empty, and all are known
  std::string compute = "all";     ///< the name of a kernel family, or "all"
  /// If true, compiles only so many variants that every value of a parameter occurs once (cuda::covering_specs).
  bool cover = false;
  std::filesystem::path json;
};

/// Options of `attend ladder`.
struct LadderOptions {
  std::vector<std::string> computes;  ///< names of rungs and product families; empty selects all
  std::int64_t repeat = 10;
  double max_seconds = 4;  ///< time limit for one step
  std::filesystem::path json;
};

/// Options of `attend sweep`.
struct SweepOptions {
  struct Setting {
    std::string name;  ///< name of a tunable parameter
    std::vector<std::int32_t> values;
  };
  std::string compute;  ///< name of a kernel family
  io::FolderSpec spec;
  AttentionOptions attention;
  Mode mode = Mode::kForward;  ///< kForward or kBackward
  std::vector<Setting> settings;
  std::int64_t repeat = 15;
  double max_seconds = 2;  ///< time limit for one variant
  std::filesystem::path json;
};

/// Options of `attend info`.
struct InfoOptions {
  bool json = false;
};

/// Options of `attend info --explain B,H,S,D`.
struct ExplainOptions {
  io::FolderSpec spec;
  AttentionOptions attention;
  /// Whether each tensor of core::kScoreTensors is present, with separate values for every head.
  std::array<bool, core::kScoreTensors.size()> score_tensors = {};
  std::optional<DeviceType> device;  ///< if unset, a GPU if there is one
  bool json = false;
};

/// Options of `attend ring`.
struct RingOptions {
  enum class Over { kAutomatic, kThreads, kNccl, kMpi };
  io::FolderSpec spec;  ///< sizes of the complete sequence
  AttentionOptions attention;
  RingParams ring;
  Mode mode = Mode::kBoth;
  Over over = Over::kAutomatic;
  bool copy_engines = true;          ///< if true, copy engines transfer data between GPUs in a ring over NCCL
  std::optional<DeviceType> device;  ///< if unset, GPUs if there are any
  /// If 0, the ranks of mpirun, or one rank per GPU, but at least two.
  std::int64_t ranks = 0;
  std::int64_t threads = 0;  ///< threads of each rank; 0 gives each rank an equal share of the cores
  std::int64_t repeat = 5;
  bool explain = false;
  std::filesystem::path json;
};

/// Options of `attend cache`.
struct CacheOptions {
  enum class Action { kShow, kClear, kLimit };
  Action action = Action::kShow;
  bool json = false;
};

}  // namespace attend::cli
