// A rung of the ladder as the host sees it: what it supports, and which kernels it puts on the stream in which order.
// The tables are in rungs_*.cpp, one for each family; rung_launch.cpp does what they say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cuda/driver/arch.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "kernels/common/config_enums.cuh"

namespace attend::cuda {

/// Options of attention beyond the plain ones, on or off: what kernels that take them are compiled for.
struct OptionSet {
  bool softcap = false;
  bool alibi = false;
  bool bool_mask = false;
  bool dropout = false;
  bool varlen = false;
  std::optional<DType> bias = {};
  std::optional<DType> dbias = {};  ///< of the bias's gradient, where it is asked for
  bool dbias_over_rows = false;     ///< it is a sum over the rows
};

/// What a variant of a rung is compiled for.
struct RungConfig {
  DType dtype = DType::kF32;
  int head_dim = 64;
  int head_dim_v = 64;
  MaskKind mask = MaskKind::kFull;
  bool negate_scores = false;  ///< the scale was negative: kernels that fold it into the exponent get its magnitude
  int max_smem_per_block =
      0;                ///< bytes, of the device or architecture: tables may choose smaller tiles where it is less
  bool aligned = true;  ///< all tensors allow loads of 16 bytes; rungs with `alignment` 16 are always given true
  /// The query rows of all heads make at least four tiles of 128 for each multiprocessor; with fewer, tables may choose
  /// smaller tiles, so that every multiprocessor gets some.
  bool many_rows = true;
  /// Heads have at most 32 query rows, or the rows of all heads make less than one tile of 64 for each multiprocessor.
  bool few_rows = false;
  OptionSet options = {};  ///< for rungs with `takes_options`
};

/// What the blocks of a launch divide among themselves, in this order of the index: tiles of a head fastest.
enum class Grid {
  kRowTiles,    ///< tiles of block_m query rows, of every query head
  kKeyTiles,    ///< tiles of block_n keys, of every key head
  kScoreTiles,  ///< tiles of block_m rows and block_n keys (keys fastest), of every query head
  kQueryHeads,  ///< one block for each query head
};

/// The parameter that a kernel takes.
enum class StepArgs { kForward, kForwardTma, kForwardOptions, kBackward, kBackwardOptions };

/// One launch. Its Config is kHeadDim, kHeadDimV, kElement, kMask, kNegateScores, kThreads, kBlockM, kBlockN,
/// kSmemBytes, for the option arguments kHasSoftcap, kHasAlibi, kHasBias, kBiasElement, kHasBoolMask, kHasDropout,
/// kIsVarlen and kColumnParts, and what `constants` adds.
struct Step {
  std::string function;  ///< template <class Config> __device__ void in the rung's file
  Grid grid = Grid::kRowTiles;
  int block_m = 64;  ///< query rows of a tile
  int block_n = 64;  ///< keys of a tile
  int threads = 128;
  unsigned smem_bytes = 0;  ///< dynamic; the kernel asserts that its SharedStorage has this size
  std::vector<Constant> constants = {};
  StepArgs args = StepArgs::kForward;
  int min_blocks = 0;    ///< blocks that have to fit on a multiprocessor together; 0: the compiler's choice
  int column_parts = 1;  ///< blocks that share a tile and write some columns of the result each
  std::int64_t (*blocks)(const Step&, const core::Problem&) = nullptr;  ///< how many; null: as `grid` says
};

/// One rung.
struct Rung {
  int number = 0;
  const char* name = "";                  ///< the same on the command line, in the file's name and in the tables
  const char* description = "";           ///< one line
  const char* source = "";                ///< below kernels/
  const char* backward_source = nullptr;  ///< of the steps that take BackwardArgs; null: source
  std::vector<DType> dtypes = {};
  std::vector<int> head_dims = {};     ///< that it supports; empty: 1 to max_head_dim
  int max_head_dim = 512;              ///< where head_dims is empty
  bool any_head_dim_v = false;         ///< else head_dim_v has to be head_dim
  int alignment = 1;                   ///< bytes that base addresses and strides have to be multiples of
  bool folds_scale = false;            ///< wants scale > 0 and RungConfig::negate_scores
  bool deterministic_backward = true;  ///< bit-equal from run to run
  bool in_auto = false;                ///< compute "auto" tries it; the others are lessons
  bool takes_options = false;          ///< every option of the interface; else full and causal masks alone
  bool toolkit_headers = false;        ///< needs the CUDA toolkit's include folder (mma.h)
  bool claims_no_spills = true;        ///< a spill or a stack frame in any variant is a defect
  std::size_t max_workspace = std::numeric_limits<std::size_t>::max();  ///< bytes; problems that want more are refused
  bool (*supports)(const Arch&) = nullptr;  ///< has the instructions; null: every architecture
  std::vector<Step> (*forward)(const RungConfig&) = nullptr;
  std::vector<Step> (*backward)(const RungConfig&) = nullptr;        ///< null: forward only
  std::size_t (*forward_workspace)(const core::Problem&) = nullptr;  ///< bytes; null: none
  std::size_t (*backward_workspace)(const core::Problem&) = nullptr;
};

/// The constant that names an element type.
[[nodiscard]] EnumConstant element_constant(DType dtype);

/// The kernel of one step.
[[nodiscard]] KernelSpec step_spec(const Rung& rung, const Step& step, const RungConfig& config, const Arch& arch);

/// One line saying what the rung lacks for this problem, or nothing.
[[nodiscard]] std::optional<std::string> rung_lack(const Rung& rung, const core::Problem& problem);

/// Are the addresses, row lengths and strides of all tensors of the problem multiples of `bytes`?
[[nodiscard]] bool is_aligned(const core::Problem& problem, int bytes);

/// Puts the rung's kernels on the stream. The problem is one that it does not lack anything for.
void rung_forward(const Rung& rung, const core::Problem& problem, Stream stream);
void rung_backward(const Rung& rung, const core::Problem& problem, Stream stream);

}  // namespace attend::cuda
