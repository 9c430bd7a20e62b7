// The tile of a decode kernel and the shared memory of its block: the host to ask for the bytes, the device to lay them
// out.
//
// A step is 64 keys. Loading warps bring its keys and then its values into slots of a ring. A team of four warps
// computes it: each warp has 16 of the keys in the product with q, and a fourth of the columns in the product with v.
// There are one or two teams, each with its part of the query rows; or, by_warpgroup, two that have the same 64 rows
// and compute different leaves, each warp with 16 of the rows, or the same leaf, each half of the columns of o
// (column_parts).
#pragma once

#include "../common/tile_sizes.cuh"
#include "../isa/smem_address.cuh"
#include "decode_args.cuh"

namespace attend {

constexpr int kTeamWarps = 4;
constexpr int kWarpKeys = 16;
constexpr int kStepKeys = kTeamWarps * kWarpKeys;
constexpr int kDecodeLoadWarps = 2;
constexpr int kDecodeToldBytes = 16;   // of what warps tell each other: DecodeTold
constexpr int kDecodeRowBytes = 32;    // of what a block knows of a query row
constexpr int kDecodeListedBytes = 8;  // of a node in the list of those that a block merges
constexpr int kDecodeListed = 32 * kDecodeInnerNodes;
constexpr int kDecodeAskedBytes = 16;    // of what a loading lane knows of a key of a step to come
constexpr int kDecodeCursorBytes = 160;  // room for a cursor, or the schedule

struct DecodeTile {
  int q_bytes;      // of an element of q and o
  int cache_bytes;  // of an element of k and v
  int head_dim;
  int head_dim_v;
  int values_are_keys;  // v is the first columns of k
  int has_boxes;        // the copy engine brings keys and values
  int by_warpgroup;     // two warpgroups multiply, each a tile of 64 query rows by a step's keys
  int column_parts;     // by_warpgroup: 2: each has half of the columns of o
  int rows;             // of a team: a multiple of 8
  int row_parts;        // teams, 1 or 2
  int half_rows;        // a tile of 8 rows has 4 at most
  int slots;            // of the ring, each for the keys or the values of a step
  int stack_nodes;      // of the stack, that lie in shared memory
};

// What the memory brings for a step.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_step_bytes(const DecodeTile& t) {
  return (t.head_dim + (t.values_are_keys != 0 ? 0 : t.head_dim_v)) * t.cache_bytes * kStepKeys;
}
// A block computes a step of so many bytes while the memory brings it.
constexpr int kDecodeEvenStep = 32 * 1024;

// Does a step multiply the keys of the next one? Then three slots are in use at once. It pays where few blocks compute
// more slowly than the memory brings (leaves_room). Otherwise a slot is worth more.
constexpr int kDecodeSlotsAhead = 3;
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool decode_wants_to_work_ahead(const DecodeTile& t, bool leaves_room) {
  return leaves_room && t.q_bytes == 2 && t.rows <= 16;
}

// That have a state between them.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_state_threads(const DecodeTile& t) {
  return kTeamWarps * t.row_parts * t.column_parts * 32;
}
// Do two warpgroups compute leaves in turns?
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool decode_leaves_in_turns(const DecodeTile& t) {
  return t.by_warpgroup != 0 && t.column_parts == 1;
}
// Of the computing warps, which come first in a block. Of two warpgroups in turns each has states of its own.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_compute_threads(const DecodeTile& t) {
  return decode_state_threads(t) * (decode_leaves_in_turns(t) ? 2 : 1);
}
// Of those and the loading ones.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_busy_threads(const DecodeTile& t) {
  return decode_compute_threads(t) + kDecodeLoadWarps * 32;
}
// Of the block. With two warpgroups that have half of the columns each, registers change hands, which takes whole
// warpgroups: two warps have nothing to do.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool decode_moves_registers(const DecodeTile& t) {
  return t.column_parts > 1;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_threads(const DecodeTile& t) {
  constexpr int kWarpgroupThreads = 128;
  return decode_moves_registers(t) ? round_up(decode_busy_threads(t), kWarpgroupThreads) : decode_busy_threads(t);
}

