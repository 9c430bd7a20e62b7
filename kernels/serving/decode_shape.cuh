// Tile of a decode kernel, and layout of its block's shared memory. The host computes the number of bytes from this
// file. The device computes the addresses from it.
//
// A step is 64 keys. Loading warps copy the step's keys, and then its values, into slots of a ring. A team of four
// warps computes the step. Each warp multiplies 16 of the keys by q, and multiplies p by a quarter of the columns of v.
// A block has one or two teams. Each team has different query rows.
//
// If by_warpgroup is set, a block has two teams that have the same 64 query rows. Each warp of a team has 16 of these
// rows. If column_parts is 1, the two teams compute different leaves of the tree (decode_tree.cuh). If column_parts is
// 2, they compute the same leaf, and each team has half of the columns of o.
#pragma once

#include "../common/tile_sizes.cuh"
#include "../isa/smem_address.cuh"
#include "decode_args.cuh"

namespace attend {

constexpr int kTeamWarps = 4;
constexpr int kWarpKeys = 16;
constexpr int kStepKeys = kTeamWarps * kWarpKeys;
constexpr int kDecodeLoadWarps = 2;
constexpr int kDecodeToldBytes = 16;   // size of DecodeTold, which holds messages between the warps
constexpr int kDecodeRowBytes = 32;    // size of DecodeRow, the state of a query row
constexpr int kDecodeListedBytes = 8;  // size of an entry in the list of nodes that a block merges
constexpr int kDecodeListed = 32 * kDecodeInnerNodes;
constexpr int kDecodeAskedBytes = 16;    // size of DecodeAskedKey: one loading lane's key of an upcoming step
constexpr int kDecodeCursorBytes = 160;  // room for a cursor (DecodeCursor) or the schedule (DecodeSchedule)

struct DecodeTile {
  int q_bytes;      // bytes of an element of q and o
  int cache_bytes;  // bytes of an element of k and v
  int head_dim;
  int head_dim_v;
  int values_are_keys;  // 1 if v is the first columns of k (multi-head latent attention)
  int has_boxes;        // 1 if the copy engine (TMA) copies keys and values. A box is the rectangle of one copy
  int by_warpgroup;     // 1 if warpgroups compute with wgmma, for 64 query rows
  int column_parts;     // 2 if each of two warpgroups has half of the columns of o, otherwise 1
  int rows;             // query rows of a team, a multiple of 8
  int row_parts;        // number of teams with different rows, 1 or 2
  int half_rows;        // 1 if the tile has 8 rows, and at most 4 of them are in use
  int slots;            // number of ring slots. A slot holds the keys or the values of a step
  int stack_nodes;      // number of tree nodes for which the stack has room in shared memory
};

// Bytes of keys and values that a step reads from memory.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_step_bytes(const DecodeTile& t) {
  return (t.head_dim + (t.values_are_keys != 0 ? 0 : t.head_dim_v)) * t.cache_bytes * kStepKeys;
}
// If a step has this number of bytes, computing it takes as long as reading it from memory.
constexpr int kDecodeEvenStep = 32 * 1024;

// Whether the block multiplies the next step's keys by q during the current step. Such a block uses three slots at
// once. This is faster if few blocks run and computing is slower than memory (leaves_room). Otherwise the third slot is
// more useful for a copy in flight.
constexpr int kDecodeSlotsAhead = 3;
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool decode_wants_to_work_ahead(const DecodeTile& t, bool leaves_room) {
  return leaves_room && t.q_bytes == 2 && t.rows <= 16;
}

// Number of threads that hold one state together.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_state_threads(const DecodeTile& t) {
  return kTeamWarps * t.row_parts * t.column_parts * 32;
}
// Whether two warpgroups compute alternating leaves.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool decode_leaves_in_turns(const DecodeTile& t) {
  return t.by_warpgroup != 0 && t.column_parts == 1;
}
// Number of computing threads, which are the first threads of a block. Two warpgroups that alternate have separate
// states.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_compute_threads(const DecodeTile& t) {
  return decode_state_threads(t) * (decode_leaves_in_turns(t) ? 2 : 1);
}
// Number of computing and loading threads.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_busy_threads(const DecodeTile& t) {
  return decode_compute_threads(t) + kDecodeLoadWarps * 32;
}
// Whether the block moves registers from some warpgroups to others, which it does if column_parts is 2. Only complete
// warpgroups can change their register counts, so the block then has two idle warps.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool decode_moves_registers(const DecodeTile& t) {
  return t.column_parts > 1;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_threads(const DecodeTile& t) {
  constexpr int kWarpgroupThreads = 128;
  return decode_moves_registers(t) ? round_up(decode_busy_threads(t), kWarpgroupThreads) : decode_busy_threads(t);
}

// Bytes from one row of a tile to the next. This is an odd number of 16-byte chunks, so that neighbouring rows lie in
// different banks. Columns are padded to a multiple of `multiple`.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_row_bytes(int columns, int bytes, int multiple) {
  return (ceil_div(round_up(columns, multiple) * bytes, 16) | 1) * 16;
}
// Whether keys and values lie in panels of 128-byte rows, the layout that the copy engine writes and wgmma reads
// (decode_slot.cuh).
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool decode_has_panels(const DecodeTile& t) {
  return t.has_boxes != 0 || t.by_warpgroup != 0;
}
// Bytes of a row of keys or values in a slot. Columns are padded to a multiple of 16, the width of a product's tile,
// and to complete panels.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_slot_row_bytes(int columns, int bytes, bool has_panels) {
  return round_up(round_up(columns, 16) * bytes, has_panels ? kSwizzleBytes : 1);
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_slot_bytes(const DecodeTile& t) {
  const int k_row = decode_slot_row_bytes(t.head_dim, t.cache_bytes, decode_has_panels(t));
  const int v_row = decode_slot_row_bytes(t.head_dim_v, t.cache_bytes, decode_has_panels(t));
  return kStepKeys * (t.values_are_keys != 0 || k_row > v_row ? k_row : v_row);
}
// Three sizes in bytes: the row pitch of q, the size of q for the rows of all teams, and the row pitch of a step's
// probabilities. If by_warpgroup is set, q lies in panels with rows of 128 bytes, and probabilities stay in registers.
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

