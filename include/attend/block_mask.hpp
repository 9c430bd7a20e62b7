// Masks of the caller's own: which keys each row sees, in tiles of which empty ones are left out.
//
//   const attend::MaskFunction documents("k <= q && doc[q] == doc[k]", {{"doc", {.data = doc, .dtype = DType::kI32,
//                                                                                .shape = {8192}}}});
//   const attend::BlockMask mask = attend::make_block_mask(documents, {.seqlen_q = 8192, .seqlen_k = 8192});
//   attend::forward({.q = q, .k = k, .v = v, .o = o, .lse = lse, .params = {.block_mask = &mask}});
//   attend::backward({..., .params = {.block_mask = &mask}});
//
// docs/custom_scores.md has the language of the text and a cookbook.
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

/// Does row q see key k? A function of positions:
///
///   b             index of the sequence
///   h             query head
///   q, k          row and key, both counted from 0 at the beginning of the sequence (the first row is beside the first
///                 key, unlike Params::causal, which aligns the last ones)
///   q_len, k_len  number of rows and of keys
///
/// The text is an expression in the language of ScoreFunction without `score`; a number other than 0 is true. Captured
/// tensors are those of ScoreFunction. Copies share one state, which never changes. Thread-safe.
class ATTEND_API MaskFunction {
 public:
  /// @param captures  at most ScoreFunction::kMostCaptures. Their memory is not read here.
  /// @throws Error (kInvalidArgument) naming the column of the text, or the capture.
  explicit MaskFunction(std::string_view text, std::vector<ScoreCapture> captures = {});

  /// Moves copy: every MaskFunction has a state.
  MaskFunction(const MaskFunction&) = default;
  MaskFunction& operator=(const MaskFunction&) = default;

  [[nodiscard]] const std::string& text() const noexcept;                    ///< as it was given
  [[nodiscard]] const std::vector<ScoreCapture>& captures() const noexcept;  ///< as they were given

  /// Of the library's own.
  struct State;
  [[nodiscard]] const State& state() const noexcept { return *state_; }

 private:
  std::shared_ptr<const State> state_;
};

/// What a mask is for: calls with these lengths. If the function does not ask for b (or h), the mask is for any number
/// of sequences (or query heads), whatever batch (num_heads) says. If it does, these are the call's.
struct BlockMaskShape {
  std::int64_t batch = 1;      ///< sequences
  std::int64_t num_heads = 1;  ///< query heads
  std::int64_t seqlen_q = 0;   ///< rows of a sequence
  std::int64_t seqlen_k = 0;   ///< keys of a sequence
};

/// Which pairs of rows and keys are seen, by tiles of 64 rows and 64 keys: tiles that are seen in part have a pattern,
/// equal patterns are one. Memory: 8 bytes for each 64 rows, 12 bytes for each run of neighbouring tiles that are seen
/// in full and for each partial tile, 520 bytes for each pattern. Copies share one state, which never changes.
/// Thread-safe.
class ATTEND_API BlockMask {
 public:
  static constexpr std::int64_t kTile = 64;  ///< rows, and keys, of a tile

  /// batch is 1 if the function does not ask for b, num_heads is 1 if it does not ask for h.
  [[nodiscard]] BlockMaskShape shape() const noexcept;

  /// Numbers of tiles, of all sequences and heads of shape().
  struct Tiles {
    std::int64_t all;       ///< those that are neither full nor partial are empty
    std::int64_t full;      ///< every row of the tile sees every key of it
    std::int64_t partial;   ///< some pairs of it are seen
    std::int64_t patterns;  ///< different ones, of the partial tiles
  };
  [[nodiscard]] Tiles tiles() const noexcept;  ///< how many there are

  /// Part of all pairs that are seen, from 0 to 1; 1 if there are none.
  [[nodiscard]] double density() const noexcept;

  /// Bytes of memory.
  [[nodiscard]] std::size_t bytes() const noexcept;

  /// @throws Error (kInvalidArgument) naming the index that is not within shape().
  [[nodiscard]] bool sees(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t key) const;

  /// Moves copy: every BlockMask has a state.
  BlockMask(const BlockMask&) = default;
  BlockMask& operator=(const BlockMask&) = default;

  /// Of the library's own.
  explicit BlockMask(std::shared_ptr<const core::BlockTiles> tiles) noexcept;
  [[nodiscard]] const std::shared_ptr<const core::BlockTiles>& state() const noexcept { return tiles_; }

 private:
  std::shared_ptr<const core::BlockTiles> tiles_;
};

/// Where a mask is made.
struct BlockMaskPlace {
  Device device = {};       ///< a CPU, or a GPU
  Stream stream = nullptr;  ///< of the GPU: the mask is made in its order. Not one that is being captured
};

/// The mask that a function describes. Tiles whose pairs are all alike by the function's bounds are not evaluated: a
/// causal mask or sorted documents take time that grows with seqlen, not with its square. Elements of a capture have
/// bounds by blocks of 64 in the last dimension, where the other subscripts are known and it has at most 2^20 blocks.
/// Captured tensors are read once, here. The same result wherever it is made, bit for bit, each time.
///
/// On a CPU: cpu_threads() threads. Captured tensors lie on a CPU.
///
/// On a GPU: captured tensors lie there, or on a CPU, from where they are copied. It waits for the stream and returns
/// when the mask is made, which then is for calls on any device. Meanwhile it has about 8 bytes of the GPU's memory for
/// each 64 rows and 64 keys, and 1 KiB for each pattern, for 8192 or one a tile at least. The first mask of a text
/// compiles four small kernels, which are kept as those of attention are. The text asks for arithmetic, comparisons,
/// sqrt and rounding, but for no exp, log, sin and the like, whose last bits are other ones on a GPU.
///
/// @throws Error (kInvalidArgument) naming a size that is not allowed (batch, num_heads: 1 to 2^31 - 1; seqlen_q,
/// seqlen_k: 0 to 2^31 - 1; 2^28 rows of tiles in all, on a GPU 2^31 - 1 tiles), a capture on another device, or a
/// stream that is being captured; kUnsupported for exp and its kind on a GPU; kMissingHardware without such a GPU;
/// kInternal if memory is out.
[[nodiscard]] ATTEND_API BlockMask make_block_mask(const MaskFunction& mask, const BlockMaskShape& shape,
                                                   const BlockMaskPlace& place = {});

}  // namespace attend
