// The tile of a decode kernel and the shared memory of its block: the host to ask for the bytes, the device to lay them
// out.
//
// Four stripes of warps: of every 64 keys a stripe has 16, in slots of shared memory of its own. A stripe is one warp,
// or two that share the keys and have a half of the rows, or of the columns of v, each.
#pragma once

#include "../common/tile_sizes.cuh"
#include "decode_args.cuh"

namespace attend {

constexpr int kDecodeStripes = 4;
constexpr int kStripeKeys = 16;
constexpr int kStepKeys = kDecodeStripes * kStripeKeys;
constexpr int kDecodeMostUnits = 128;    // entries of the table of sequences in shared memory
constexpr int kDecodeRowBytes = 32;      // of what a block knows of a query row
constexpr int kDecodeCursorBytes = 192;  // room for a cursor, or the schedule

struct DecodeTile {
  int q_bytes;      // of an element of q and o
  int cache_bytes;  // of an element of k and v
  int head_dim;
  int head_dim_v;
  int values_are_keys;  // v is the first columns of k
  int rows;             // of a warp: a multiple of 8
  int row_parts;        // 1 or 2
  int column_parts;     // 1 or 2
  int stages;           // slots of a stripe
  int stack_nodes;      // of the stack, that lie in shared memory
};

[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_warps(const DecodeTile& t) {
  return kDecodeStripes * t.row_parts * t.column_parts;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_threads(const DecodeTile& t) {
  return decode_warps(t) * 32;
}

// Bytes from one row of a tile to the next: an odd number of chunks of 16 bytes, so that neighbouring rows lie in
// different banks. Columns are padded to `multiple`.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_row_bytes(int columns, int bytes, int multiple) {
  return (ceil_div(round_up(columns, multiple) * bytes, 16) | 1) * 16;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_k_slot(const DecodeTile& t) {
  return kStripeKeys * decode_row_bytes(t.head_dim, t.cache_bytes, 16);
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_v_slot(const DecodeTile& t) {
  return t.values_are_keys != 0 ? 0 : kStripeKeys * decode_row_bytes(t.head_dim_v, t.cache_bytes, 16);
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_q_bytes(const DecodeTile& t) {
  return t.rows * t.row_parts * decode_row_bytes(t.head_dim, t.q_bytes, 32);
}

// Tiles of 16 columns of o: of a warp, and of one that has a fourth of them, once the stripes are merged.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_column_tiles(const DecodeTile& t) {
  return ceil_div(ceil_div(t.head_dim_v, 16), t.column_parts);
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_owned_tiles(const DecodeTile& t) {
  return ceil_div(decode_column_tiles(t), kDecodeStripes);
}

// Floats of a thread's share of a merged state: o, then the maximum and sum of its two rows of each eight.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_state_floats(const DecodeTile& t) {
  return (decode_owned_tiles(t) + 1) * (t.rows / 8) * 4;
}
// Of a node: packets of three floats and a tag each, and the same floats on the stack with their place in front.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_node_packets(const DecodeTile& t) {
  return ceil_div(decode_state_floats(t), 3);
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_node_bytes(const DecodeTile& t) {
  return decode_node_packets(t) * decode_threads(t) * 16;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_stack_bytes(const DecodeTile& t) {
  return (decode_state_floats(t) / 4 * 16 + 4) * decode_threads(t);
}

// Stripes hand their sums over in passes of so many tiles of columns, in two buffers in turns where they are small.
constexpr int kMostExchangeBytes = 32 * 1024;
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_exchange_tile(const DecodeTile& t) {
  return decode_warps(t) * t.rows * 16 * 4;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_pass_tiles(const DecodeTile& t) {  // a multiple of the stripes
  int groups = decode_owned_tiles(t);
  while (groups > 1 && groups * kDecodeStripes * decode_exchange_tile(t) > kMostExchangeBytes) --groups;
  return groups * kDecodeStripes;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_exchange_bytes(const DecodeTile& t) {
  return decode_pass_tiles(t) * decode_exchange_tile(t);
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool decode_exchanges_in_turns(const DecodeTile& t) {
  return decode_pass_tiles(t) >= decode_column_tiles(t) && 2 * decode_exchange_bytes(t) <= kMostExchangeBytes;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_stats_bytes(const DecodeTile& t) {
  return decode_warps(t) * t.rows * 8;
}

// Offsets of the parts of a block's shared memory. Each begins on a multiple of 16 bytes.
struct DecodeSmem {
  int ring, factors, q, exchange, stats, rows, table, cursors, stack, bytes;
};
[[nodiscard]] ATTEND_HOST_DEVICE constexpr DecodeSmem decode_smem(const DecodeTile& t) {
  DecodeSmem s = {};
  const int turns = decode_exchanges_in_turns(t) ? 2 : 1;
  s.factors = s.ring + kDecodeStripes * t.stages * (decode_k_slot(t) + decode_v_slot(t));
  s.q = s.factors + (t.cache_bytes == 1 ? kDecodeStripes * t.stages * kStripeKeys * 8 : 0);
  s.exchange = s.q + decode_q_bytes(t);
  s.stats = s.exchange + turns * decode_exchange_bytes(t);
  s.rows = s.stats + turns * decode_stats_bytes(t);
  s.table = s.rows + t.rows * t.row_parts * kDecodeRowBytes;
  s.cursors = s.table + (kDecodeMostUnits + 8) * 8;
  s.stack = s.cursors + (1 + 2 * decode_warps(t)) * kDecodeCursorBytes;
  s.bytes = s.stack + t.stack_nodes * decode_stack_bytes(t);
  return s;
}

}  // namespace attend