// Number of 16-column tiles of o, and the largest number of such tiles that one warp has. Warp w of a team has the
// tiles w, w + 4, and so on.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_column_tiles(const DecodeTile& t) {
  return ceil_div(t.head_dim_v, 16);
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_owned_tiles(const DecodeTile& t) {
  return ceil_div(decode_column_tiles(t), kTeamWarps);
}

// Number of columns of o that a warpgroup has.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_warpgroup_columns(const DecodeTile& t) {
  return round_up(ceil_div(t.head_dim_v, t.column_parts), kPanelColumns);
}
// Number of partial sums of p that a thread of a warpgroup holds for each row. If column_parts is 1, the thread keeps
// separate sums for the key positions that different threads of a team would add up. The results are then bit-identical
// to those of a team. Otherwise the thread has one sum.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_warpgroup_sums(const DecodeTile& t) {
  return t.column_parts > 1 ? 1 : 2 * kTeamWarps;
}

// Number of floats of a thread's share of a state. A share consists of o, and of the maxima and sums of two rows in
// each group of eight. If by_warpgroup is set, it consists of the maxima and sums of the thread's two rows, and of o
// (decode_warpgroup_state.cuh).
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_state_floats(const DecodeTile& t) {
  return t.by_warpgroup != 0 ? decode_warpgroup_columns(t) / 2 + 2 + 2 * decode_warpgroup_sums(t)
                             : (decode_owned_tiles(t) + 1) * (t.rows / 8) * 4;
}
// Number of floats of a thread's share of a node. The share of a node equals the thread's share of a state. If
// half_rows is set, it is only one of the two rows of that share.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_share_floats(const DecodeTile& t) {
  return t.half_rows != 0 ? decode_owned_tiles(t) * 2 + 2 : decode_state_floats(t);
}
// Number of packets of a thread's share of a node. A packet has three floats and a tag.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_node_packets(const DecodeTile& t) {
  return ceil_div(decode_share_floats(t), 3);
}
// Whether a tree node is too large for the ring in shared memory. Blocks exchange such a node through device memory.
// Its layout is that of stack nodes, with one tag for each warp (decode_large_nodes.cuh).
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

// Number of tags of a large node. A tag is a 32-bit word. The tags of all nodes follow the storage's header. Layouts
// without large nodes leave these bytes unused, so data of an earlier call cannot be mistaken for a tag.
constexpr int kDecodeTagsOfNode = 8;
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_tag_bytes(int blocks) {
  constexpr int kLine = 128;
  return round_up(blocks * kDecodeNodesOfBlock * kDecodeTagsOfNode * 4, kLine);
}

// Whether nodes of the stack may lie in device memory. They do if shared memory has room for only a few nodes
// (decode_stack.cuh).
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool decode_shares_small_nodes(const DecodeTile& t) {
  constexpr int kFew = 2;
  return t.by_warpgroup != 0 || t.stack_nodes <= kFew;
}

// Returns the leaf shift. If merging a node takes as long as several steps, the leaves of the tree are 2^shift times as
// long as usual (decode_tree.cuh). Tiles with different numbers of rows must give bit-identical results, so the shift
// does not depend on the number of rows.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_leaf_shift(const DecodeTile& t) {
  constexpr int kLongColumns = 512;
  return t.column_parts > 1 ? 5 : t.head_dim_v >= kLongColumns ? 2 : 0;
}

// Bytes of the ring. After all its slots have been read, the ring receives nodes of other blocks. So it has room for at
// least one node, unless nodes are large.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_ring_bytes(const DecodeTile& t) {
  const int slots = t.slots * decode_slot_bytes(t), node = decode_has_large_nodes(t) ? 0 : decode_node_bytes(t);
  return slots > node ? slots : node;
}

// Number of steps by which a loading warp reads the page table ahead of its copies. This is one step more than the ring
// holds. Waiting for an entry of the table also waits for the copies of earlier steps. The wait costs nothing, because
// those copies must arrive before their slots can be filled again.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_asked_steps(const DecodeTile& t) {
  return (t.values_are_keys != 0 ? t.slots : ceil_div(t.slots, 2)) + 1;
}

// Number of floats that a team's warps exchange in a step. For each row, each warp writes one float: the maximum or the
// sum over the warp's keys.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_team_stats(const DecodeTile& t) {
  return kTeamWarps * t.rows;
}

// Number of column parts of a slot. Each part has separate barriers. Part 0 holds the values' columns of the first
// warpgroup, and part 1 holds the other columns. So products can start before all columns of a step have arrived, and
// part 0 can be refilled before part 1 has been read.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_slot_parts(const DecodeTile& t) {
  return t.column_parts;
}

// Offsets of the arrays in a block's shared memory. Each is a multiple of 16 bytes.
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
