// Defines the tiles of the sm90 backward kernels for head dimensions above 256. One loading thread computes the
// description of each tile, and the other warps read it from shared memory.
//
// Only tiles of scores with a visible entry are computed and stored. The sums of the products cover only runs of 64
// rows or keys that have a visible entry in the tile, so they read no other tiles.
#pragma once

#include "../attention/sequence.cuh"
#include "../common/config_enums.cuh"
#include "sm90_backward_panels_args.cuh"
#include "sm90_backward_panels_layout.cuh"
#include "sm90_backward_work.cuh"

namespace attend {

// A range of rows or keys. It is empty if end <= begin.
struct PanelsRange {
  int begin;
  int end;

  [[nodiscard]] __device__ __forceinline__ bool is_empty() const { return end <= begin; }
};

// One query head of a sequence.
struct PanelsMatrix {
  uint32 sequence;
  int head;
  SequenceSpan span;

  // Returns matrix `number` of the panel.
  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ PanelsMatrix of(const Sm90BackwardPanelsArgs& args, uint32 number) {
    const uint32 group = args.base.num_heads_q / args.base.num_heads_k;
    const uint32 head_of_all = args.first_unit * group + number;
    const uint32 sequence = head_of_all / args.base.num_heads_q;
    return {sequence, static_cast<int>(head_of_all % args.base.num_heads_q),
            sequence_span<Config>(args.base, args.options, sequence)};
  }
  [[nodiscard]] __device__ __forceinline__ int seqlen_q() const { return static_cast<int>(span.seqlen_q); }
  [[nodiscard]] __device__ __forceinline__ int seqlen_k() const { return static_cast<int>(span.seqlen_k); }
  [[nodiscard]] __device__ __forceinline__ int offset() const { return seqlen_k() - seqlen_q(); }

  // Returns the keys of the panel that rows [row, row + kPanelsRows) see.
  [[nodiscard]] __device__ __forceinline__ PanelsRange keys_of(const Sm90BackwardPanelsArgs& args,
                                                               const BackwardBand& band, int row) const {
    const int count = min(kPanelsRows, seqlen_q() - row);
    const int begin = max(args.first_key, row + offset() - band.left);
    const int end = min(seqlen_k(), row + count + offset() + band.right);
    return {begin, count <= 0 ? begin : min(end, args.first_key + args.panel_keys)};
  }
  // Returns the rows that see a key of [key, key + kPanelsRows).
  [[nodiscard]] __device__ __forceinline__ PanelsRange rows_of(const BackwardBand& band, int key) const {
    const int end_key = min(key + kPanelsRows, seqlen_k());
    const int begin = max(0, key - offset() - band.right);
    return {begin, end_key <= key ? begin : min(seqlen_q(), end_key - offset() + band.left)};
  }
};

// Returns the position of a sequence's first row in the statistics of a query head.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int64 panels_stats_begin(const Sm90BackwardPanelsArgs& args,
                                                                  const SequenceSpan& span, uint32 sequence,
                                                                  uint32 head) {
  return (int64{span.batch} * args.base.num_heads_q + head) * args.stats_rows +
         (Config::kIsVarlen ? panels_first_row(span.q_begin, sequence) : 0);
}

// A tile of scores, of kPanelsRows rows and kPanelsScoreKeys keys.
struct alignas(8) PanelsScoreTile {
  int row;  // first row, as an index in the sequence; -1 if there are no more tiles
  int key;  // first key, as an index in the sequence
  int seqlen_q;
  int seqlen_k;
  int64 stats;    // position of the first row in the statistics
  int64 scores;   // position of the first entry in p and ds
  int is_masked;  // whether some entry is hidden or does not exist
};

// Walks over the tiles of scores of a panel. Tiles of a row tile are neighbours, so that they share rows of q and dout
// in the L2 cache.
template <class Config>
class PanelsScoreWalk {
 public:
  __device__ __forceinline__ explicit PanelsScoreWalk(const Sm90BackwardPanelsArgs& args)
      : args_(args), band_(BackwardBand::of<Config>(args.options)) {
    group_ = args.base.num_heads_q / args.base.num_heads_k;
    begin_matrix();
  }

