// A rung of the ladder on the host: the problems that it supports and the kernels that it launches, in order. The
// tables are in rungs_*.cpp. rung_family.cpp makes a family of each rung. Rungs are lessons and support no options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cuda/driver/arch.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "cuda/launch/fields.hpp"

namespace attend::cuda {

/// Compile-time facts of a rung's variant.
struct RungConfig : Facts {
  /// Largest shared memory of a block on the device, in bytes. Tables may choose smaller tiles if it is small.
  std::int32_t max_smem_per_block = 0;
  /// Whether the query rows of all heads make at least four tiles of 128 per multiprocessor. With fewer rows, tables
  /// may choose smaller tiles so that every multiprocessor has work.
  std::int32_t many_rows = 1;
};

/// How the blocks of a launch divide the work. Block indices run through the tiles of a head first.
enum class Grid {
  kRowTiles,  ///< one block per tile of block_m query rows of each query head
  kKeyTiles,  ///< one block per tile of block_n keys of each key head
  /// One block per tile of block_m rows and block_n keys of each query head. Key tiles vary fastest.
  kScoreTiles,
  kQueryHeads,  ///< one block per query head
};

/// The part of a problem that one block works on.
struct RungTile {
  int block_m = 64;  ///< query rows
  int block_n = 64;  ///< keys
  int threads = 128;
  int smem_bytes = 0;  ///< dynamic; the kernel asserts that its SharedStorage has this size
  int min_blocks = 1;  ///< blocks that must be resident on a multiprocessor at the same time
};

inline constexpr Field<RungTile> kRungFields[] = {
    {nullptr, "kThreads", number<&RungTile::threads>}, {nullptr, "kBlockM", number<&RungTile::block_m>},
    {nullptr, "kBlockN", number<&RungTile::block_n>},  {nullptr, "kSmemBytes", number<&RungTile::smem_bytes>},
    {nullptr, nullptr, unread<&RungTile::min_blocks>},
};
static_assert(covers<RungTile>(kRungFields));

/// One launch. Its Config has the constants of the facts, the constants of the tile, and `constants`.
struct Step {
  /// A template <class Config> __device__ void function in the rung's file. If empty, NAME_forward.
  std::string function = {};
  Grid grid = Grid::kRowTiles;
  RungTile tile = {};
  std::vector<Constant> constants = {};
  /// If true, the kernel's argument is ForwardTmaArgs; otherwise ForwardArgs or BackwardArgs.
  bool takes_maps = false;
};

/// Returns the kernels that a variant launches, in launch order.
using StepsOf = std::vector<Step> (*)(const RungConfig&);

/// One rung. Its kernel is in kernels/ladder/NN_name.cuh.
struct Rung {
  int number = 0;
  /// Name on the command line, in the file name and in the tables.
  const char* name = "";
  const char* description = "";  ///< one line
  /// File of the gradient kernels, relative to kernels/, if it is a separate file.
  const char* backward_source = nullptr;
  std::vector<DType> dtypes = {DType::kF32};
  std::vector<int> head_dims = {};  ///< supported head_dims; if empty, 1 to max_head_dim
  int max_head_dim = 128;           ///< used if head_dims is empty
  bool any_head_dim_v = false;      ///< if false, head_dim_v must equal head_dim
  /// Requires addresses, rows and strides that are multiples of 16 bytes.
  bool needs_alignment = false;
  bool folds_scale = false;            ///< requires scale > 0 and reads Facts::negate_scores
  bool deterministic_backward = true;  ///< bit-identical from run to run
  /// Rate of a fully occupied H200 on large problems, for the estimate of "auto". 0 excludes the rung from "auto".
  double tflops = 0;
  int blocks_per_multiprocessor = 1;     ///< resident blocks at that rate
  bool toolkit_headers = false;          ///< needs the CUDA toolkit's include folder (mma.h)
  std::size_t max_workspace = SIZE_MAX;  ///< in bytes; problems that need more are refused
  bool Arch::*instructions = nullptr;    ///< required instructions; null if every architecture has them
  StepsOf forward = nullptr;
  StepsOf backward = nullptr;  ///< null: forward only
  /// Returns the workspace of the problem's pass in bytes. Null: no workspace.
  std::size_t (*workspace)(const core::Problem&) = nullptr;
};

/// Returns a rung on tensor cores: float16 and bfloat16, head_dim 64 and 128, loads of 16 bytes.
[[nodiscard]] Rung half_rung(int number, const char* name, const char* description, StepsOf forward);

/// Returns every rung that runs on a GPU, in order.
[[nodiscard]] std::span<const Rung> ladder();

// The tables of the rungs.
[[nodiscard]] std::vector<Rung> simt_rungs();   ///< 01 to 07: rungs_simt.cpp
[[nodiscard]] std::vector<Rung> fa2_rungs();    ///< 08: rungs_fa2.cpp
[[nodiscard]] std::vector<Rung> mma_rungs();    ///< 09 to 15: rungs_mma.cpp
[[nodiscard]] std::vector<Rung> wgmma_rungs();  ///< 16 to 18: rungs_wgmma.cpp

}  // namespace attend::cuda
