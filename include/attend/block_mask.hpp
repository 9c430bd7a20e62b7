// Custom masks. A BlockMask states which keys each row sees, in tiles; kernels skip empty tiles.
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

/// A predicate: does row q see key k? The expression may use:
///
///   b             index of the sequence
///   h             query head
///   q, k          row and key, both counted from 0 at the beginning of the sequence. Row 0 aligns with key 0;
///                 Params::causal instead aligns the last row with the last key
///   q_len, k_len  number of rows and of keys
///
/// The text is an expression in the language of ScoreFunction, without `score`; a number other than 0 is true. Captured
/// tensors follow the rules of ScoreFunction. Copies share one immutable state. Thread-safe.
class ATTEND_API MaskFunction {
 public:
  /// @param text      the expression
  /// @param captures  at most ScoreFunction::kMostCaptures. Their memory is not read here.
  /// @throws Error (kInvalidArgument) naming the column of the text, or the capture.
  explicit MaskFunction(std::string_view text, std::vector<ScoreCapture> captures = {});

  /// Copy only: a moved-from MaskFunction would have no state.
  MaskFunction(const MaskFunction&) = default;
  MaskFunction& operator=(const MaskFunction&) = default;

  [[nodiscard]] const std::string& text() const noexcept;                    ///< the expression, as passed
  [[nodiscard]] const std::vector<ScoreCapture>& captures() const noexcept;  ///< the captures, as passed

  /// For the library's own use.
  struct State;
  [[nodiscard]] const State& state() const noexcept { return *state_; }

 private:
  std::shared_ptr<const State> state_;
};

/// Lengths of the calls that use a mask. If the function does not use b (or h), the mask fits any number of sequences
/// (or query heads), whatever batch (num_heads) is. Otherwise they must equal those of the call.
struct BlockMaskShape {
  std::int64_t batch = 1;      ///< sequences
  std::int64_t num_heads = 1;  ///< query heads
  std::int64_t seqlen_q = 0;   ///< rows of a sequence
  std::int64_t seqlen_k = 0;   ///< keys of a sequence
};

/// The visible pairs of rows and keys, in tiles of 64 rows and 64 keys. A partially visible tile has a bit pattern;
/// equal patterns are stored once. Memory: 8 bytes for each 64 rows, 12 bytes for each run of neighbouring full tiles
/// and for each partial tile, and 520 bytes for each pattern. Copies share one immutable state. Thread-safe.
class ATTEND_API BlockMask {
 public:
  static constexpr std::int64_t kTile = 64;  ///< rows, and keys, of a tile

  /// Returns the shape. batch is 1 if the function does not use b, and num_heads is 1 if it does not use h.
  [[nodiscard]] BlockMaskShape shape() const noexcept;

  /// Numbers of tiles, over all sequences and heads of shape().
  struct Tiles {
    std::int64_t all;       ///< all tiles; those neither full nor partial are empty
    std::int64_t full;      ///< tiles in which every row sees every key
    std::int64_t partial;   ///< tiles in which some pairs are visible
    std::int64_t patterns;  ///< distinct patterns of the partial tiles
  };
  [[nodiscard]] Tiles tiles() const noexcept;  ///< Returns the numbers of tiles.

  /// Returns the visible fraction of all pairs, from 0 to 1; 1 if there are no pairs.
  [[nodiscard]] double density() const noexcept;

  /// Returns the bytes of memory that the mask uses.
  [[nodiscard]] std::size_t bytes() const noexcept;

  /// Returns whether a row sees a key.
  /// @throws Error (kInvalidArgument) naming the index that is not within shape().
  [[nodiscard]] bool sees(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t key) const;

  /// Copy only: a moved-from BlockMask would have no state.
  BlockMask(const BlockMask&) = default;
  BlockMask& operator=(const BlockMask&) = default;

  /// For the library's own use.
  explicit BlockMask(std::shared_ptr<const core::BlockTiles> tiles) noexcept;
  [[nodiscard]] const std::shared_ptr<const core::BlockTiles>& state() const noexcept { return tiles_; }

 private:
  std::shared_ptr<const core::BlockTiles> tiles_;
};

/// The device on which a mask is made.
struct BlockMaskPlace {
  Device device = {};       ///< a CPU, or a GPU
  Stream stream = nullptr;  ///< stream of the GPU, in whose order the mask is made. It must not be capturing a graph
};

/// Evaluates a function to a mask. If the function's bounds show that all pairs of a tile are equal, the tile is not
/// evaluated pair by pair. The time for a causal mask or sorted documents therefore grows linearly with seqlen.
/// Elements of a capture have bounds per block of 64 along the last dimension, if the other subscripts are known and
/// there are at most 2^20 blocks. Captured tensors are read once, in this call. The result is bit-identical on every
/// device and in every run.
///
/// On a CPU, cpu_threads() threads compute the mask. Captured tensors must lie on a CPU.
///
/// On a GPU, captured tensors lie on that GPU or on a CPU, from which they are copied. The call waits for the stream
/// and returns when the mask is complete; calls on any device can then use the mask. During the call, the mask needs
/// about 8 bytes of GPU memory for each 64 rows and 64 keys, and 1 KiB for each pattern, with room for at least 8192
/// patterns or one per tile. The first mask of a text compiles four small kernels, which are cached like attention
/// kernels. The text may use arithmetic, comparisons, sqrt and rounding, but no exp, log, sin and similar functions,
/// whose last bits differ on a GPU.
///
/// @throws Error (kInvalidArgument) naming a size out of range (batch, num_heads: 1 to 2^31 - 1; seqlen_q, seqlen_k: 0
///   to 2^31 - 1; 2^28 rows of tiles in all; on a GPU 2^31 - 1 tiles), a capture on another device, or a stream that is
///   being captured; kUnsupported for exp and similar functions on a GPU; kMissingHardware if there is no such GPU;
///   kInternal if memory runs out.
[[nodiscard]] ATTEND_API BlockMask make_block_mask(const MaskFunction& mask, const BlockMaskShape& shape,
                                                   const BlockMaskPlace& place = {});

}  // namespace attend