  // Moves to tile `index`, which must not precede the current tile. Returns false if there are fewer tiles.
  [[nodiscard]] __device__ __forceinline__ bool seek(uint32 index) {
    while (number_ < args_.num_units * group_) {
      if (index < base_ + count_) {
        key_ = first_tile_key_ + static_cast<int>(index - base_) * kPanelsScoreKeys;
        return true;
      }
      base_ += count_;
      row_ += kPanelsRows;
      if (row_ >= matrix_.seqlen_q()) {
        ++number_;
        begin_matrix();
      } else {
        count_tiles();
      }
    }
    return false;
  }

  [[nodiscard]] __device__ __forceinline__ const PanelsMatrix& matrix() const { return matrix_; }
  [[nodiscard]] __device__ __forceinline__ int head_k() const { return matrix_.head / static_cast<int>(group_); }
  [[nodiscard]] __device__ __forceinline__ PanelsScoreTile tile() const {
    const int last_row = row_ + kPanelsRows - 1, last_key = key_ + kPanelsScoreKeys - 1;
    const bool is_whole = last_row < matrix_.seqlen_q() && last_key < matrix_.seqlen_k() &&
                          last_key <= row_ + matrix_.offset() + band_.right &&
                          key_ >= last_row + matrix_.offset() - band_.left;
    return {row_,
            key_,
            matrix_.seqlen_q(),
            matrix_.seqlen_k(),
            panels_stats_begin<Config>(args_, matrix_.span, matrix_.sequence, static_cast<uint32>(matrix_.head)) + row_,
            (int64{number_} * args_.matrix_rows + row_) * args_.panel_keys + (key_ - args_.first_key),
            is_whole ? 0 : 1};
  }

 private:
  __device__ __forceinline__ void begin_matrix() {
    if (number_ >= args_.num_units * group_) return;
    matrix_ = PanelsMatrix::of<Config>(args_, number_);
    row_ = 0;
    count_tiles();
  }
  __device__ __forceinline__ void count_tiles() {
    const PanelsRange keys = matrix_.keys_of(args_, band_, row_);
    const int first = (keys.begin - args_.first_key) / kPanelsScoreKeys;
    first_tile_key_ = args_.first_key + first * kPanelsScoreKeys;
    count_ = keys.is_empty() ? 0 : static_cast<uint32>((keys.end - 1 - args_.first_key) / kPanelsScoreKeys + 1 - first);
  }

  const Sm90BackwardPanelsArgs& args_;
  const BackwardBand band_;
  PanelsMatrix matrix_ = {};
  uint32 group_;
  uint32 number_ = 0;  // number of the matrix
  uint32 base_ = 0;    // number of the first tile of the row tile
  uint32 count_ = 0;   // number of tiles of the row tile
  int row_ = 0;
  int first_tile_key_ = 0;
  int key_ = 0;
};

enum PanelsGradient { kPanelsDv, kPanelsDk, kPanelsDq };

// A tile of a gradient: kPanelsRows rows, and up to kColumns columns from `column` on. Its sum consists of `runs` runs
// of `chunks` chunks. A chunk has 64 rows or keys. dk and dv have a run for each query head of the group.
struct alignas(8) PanelsProductTile {
  int gradient;  // a PanelsGradient; -1 if there are no more tiles
  int column;
  int columns;  // number of columns that exist from `column` on
  int rows;     // number of rows that exist
  int chunks;
  int runs;
  int first;       // first row or key of a run, as an index in the sequence. It is a multiple of 64
  int sum_length;  // rows or keys of the sequence; those behind it must not contribute
  int at;          // first row or key of the tile, as an index in the sequence
  int matrix;      // matrix of the first run
  int head;        // head of the first run in the B operand
  int batch;
  int64 b_begin;  // position of the sequence in the B operand
  int64 output;   // position of the tile's first row and column in the gradient
};

// The tiles of all gradients of a panel. Tiles of dk and dv come first, because a group of query heads makes them
// longer. Within a gradient, the longest tiles under a causal mask come first. Tiles of the same rows are neighbours,
// so that they share p or ds in the L2 cache.
template <class Config>
class PanelsProductList {
 public:
  __device__ __forceinline__ explicit PanelsProductList(const Sm90BackwardPanelsArgs& args)
      : args_(args), band_(BackwardBand::of<Config>(args.options)) {
    group_ = args.base.num_heads_q / args.base.num_heads_k;
    key_tiles_ = static_cast<uint32>(args.panel_keys / kPanelsRows);
    row_tiles_ = static_cast<uint32>(args.matrix_rows / kPanelsRows);
    of_keys_ = key_tiles_ * args.num_units * (kTilesV + kTiles);
    size_ = of_keys_ + row_tiles_ * args.num_units * group_ * kTiles;
  }

