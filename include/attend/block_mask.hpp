// Custom masks. A BlockMask divides rows and keys into tiles and stores which keys each row sees. Kernels skip empty
// tiles.
//
//   const attend::MaskFunction documents("k <= q && doc[q] == doc[k]", {{"doc", {.data = doc, .dtype = DType::kI32,
//                                                                                .shape = {8192}}}});
//   const attend::BlockMask mask = attend::make_block_mask(documents, {.seqlen_q = 8192, .seqlen_k = 8192});
//   attend::forward({.q = q, .k = k, .v = v, .o = o, .lse = lse, .params = {.block_mask = &mask}});
//   attend::backward({..., .params = {.block_mask = &mask}});
//
// docs/custom_scores.md describes the expression language and has a cookbook.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attend/export.hpp"
#include "attend/score_function.hpp"
#include "attend/tensor.hpp"

namespace attend {
namespace core {
struct BlockTiles;
}

/// A function that returns whether row q sees key k. Its expression may use these names:
///
///   b             index of the sequence
///   h             query head
///   q, k          row and key, both counted from 0 at the beginning of the sequence. Row 0 aligns with key 0;
///                 Params::causal instead aligns the last row with the last key
///   q_len, k_len  number of rows and of keys
///
/// The text is an expression in the language of ScoreFunction, but cannot use `score`. A result other than 0 means
/// true. Captured tensors must meet the same conditions as those of ScoreFunction. Copies share one immutable state.
/// All functions are thread-safe.
class ATTEND_API MaskFunction {
 public:
  /// @param text      the expression
  /// @param captures  at most ScoreFunction::kMostCaptures tensors. The constructor does not read their memory.
  /// @throws Error (kInvalidArgument) naming the invalid capture, or the column of the text that has an error.
  explicit MaskFunction(std::string_view text, std::vector<ScoreCapture> captures = {});

  /// The class can be copied but not moved, because a moved-from MaskFunction would have no state.
  MaskFunction(const MaskFunction&) = default;
  MaskFunction& operator=(const MaskFunction&) = default;

  [[nodiscard]] const std::string& text() const noexcept;                    ///< the expression that was passed
  [[nodiscard]] const std::vector<ScoreCapture>& captures() const noexcept;  ///< the captures that were passed

  /// For the library's own use.
  struct State;
  [[nodiscard]] const State& state() const noexcept { return *state_; }

 private:
  std::shared_ptr<const State> state_;
};

/// Sizes of the calls that use a mask. If the function does not use b (or h), the mask may be used with any number of
/// sequences (or query heads). Otherwise `batch` (or `num_heads`) must equal that of the call.
struct BlockMaskShape {
  std::int64_t batch = 1;      ///< number of sequences
  std::int64_t num_heads = 1;  ///< number of query heads
  std::int64_t seqlen_q = 0;   ///< number of rows in a sequence
  std::int64_t seqlen_k = 0;   ///< number of keys in a sequence
};

/// The visible pairs of rows and keys, in tiles of 64 rows and 64 keys. A partially visible tile has a bit pattern.
/// Equal patterns are stored once. The mask uses 8 bytes for each row of tiles, 12 bytes for each run of neighbouring
/// full tiles, 12 bytes for each partial tile, and 520 bytes for each pattern. Copies share one immutable state. All
/// functions are thread-safe.
class ATTEND_API BlockMask {
 public:
  static constexpr std::int64_t kTile = 64;  ///< number of rows, and of keys, in a tile

  /// Returns the sizes. batch is 1 if the function does not use b, and num_heads is 1 if it does not use h.
  [[nodiscard]] BlockMaskShape shape() const noexcept;

  /// Numbers of tiles, counted over all sequences and heads of shape().
  struct Tiles {
    std::int64_t all;       ///< total number of tiles; a tile that is neither full nor partial is empty
    std::int64_t full;      ///< tiles in which every row sees every key
    std::int64_t partial;   ///< tiles in which some pairs are visible
    std::int64_t patterns;  ///< number of different patterns of partial tiles
  };
  [[nodiscard]] Tiles tiles() const noexcept;  ///< Returns the numbers of tiles.

  /// Returns the number of visible pairs divided by the number of all pairs. Returns 1 if there are no pairs.
  [[nodiscard]] double density() const noexcept;

  /// Returns the number of bytes of memory that the mask uses.
  [[nodiscard]] std::size_t bytes() const noexcept;

  /// Returns whether a row sees a key.
  /// @throws Error (kInvalidArgument) naming the index that is not within shape().
  [[nodiscard]] bool sees(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t key) const;

  /// The class can be copied but not moved, because a moved-from BlockMask would have no state.
  BlockMask(const BlockMask&) = default;
  BlockMask& operator=(const BlockMask&) = default;

  /// For the library's own use.
  explicit BlockMask(std::shared_ptr<const core::BlockTiles> tiles) noexcept;
  [[nodiscard]] const std::shared_ptr<const core::BlockTiles>& state() const noexcept { return tiles_; }

 private:
  std::shared_ptr<const core::BlockTiles> tiles_;
};

/// Device on which make_block_mask() evaluates the function.
struct BlockMaskPlace {
  Device device = {};  ///< a CPU or a GPU
  /// Stream of the GPU. The mask is made in the order of this stream, which must not be capturing a graph.
  Stream stream = nullptr;
};

/// Evaluates a function and returns the mask. For each tile, the call first computes bounds of the function. If the
/// bounds show that all pairs of the tile have the same result, the pairs are not evaluated one by one. Therefore the
/// time for a causal mask or sorted documents grows linearly with seqlen. To compute bounds, the call uses the minimum
/// and maximum of each block of 64 elements of a capture along its last dimension. It can do this only if the other
/// subscripts are constant within a tile and if there are at most 2^20 blocks. Captured tensors are read once, in this
/// call. The result is bit-identical on every device and in every run.
///
/// On a CPU, cpu_threads() threads compute the mask, and captured tensors must be in host memory.
///
/// On a GPU, captured tensors must be on that GPU, or in host memory, from which the call copies them. The call waits
/// for the stream and returns when the mask is complete. Calls on any device can then use the mask. During the call,
/// the mask uses about 8 bytes of GPU memory for each tile, and 1 KiB for each pattern. The memory for patterns has
/// room for at least 8192 patterns, or for one pattern per tile if there are fewer tiles. The first mask with a new
/// text compiles four small kernels, which are cached like attention kernels. The text may use arithmetic, comparisons,
/// sqrt and rounding. It must not use exp, log, sin and similar functions, because their last bits differ on a GPU.
///
/// @throws Error with one of these codes. kInvalidArgument means that a size is out of range, a capture is on another
///   device, or the stream is being captured. Allowed sizes are 1 to 2^31 - 1 for batch and num_heads, 0 to 2^31 - 1
///   for seqlen_q and seqlen_k, 2^28 rows of tiles in total, and 2^31 - 1 tiles on a GPU. kUnsupported means that the
///   text uses exp or a similar function on a GPU. kMissingHardware means that there is no such GPU. kInternal means
///   that memory is exhausted.
[[nodiscard]] ATTEND_API BlockMask make_block_mask(const MaskFunction& mask, const BlockMaskShape& shape,
                                                   const BlockMaskPlace& place = {});

}  // namespace attend
