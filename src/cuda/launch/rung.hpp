// The host side of a rung. The ladder is a series of tutorial kernels, from simple to fast, and each of its kernels is
// a rung. A rung lists the problems that it supports and the kernels that it launches. The tables of rungs are in
// rungs_*.cpp. rung_family.cpp makes a kernel family of each rung. Rungs support no options.
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

/// Compile-time parameters of a rung's kernels.
struct RungConfig : Facts {
  /// Largest shared memory of a block on the device, in bytes. If it is small, rungs may choose smaller tiles.
  std::int32_t max_smem_per_block = 0;
  /// Whether the query rows of all heads make at least four tiles of 128 rows per multiprocessor. If not, rungs may
  /// choose smaller tiles, so that every multiprocessor has work.
  std::int32_t many_rows = 1;
};

/// How the work of a launch is divided among blocks. Blocks with consecutive indices have consecutive tiles of one
/// head. The tiles of the next head follow.
enum class Grid {
  kRowTiles,  ///< one block per tile of block_m query rows of each query head
  kKeyTiles,  ///< one block per tile of block_n keys of each key head
  /// One block per tile of block_m rows and block_n keys of each query head. Blocks with consecutive indices have
  /// consecutive key tiles.
  kScoreTiles,
  kQueryHeads,  ///< one block per query head
};

/// The part of a problem that one block processes, and the resources of the block.
struct RungTile {
  int block_m = 64;  ///< query rows
  int block_n = 64;  ///< keys
  int threads = 128;
  /// Bytes of dynamic shared memory; the kernel asserts that its SharedStorage has the same size.
  int smem_bytes = 0;
  int min_blocks = 1;  ///< number of blocks that must be resident on a multiprocessor at the same time
};

inline constexpr Field<RungTile> kRungFields[] = {
    {nullptr, "kThreads", number<&RungTile::threads>}, {nullptr, "kBlockM", number<&RungTile::block_m>},
    {nullptr, "kBlockN", number<&RungTile::block_n>},  {nullptr, "kSmemBytes", number<&RungTile::smem_bytes>},
    {nullptr, nullptr, unread<&RungTile::min_blocks>},
};
static_assert(covers<RungTile>(kRungFields));

/// One kernel launch. Its Config contains the constants of RungConfig, the constants of `tile`, and `constants`.
struct Step {
  /// Name of a `template <class Config> __device__ void` function in the rung's file. If empty, the function is
  /// NAME_forward, where NAME is the name of the rung.
  std::string function = {};
  Grid grid = Grid::kRowTiles;
  RungTile tile = {};
  std::vector<Constant> constants = {};
  /// Whether the kernel's argument is ForwardTmaArgs. If false, it is ForwardArgs or BackwardArgs.
  bool takes_maps = false;
};

/// Returns the launches of a variant, in order.
using StepsOf = std::vector<Step> (*)(const RungConfig&);

/// One rung. Its kernel is in kernels/ladder/NN_name.cuh, where NN is the number of the rung.
struct Rung {
  int number = 0;
  /// Name on the command line, in file names and in tables.
  const char* name = "";
  const char* description = "";  ///< description in one line
  /// File of the backward kernels, relative to kernels/. Null if the forward file contains them.
  const char* backward_source = nullptr;
  std::vector<DType> dtypes = {DType::kF32};
  std::vector<int> head_dims = {};  ///< supported values of head_dim; if empty, all from 1 to max_head_dim
  int max_head_dim = 128;           ///< used if head_dims is empty
  bool any_head_dim_v = false;      ///< if false, head_dim_v must equal head_dim
  /// Whether addresses, row lengths and strides must be multiples of 16 bytes.
  bool needs_alignment = false;
  bool folds_scale = false;            ///< whether the kernels require a scale > 0 and read Facts::negate_scores
  bool deterministic_backward = true;  ///< whether gradients are bit-identical from run to run
  /// TFLOP/s on a fully occupied H200 for large problems, for the time estimate of "auto". If 0, "auto" never chooses
  /// the rung.
  double tflops = 0;
  int blocks_per_multiprocessor = 1;     ///< number of resident blocks per multiprocessor at that speed
  bool toolkit_headers = false;          ///< whether the kernels need the include folder of the CUDA toolkit (mma.h)
  std::size_t max_workspace = SIZE_MAX;  ///< largest workspace in bytes; problems that need more are refused
  bool Arch::*instructions = nullptr;    ///< instructions that the kernels require; null if every architecture has them
  StepsOf forward = nullptr;
  StepsOf backward = nullptr;  ///< launches of the backward pass; null if the rung supports only the forward pass
  /// Returns the size in bytes of the workspace for the problem's pass. Null if the rung needs no workspace.
  std::size_t (*workspace)(const core::Problem&) = nullptr;
};

/// Returns a rung that uses tensor cores. It supports float16 and bfloat16 and head_dim 64 and 128. It requires
/// alignment to 16 bytes.
[[nodiscard]] Rung half_rung(int number, const char* name, const char* description, StepsOf forward);

/// Returns all rungs that run on a GPU, by number.
[[nodiscard]] std::span<const Rung> ladder();

// Each of the following functions returns the rungs of one file, by number.
[[nodiscard]] std::vector<Rung> simt_rungs();   ///< rungs 01 to 07: rungs_simt.cpp
[[nodiscard]] std::vector<Rung> fa2_rungs();    ///< rung 08: rungs_fa2.cpp
[[nodiscard]] std::vector<Rung> mma_rungs();    ///< rungs 09 to 15: rungs_mma.cpp
[[nodiscard]] std::vector<Rung> wgmma_rungs();  ///< rungs 16 to 18: rungs_wgmma.cpp

}  // namespace attend::cuda