  // Returns the number of tiles.
  [[nodiscard]] __device__ __forceinline__ uint32 size() const { return size_; }

  // Writes tile `index`. Returns false if it does not exist.
  [[nodiscard]] __device__ __forceinline__ bool get(uint32 index, PanelsProductTile& tile) const {
    return index < of_keys_ ? key_tile(index, tile) : row_tile(index - of_keys_, tile);
  }

 private:
  static constexpr uint32 kTiles = (Config::kHeadDim + Config::kColumns - 1) / Config::kColumns;
  static constexpr uint32 kTilesV = (Config::kHeadDimV + Config::kColumns - 1) / Config::kColumns;

  [[nodiscard]] __device__ __forceinline__ bool key_tile(uint32 index, PanelsProductTile& tile) const {
    const uint32 of_unit = index % (kTilesV + kTiles), rest = index / (kTilesV + kTiles);
    const uint32 unit = rest % args_.num_units;
    const int key = args_.first_key + static_cast<int>(rest / args_.num_units) * kPanelsRows;
    const PanelsMatrix matrix = PanelsMatrix::of<Config>(args_, unit * group_);
    if (key >= matrix.seqlen_k()) return false;
    const bool is_v = of_unit < kTilesV;
    const PanelsRange rows = matrix.rows_of(band_, key);
    const int first = rows.begin / kPanelsDepth * kPanelsDepth;
    const auto head_k = static_cast<uint32>(matrix.head) / group_;
    tile.gradient = is_v ? kPanelsDv : kPanelsDk;
    tile.column = static_cast<int>(is_v ? of_unit : of_unit - kTilesV) * Config::kColumns;
    tile.columns = (is_v ? Config::kHeadDimV : Config::kHeadDim) - tile.column;
    tile.rows = matrix.seqlen_k() - key;
    tile.chunks = rows.is_empty() ? 0 : (rows.end - first + kPanelsDepth - 1) / kPanelsDepth;
    tile.runs = static_cast<int>(group_);
    tile.first = first;
    tile.sum_length = matrix.seqlen_q();
    tile.at = key;
    tile.matrix = static_cast<int>(unit * group_);
    tile.head = matrix.head;
    tile.batch = static_cast<int>(matrix.span.batch);
    tile.b_begin = matrix.span.q_begin;
    tile.output = (is_v ? args_.base.dv_stride : args_.base.dk_stride)
                      .offset(matrix.span.batch, head_k, matrix.span.k_begin + key) +
                  tile.column;
    return true;
  }

  [[nodiscard]] __device__ __forceinline__ bool row_tile(uint32 index, PanelsProductTile& tile) const {
    const uint32 column = index % kTiles, rest = index / kTiles;
    const uint32 number = rest % (args_.num_units * group_);
    const int row = static_cast<int>(row_tiles_ - 1 - rest / (args_.num_units * group_)) * kPanelsRows;
    const PanelsMatrix matrix = PanelsMatrix::of<Config>(args_, number);
    if (row >= matrix.seqlen_q()) return false;
    const PanelsRange keys = matrix.keys_of(args_, band_, row);
    const int first = keys.begin / kPanelsDepth * kPanelsDepth;
    tile.gradient = kPanelsDq;
    tile.column = static_cast<int>(column) * Config::kColumns;
    tile.columns = Config::kHeadDim - tile.column;
    tile.rows = matrix.seqlen_q() - row;
    tile.chunks = keys.is_empty() ? 0 : (keys.end - first + kPanelsDepth - 1) / kPanelsDepth;
    tile.runs = 1;
    tile.first = first;
    tile.sum_length = matrix.seqlen_k();
    tile.at = row;
    tile.matrix = static_cast<int>(number);
    tile.head = matrix.head / static_cast<int>(group_);
    tile.batch = static_cast<int>(matrix.span.batch);
    tile.b_begin = matrix.span.k_begin;
    tile.output = matrix.span.query_offset(args_.base.dq_stride, static_cast<uint32>(matrix.head), row) + tile.column;
    return true;
  }

  const Sm90BackwardPanelsArgs& args_;
  const BackwardBand band_;
  uint32 group_, key_tiles_, row_tiles_, of_keys_, size_;
};

}  // namespace attend