// Bytes from one row of a tile to the next: an odd number of chunks of 16 bytes, so that neighbouring rows lie in
// different banks. Columns are padded to `multiple`.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_row_bytes(int columns, int bytes, int multiple) {
  return (ceil_div(round_up(columns, multiple) * bytes, 16) | 1) * 16;
}
// Do keys and values lie in panels, as the copy engine brings them, and wgmma reads them? decode_slot.cuh
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool decode_has_panels(const DecodeTile& t) {
  return t.has_boxes != 0 || t.by_warpgroup != 0;
}
// Of a row of keys or values in a slot: columns are padded to a product's tile, and to whole panels.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_slot_row_bytes(int columns, int bytes, bool has_panels) {
  return round_up(round_up(columns, 16) * bytes, has_panels ? kSwizzleBytes : 1);
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_slot_bytes(const DecodeTile& t) {
  const int k_row = decode_slot_row_bytes(t.head_dim, t.cache_bytes, decode_has_panels(t));
  const int v_row = decode_slot_row_bytes(t.head_dim_v, t.cache_bytes, decode_has_panels(t));
  return kStepKeys * (t.values_are_keys != 0 || k_row > v_row ? k_row : v_row);
}
// Of the rows of all teams: q, and the probabilities of a step. by_warpgroup: q is in panels, whose rows are of 128
// bytes, and probabilities are in registers.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_q_row(const DecodeTile& t) {
  return t.by_warpgroup != 0 ? round_up(t.head_dim * t.q_bytes, kSwizzleBytes)
                             : decode_row_bytes(t.head_dim, t.q_bytes, 32);
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_q_bytes(const DecodeTile& t) {
  return t.rows * t.row_parts * decode_q_row(t);
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_p_row(const DecodeTile& t) {
  return t.by_warpgroup != 0 ? 0 : decode_row_bytes(kStepKeys, t.q_bytes, 16);
}

// Tiles of 16 columns of o, and of those a warp's: warp w has the tiles w, w + 4, ...
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_column_tiles(const DecodeTile& t) {
  return ceil_div(t.head_dim_v, 16);
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_owned_tiles(const DecodeTile& t) {
  return ceil_div(decode_column_tiles(t), kTeamWarps);
}

// Columns of o of a warpgroup.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_warpgroup_columns(const DecodeTile& t) {
  return round_up(ceil_div(t.head_dim_v, t.column_parts), kPanelColumns);
}
// Sums of a row that a thread of a warpgroup keeps: by places among the keys, as threads of a team have them, or one.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_warpgroup_sums(const DecodeTile& t) {
  return t.column_parts > 1 ? 1 : 2 * kTeamWarps;
}

