// Tile sizes and shared memory of the sm90 backward kernels for head dimensions above 256, and the rows of their
// workspace. Shared by host and device.
#pragma once

#include "../attention/work.cuh"
#include "../common/element.cuh"
#include "../common/portable.cuh"

namespace attend {

constexpr int kPanelsRows = 128;         // rows of a tile: query rows, or keys of dk and dv
constexpr int kPanelsScoreKeys = 128;    // keys of a tile of scores
constexpr int kPanelsKeys = 256;         // keys of a panel are a multiple of this
constexpr int kPanelsMostColumns = 256;  // columns of an output tile, at most
constexpr int kPanelsDepth = 64;         // length of the sum that one stage of the ring covers
constexpr int kPanelsBoxRows = 64;       // rows of a box of every tensor map. Boxes have 64 columns
constexpr int kPanelsStages = 4;         // buffers of the ring
constexpr int kPanelsThreads = 384;      // a loading warpgroup, and two warpgroups that compute 64 rows each
constexpr int kPanelsLoadRegisters = 40;
constexpr int kPanelsComputeRegisters = 232;
constexpr int kPanelsPrepareThreads = 256;

constexpr int kPanelsBoxBytes = kPanelsBoxRows * kPanelsDepth * int{sizeof(Bits16)};
constexpr int kPanelsABoxes = kPanelsRows / kPanelsBoxRows;         // boxes of an A operand
constexpr int kPanelsBBoxes = kPanelsMostColumns / kPanelsBoxRows;  // boxes of a B operand, at most
constexpr int kPanelsOtherBytes = 1024;                             // barriers and descriptions of tiles
constexpr int kPanelsSmemBytes = kPanelsStages * (kPanelsABoxes + kPanelsBBoxes) * kPanelsBoxBytes + kPanelsOtherBytes;

// Returns the number of columns of an output tile. Up to 384 columns, two tiles of 192 columns waste less than two
// tiles of 256.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int panels_columns(int head_dim, int head_dim_v) {
  return head_dim <= 384 && head_dim_v <= 384 ? 192 : 256;
}

// Returns `length`, rounded up to complete tiles. There is at least one tile.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 panels_padded(int64 length, int64 tile) {
  return length < 1 ? tile : num_tiles(length, tile) * tile;
}

// Each sequence has complete row tiles in the statistics. The tiles of packed sequence i start at row
// panels_first_row(cu_seqlens_q[i], i). The tiles of sequence i - 1 end at or before that row.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 panels_first_row(int64 q_begin, int64 sequence) {
  return (q_begin + sequence * kPanelsRows) / kPanelsRows * kPanelsRows;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 panels_packed_rows(int64 total_rows, int64 num_sequences) {
  return panels_padded(total_rows + num_sequences * kPanelsRows, kPanelsRows);
}

}  // namespace attend
