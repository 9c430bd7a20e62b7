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
      .batch = 2, .num_heads = 8, .seqlen_q = 512, .head_dim = 64};  ///< sizes and dtype, already checked by the parser
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

  /// Returns these options as the library's Params. The result refers to the characters of `compute`, which must
  /// outlive it.
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
  std::optional<std::string> score;       ///< source text of a score function
  std::optional<std::string> block_mask;  ///< source text of a mask function
  /// Names and .npy files of the tensors that both functions may read.
  std::vector<std::pair<std::string, std::filesystem::path>> captures;
  std::filesystem::path output_dir;
  std::optional<RingParams> ring;  ///< set if the computation runs on the ranks of a ring
  /// Number of ranks, if the ranks are threads of this process. If 0, the ranks are the processes of an mpirun.
  std::int64_t ranks = 0;
  bool check = false;
  std::int64_t repeat = 1;
  std::int64_t threads = 0;  ///< 0 selects the library's default
  std::filesystem::path json, csv;
};

/// Options of `attend bench`.
struct BenchOptions {
  std::string grid = "seed";  ///< "seed", "paper", "gpt3", "masks", or the path of a grid file
  /// If set, the only problem to time, instead of those of the grid. With the grid "masks", it sets the sizes of every
  /// problem.
  std::optional<io::FolderSpec> problem;
  std::optional<DeviceType> device;   ///< if unset, the device on which the backends compute
  std::vector<std::string> computes;  ///< names of backends; never empty
  Mode mode = Mode::kBoth;
  DType dtype = DType::kF32;
  bool dtype_given = false;
  AttentionOptions attention;
  std::int64_t repeat = 10;
  double max_seconds = 2;  ///< time limit in seconds for one row of the table
  std::int64_t threads = 0;
  std::filesystem::path json, csv;
};

/// Options of `attend compile`.
struct CompileOptions {
  std::vector<std::string> archs;  ///< names of known architectures; at least one
  std::string compute = "all";     ///< the name of a kernel family, or "all"
  /// If true, compiles a small set of variants that contains each value of each compile-time parameter
  /// (cuda::covering_specs).
  bool cover = false;
  std::filesystem::path json;
};

/// Options of `attend ladder`.
struct LadderOptions {
  std::vector<std::string> computes;  ///< names of the rungs and kernel families to time; if empty, all are timed
  std::int64_t repeat = 10;
  double max_seconds = 4;  ///< time limit in seconds for each rung or family
  std::filesystem::path json;
};

/// Options of `attend sweep`.
struct SweepOptions {
  struct Setting {
    std::string name;  ///< name of a tunable compile-time parameter
    std::vector<std::int32_t> values;
  };
  std::string compute;  ///< name of a kernel family
  io::FolderSpec spec;
  AttentionOptions attention;
  Mode mode = Mode::kForward;  ///< kForward or kBackward
  std::vector<Setting> settings;
  std::int64_t repeat = 15;
  double max_seconds = 2;  ///< time limit in seconds for one variant
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
  /// One element for each tensor of core::kScoreTensors. If true, the problem has this tensor, with separate values for
  /// every head.
  std::array<bool, core::kScoreTensors.size()> score_tensors = {};
  std::optional<DeviceType> device;  ///< if unset, a GPU is used if there is one
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
  bool copy_engines = true;          ///< if true, the GPUs' copy engines transfer the data of a ring over NCCL
  std::optional<DeviceType> device;  ///< if unset, GPUs are used if there are any
  /// Number of ranks. If 0, the number of processes of mpirun. Without mpirun, 0 means one rank per GPU, but at least
  /// two.
  std::int64_t ranks = 0;
  std::int64_t threads = 0;  ///< number of threads of each rank; if 0, each rank uses an equal share of the cores
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