// Floats of a thread's share of a state: o, then the maximum and sum of its two rows of each eight. by_warpgroup: the
// maxima of its two rows, the sums of each, and o (decode_warpgroup_state.cuh).
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_state_floats(const DecodeTile& t) {
  return t.by_warpgroup != 0 ? decode_warpgroup_columns(t) / 2 + 2 + 2 * decode_warpgroup_sums(t)
                             : (decode_owned_tiles(t) + 1) * (t.rows / 8) * 4;
}
// Of a thread's share of a node: that of a state, or with half_rows that of one of the state's two rows.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_share_floats(const DecodeTile& t) {
  return t.half_rows != 0 ? decode_owned_tiles(t) * 2 + 2 : decode_state_floats(t);
}
// Of a node: packets of three floats and a tag each.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_node_packets(const DecodeTile& t) {
  return ceil_div(decode_share_floats(t), 3);
}
// Is a node too large for the ring? Then it lies in device memory as nodes of the stack do, and has a tag for each warp
// (decode_large_nodes.cuh).
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool decode_has_large_nodes(const DecodeTile& t) {
  return t.column_parts > 1;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_node_bytes(const DecodeTile& t) {
  if (decode_has_large_nodes(t)) return ceil_div(decode_state_floats(t), 4) * decode_state_threads(t) * 16;
  return decode_node_packets(t) * decode_state_threads(t) * 16;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_stack_bytes(const DecodeTile& t) {
  return (ceil_div(decode_state_floats(t), 4) * 16 + 4) * decode_state_threads(t);
}

// Tags of a large node, a word each. All nodes' lie behind the header of the storage, where no layout of large nodes
// has anything else: what another call has left is never taken for a tag.
constexpr int kDecodeTagsOfNode = 8;
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_tag_bytes(int blocks) {
  constexpr int kLine = 128;
  return round_up(blocks * kDecodeNodesOfBlock * kDecodeTagsOfNode * 4, kLine);
}

// With few nodes of the stack in shared memory any may lie in device memory: decode_stack.cuh
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool decode_shares_small_nodes(const DecodeTile& t) {
  constexpr int kFew = 2;
  return t.by_warpgroup != 0 || t.stack_nodes <= kFew;
}

// The tree's leaves are 2^shift times as long (decode_tree.cuh): where a node takes as long as several steps. It does
// not depend on the tile's rows, where tiles of several sizes have the same bits.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_leaf_shift(const DecodeTile& t) {
  constexpr int kLongColumns = 512;
  return t.column_parts > 1 ? 5 : t.head_dim_v >= kLongColumns ? 2 : 0;
}

// Of the ring. When it has been read, it takes nodes of other blocks, at least one, if they are not large.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_ring_bytes(const DecodeTile& t) {
  const int slots = t.slots * decode_slot_bytes(t), node = decode_has_large_nodes(t) ? 0 : decode_node_bytes(t);
  return slots > node ? slots : node;
}

// Steps ahead of its copies that a loading warp asks the table of pages: one more than the ring holds. Waiting for an
// answer waits for copies of older steps too; those have landed before their slots can be filled again.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_asked_steps(const DecodeTile& t) {
  return (t.values_are_keys != 0 ? t.slots : ceil_div(t.slots, 2)) + 1;
}

// What a team's warps tell each other of each row in a step: its maximum over each warp's keys, or its sum.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_team_stats(const DecodeTile& t) {
  return kTeamWarps * t.rows;
}

// Parts of a slot's columns, each with barriers of its own: the first warpgroup's columns of values, and all others. So
// products begin before all columns of a step are there, and some are replaced before all have been read.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_slot_parts(const DecodeTile& t) {
  return t.column_parts;
}

// Offsets of the parts of a block's shared memory. Each begins on a multiple of 16 bytes.
struct DecodeSmem {
  int ring, q, p, existing, factors, barriers, maxima, sums, exponents, rows, told, list, asked, cursors, stack, bytes;
};
[[nodiscard]] ATTEND_HOST_DEVICE constexpr DecodeSmem decode_smem(const DecodeTile& t) {
  DecodeSmem s = {};
  const int stats = t.row_parts * decode_team_stats(t) * 4;
  s.q = round_up(s.ring + decode_ring_bytes(t), t.by_warpgroup != 0 ? kSwizzleAtom : 16);
  s.p = s.q + decode_q_bytes(t);
  s.existing = s.p + t.rows * t.row_parts * decode_p_row(t);
  s.factors = s.existing + round_up(t.slots * kStepKeys / 8, 16);
  s.barriers = s.factors + (t.cache_bytes == 1 ? t.slots * kStepKeys * 8 : 0);
  s.maxima = s.barriers + round_up(2 * t.slots * decode_slot_parts(t) * 8, 16);
  s.sums = s.maxima + stats;
  s.exponents = s.sums + (t.by_warpgroup != 0 ? 0 : stats);
  s.rows = s.exponents + (t.cache_bytes == 1 ? stats : 0);
  s.told = s.rows + t.rows * t.row_parts * kDecodeRowBytes;
  s.list = s.told + kDecodeToldBytes;
  s.asked = s.list + kDecodeListedBytes * kDecodeListed;
  s.cursors = s.asked + decode_asked_steps(t) * kDecodeLoadWarps * 32 * kDecodeAskedBytes;
  s.stack = s.cursors + (2 + decode_busy_threads(t) / 32) * kDecodeCursorBytes;
  s.bytes = s.stack + t.stack_nodes * decode_stack_bytes(t);
  return s;
}

}  // namespace attend
