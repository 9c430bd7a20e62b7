#include "cuda/serving/decode_variant.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "attend/error.hpp"
#include "core/dtype_traits.hpp"
#include "core/lack.hpp"
#include "cuda/launch/config_enums.hpp"
#include "cuda/launch/facts.hpp"
#include "cuda/launch/tensor_maps.hpp"
#include "kernels/isa/smem_address.cuh"
#include "kernels/serving/decode_tree.cuh"

namespace attend::cuda {
namespace {

/// Limits for the number of slots of the ring buffer in shared memory. A slot has the keys or the values of one step,
/// and a step is 64 keys.
constexpr int kFewestSlots = 2, kMostSlots = 12;
constexpr int kMostStackNodes = 8;
/// Largest number of floats of a state (o, row maxima and row sums) per thread. A larger state does not fit in
/// registers.
constexpr int kMostStateFloats = 72;
/// Bytes of shared memory that the hardware reserves per block.
constexpr int kReservedSmem = 1024;
/// Steps with fewer bytes than kDecodeEvenStep are faster with two blocks per multiprocessor, because one block
/// computes while the other waits for data. Larger steps were faster with one block (results/notes/decode_gpu.md),
/// unless there are at least kManyItems work items per multiprocessor. Then few of the items are split among blocks,
/// and while one block finishes an item, the other one computes.
constexpr std::int64_t kManyItems = 3;
/// Number of packed query rows per tile if another kernel computes sequences with many rows. Most of the other
/// sequences then have one row. If there are few heads, the decode kernel also computes sequences with some hundred
/// rows (long_rows.hpp).
constexpr std::int64_t kRowsBesideLongOnes = 8, kRowsBesideLongOnesOfFewHeads = 16, kFewHeads = 16;
/// Time in seconds from a memory request to the arrival of the data, when the memory is busy.
constexpr double kSecondsInFlight = 2.5e-6;

struct RowsOfTile {
  std::int32_t rows, parts;
};
constexpr std::array kRowsOfTiles = {RowsOfTile{8, 1}, RowsOfTile{16, 1}, RowsOfTile{16, 2}, RowsOfTile{32, 2}};

[[nodiscard]] bool fits(DecodeVariant& v, int slots, int stack_nodes, int smem) {
  v.slots = slots;
  v.stack_nodes = stack_nodes;
  return decode_smem(v.tile()).bytes <= smem;
}

/// Chooses the smallest tile that has at least `packed_rows` rows and fits in shared memory. If there is none, chooses
/// the largest tile that fits. Returns false if no tile fits.
[[nodiscard]] bool choose_rows(DecodeVariant& v, std::int64_t packed_rows, int max_smem) {
  bool found = false;
  for (const RowsOfTile& rows : kRowsOfTiles) {
    DecodeVariant wider = v;
    wider.rows = rows.rows;
    wider.row_parts = rows.parts;
    const int slots = found || fits(wider, kFewestSlots, 0, max_smem) ? kFewestSlots : 1;
    if (!fits(wider, slots, 0, max_smem)) break;
    if (found && decode_state_floats(wider.tile()) > kMostStateFloats) break;
    v = wider;
    found = true;
    if (rows.rows * rows.parts >= packed_rows) break;
  }
  return found;
}

[[nodiscard]] std::int64_t items_of(const core::DecodeProblem& p, const DecodeVariant& v) {
  const std::int64_t rows = p.heads_per_group() * p.max_seqlen_q;
  return p.num_sequences * p.num_heads_k * ceil_div(rows, std::int64_t{v.rows} * v.row_parts);
}

/// Returns the number of slots for two steps. Each of two warpgroups processes one of these steps.
[[nodiscard]] int slots_of_warpgroups(const DecodeVariant& v) {
  return v.values_are_keys != 0 ? 2 : 4;
}

/// Returns the number of slots that get shared memory before the stack nodes do. These slots keep `bytes_in_flight`
/// bytes in transfer and allow the block to start the next step early. If the block uses warpgroups, a node is larger
/// than a slot. Then nodes come first, and slots_of_warpgroups() slots suffice.
[[nodiscard]] int wanted_slots(const DecodeVariant& v, int bytes_in_flight) {
  if (v.by_warpgroup != 0) return slots_of_warpgroups(v);
  const bool ahead = decode_wants_to_work_ahead(v.tile(), v.leaves_room != 0);
  const int of_slot = std::max(1, decode_step_bytes(v.tile()) / (v.values_are_keys != 0 ? 1 : 2));
  return std::clamp(ceil_div(bytes_in_flight, of_slot), ahead ? kDecodeSlotsAhead : kFewestSlots, kMostSlots);
}

/// Tries to choose slots and stack nodes so that two blocks are resident per multiprocessor. Returns false if this is
/// impossible. The number of slots is just large enough to use the full memory bandwidth. The remaining shared memory
/// is for stack nodes, because more slots were slower.
[[nodiscard]] bool choose_two_blocks(DecodeVariant& v, const DecodeGpu& gpu) {
  constexpr int kFewestNodesOfTwo = 4;
  const int half = (gpu.max_smem + kReservedSmem) / 2 - kReservedSmem;
  int slots = wanted_slots(v, gpu.bytes_in_flight / 2);
  while (slots > kFewestSlots && !fits(v, slots, kFewestNodesOfTwo, half)) --slots;
  if (v.row_parts > 1 || v.by_warpgroup != 0 || !fits(v, slots, kFewestNodesOfTwo, half)) return false;
  v.blocks = 2;
  int nodes = kFewestNodesOfTwo;
  while (nodes < kMostStackNodes && fits(v, slots, nodes + 1, half)) ++nodes;
  return fits(v, slots, nodes, half);
}

/// Chooses the number of slots and stack nodes. First it chooses enough slots to use the full memory bandwidth, then
/// stack nodes, then more slots. A node that does not fit in shared memory is written to device memory, which costs
/// more time than a ring with fewer slots.
void choose_slots(DecodeVariant& v, const DecodeGpu& gpu, std::int64_t items) {
  const bool is_slow = decode_step_bytes(v.tile()) < kDecodeEvenStep;
  const bool wants_two = is_slow || items >= kManyItems * gpu.multiprocessors;
  if (wants_two && v.leaves_room == 0 && choose_two_blocks(v, gpu)) return;
  v.blocks = 1;
  // If leaves_room is set, the decode kernel runs on half of the multiprocessors.
  const int in_flight = gpu.bytes_in_flight * (v.leaves_room != 0 ? 2 : 1);
  int slots = wanted_slots(v, in_flight);
  int nodes = 0;
  // If two warpgroups compute alternating leaves, each of them has a separate half of the ring.
  const int unit = decode_leaves_in_turns(v.tile()) ? 2 : 1;
  while (slots > unit && !fits(v, slots, nodes, gpu.max_smem)) slots -= unit;
  while (nodes < kMostStackNodes && fits(v, slots, nodes + 1, gpu.max_smem)) ++nodes;
  while (slots + unit <= kMostSlots && fits(v, slots + unit, nodes, gpu.max_smem)) slots += unit;
  (void)fits(v, slots, nodes, gpu.max_smem);
}

/// Chooses the rows of the tile, and whether TMA loads keys in boxes. With boxes, rows of k and v are padded to full
/// panels in shared memory. If this would force a smaller tile, boxes are not used.
[[nodiscard]] bool choose_rows_and_boxes(DecodeVariant& v, bool takes_boxes, std::int64_t packed_rows, int max_smem) {
  const auto rows_of = [](const DecodeVariant& variant) { return variant.rows * variant.row_parts; };
  DecodeVariant with_boxes = v;
  with_boxes.has_boxes = 1;
  v.has_boxes = 0;
  const bool fit = takes_boxes && choose_rows(with_boxes, packed_rows, max_smem);
  const bool take_all = fit && rows_of(with_boxes) >= packed_rows;  // a tile without boxes would not have more rows
  const bool found = take_all || choose_rows(v, packed_rows, max_smem);
  if (take_all || (fit && rows_of(with_boxes) == rows_of(v))) v = with_boxes;
  return found;
}

/// Returns whether the numbers of work units may exceed 32 bits. The lengths of the sequences are on the GPU, so the
/// capacity of each sequence is used instead. Half of the 32-bit range is reserved for the arithmetic of the schedule.
[[nodiscard]] bool has_many_units(const core::DecodeProblem& p, const DecodeVariant& v) {
  constexpr double kFew = 1 << 30;
  const double rows = static_cast<double>(p.cu_seqlens_q != nullptr ? p.q.shape[2] : p.num_sequences * p.max_seqlen_q);
  const double tiles = rows * static_cast<double>(p.heads_per_group()) / (v.rows * v.row_parts);
  const double items = (tiles + static_cast<double>(p.num_sequences)) * static_cast<double>(p.num_heads_k);
  const int leaf = kMostLeafUnits << decode_leaf_shift(v.tile());
  return items * static_cast<double>(p.capacity / kStepKeys + leaf) > kFew;
}

[[nodiscard]] bool is_aligned(const Tensor& t) {
  constexpr std::int64_t kBytes = 16;
  const std::int64_t bytes = dtype_bytes(t.dtype);
  const auto fits = [&](std::int64_t elements) { return elements * bytes % kBytes == 0; };
  const auto strides_fit = [&](std::size_t d) { return t.shape[d] <= 1 || fits(t.stride[d]); };
  return reinterpret_cast<std::uintptr_t>(t.data) % kBytes == 0 && fits(t.shape[3]) && strides_fit(0) &&
         strides_fit(1) && strides_fit(2);
}

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::kUnsupported, text);
}

DecodeVariant facts_of(const core::DecodeProblem& p) {
  if (p.q.dtype == DType::kF64) refuse("q: dtype f64, allowed on a GPU: f32, f16, bf16");
  DecodeVariant v = {.element = element_of(p.q.dtype)};
  if (p.k.dtype == DType::kF8E4M3) v.cache_element = CacheElement::kF8E4M3;
  if (p.k.dtype == DType::kI8) v.cache_element = CacheElement::kI8;
  v.head_dim = static_cast<std::int32_t>(p.head_dim);
  v.head_dim_v = static_cast<std::int32_t>(p.head_dim_v);
  v.row_factors = p.k_descale.is_per_row || p.v_descale.is_per_row ? 1 : 0;
  const bool shares = p.k.data == p.v.data && p.k.stride == p.v.stride && p.head_dim_v <= p.head_dim;
  v.values_are_keys = shares ? 1 : 0;
  v.aligned = is_aligned(p.q) && is_aligned(p.k) && is_aligned(p.v) ? 1 : 0;
  return v;
}

constexpr std::int32_t kWarpgroupRows = 64;
/// Largest number of columns of o that the registers of a warpgroup can hold.
constexpr std::int32_t kMostColumns = 128;

/// Chooses a tile of 64 query rows with wgmma if there are enough rows. With fewer rows, tiles with mma.sync are
/// faster. Both kinds of tiles have bit-identical results. Returns false if there are few rows or if the tile does not
/// support the problem.
[[nodiscard]] bool choose_warpgroups(DecodeVariant& v, std::int64_t packed_rows, int max_smem) {
  constexpr std::int64_t kFewRows = 32;
  if (packed_rows <= kFewRows || v.head_dim_v > kMostColumns || v.has_boxes == 0 || v.element == ElementType::kF32 ||
      v.cache_element != CacheElement::kSame) {
    return false;
  }
  DecodeVariant wide = v;
  wide.by_warpgroup = 1;
  wide.rows = kWarpgroupRows;
  if (!fits(wide, slots_of_warpgroups(wide), 1, max_smem)) return false;
  v = wide;
  return true;
}

/// Chooses a tile of 64 query rows in which each of two warpgroups computes half of the columns of o. This is for heads
/// with many columns, as in multi-head latent attention. The results are not bit-identical to those of the mma.sync
/// tiles, which have 16 rows here. Therefore the choice depends only on the group size and on properties of the
/// tensors. It does not depend on the number of rows or on the page size, so a sequence has bit-identical results in
/// any batch. Returns false if the tile does not support the problem, for example because tensors are not aligned.
[[nodiscard]] bool choose_halves_of_columns(DecodeVariant& v, std::int64_t heads_per_group, int max_smem) {
  constexpr std::int64_t kHeadsOfSmallTile = 16;
  // P is stored in those columns of the keys that are not values.
  const bool has_room =
      v.values_are_keys != 0 && v.head_dim_v % (2 * kPanelColumns) == 0 && v.head_dim >= v.head_dim_v + kPanelColumns;
  if (heads_per_group <= kHeadsOfSmallTile || v.head_dim_v <= kMostColumns || v.head_dim_v > 4 * kMostColumns ||
      !has_room || v.aligned == 0 || v.element == ElementType::kF32 || v.cache_element != CacheElement::kSame) {
    return false;
  }
  DecodeVariant wide = v;
  wide.by_warpgroup = 1;
  wide.column_parts = 2;
  wide.rows = kWarpgroupRows;
  if (!fits(wide, slots_of_warpgroups(wide), 0, max_smem)) return false;
  v = wide;
  return true;
}

/// Returns whether TMA should load keys and values, if the GPU has TMA.
[[nodiscard]] bool takes_boxes(const core::DecodeProblem& p, const DecodeVariant& v) {
  constexpr std::int64_t kLeastRows = 8;        // rows of one pattern of the 128-byte swizzle
  constexpr std::int64_t kProductColumns = 16;  // rows are padded to a multiple of this number of columns
  // If two boxes of a row share a memory line, the line is loaded twice. But if rows are padded anyway, copying them
  // without TMA is even slower.
  const auto pays = [](const Tensor& t) {
    return t.shape[3] * dtype_bytes(t.dtype) % kSwizzleBytes == 0 || t.shape[3] % kProductColumns != 0;
  };
  return v.aligned != 0 && pays(p.k) && (v.values_are_keys != 0 || pays(p.v)) && has_row_map(p.k) && has_row_map(p.v) &&
         decode_box_rows(p) >= kLeastRows;
}

}  // namespace

std::int64_t decode_box_rows(const core::DecodeProblem& p) {
  constexpr std::int64_t kMost = 32;  // number of rows of a step that one warp loads
  return p.cache.page_table ? std::min(kMost, p.block_size & -p.block_size) : kMost;
}

DecodeTile DecodeVariant::tile() const {
  const int q_bytes = element == ElementType::kF32 ? 4 : 2;
  return {.q_bytes = q_bytes,
          .cache_bytes = cache_element == CacheElement::kSame ? q_bytes : 1,
          .head_dim = head_dim,
          .head_dim_v = head_dim_v,
          .values_are_keys = values_are_keys,
          .has_boxes = has_boxes,
          .by_warpgroup = by_warpgroup,
          .column_parts = column_parts,
          .rows = rows,
          .row_parts = row_parts,
          .half_rows = half_rows,
          .slots = slots,
          .stack_nodes = stack_nodes};
}

DecodeGpu DecodeGpu::of(const DeviceInfo& device) {
  DecodeGpu gpu = {.max_smem = device.max_smem_per_block,
                   .multiprocessors = device.num_multiprocessors,
                   .has_copy_engine = device.arch().tma,
                   .has_wgmma = device.arch().wgmma};
  const double each = device.memory_bytes_per_s / device.num_multiprocessors;
  if (each > 0) gpu.bytes_in_flight = static_cast<int>(each * kSecondsInFlight);
  return gpu;
}

DecodeVariant decode_variant(const core::DecodeProblem& p, const DecodeGpu& gpu, bool leaves_long_rows) {
  DecodeVariant v = facts_of(p);
  v.leaves_room = leaves_long_rows ? 1 : 0;
  const std::int64_t beside = p.num_heads_q < kFewHeads ? kRowsBesideLongOnesOfFewHeads : kRowsBesideLongOnes;
  const std::int64_t rows =
      leaves_long_rows ? std::max(p.heads_per_group(), beside) : p.heads_per_group() * p.max_seqlen_q;
  const bool boxes = gpu.has_copy_engine && takes_boxes(p, v);
  v.has_boxes = boxes ? 1 : 0;
  const bool by_wgmma = gpu.has_wgmma && (choose_warpgroups(v, rows, gpu.max_smem) ||
                                          choose_halves_of_columns(v, p.heads_per_group(), gpu.max_smem));
  if (!by_wgmma && !choose_rows_and_boxes(v, boxes, rows, gpu.max_smem)) {
    refuse(
        fmt::format("q: head_dim {} with head_dim_v {} of {}, more than a GPU with {} bytes of shared memory supports",
                    p.head_dim, p.head_dim_v, dtype_name(p.q.dtype), gpu.max_smem));
  }
  v.half_rows = rows <= 4 && v.rows * v.row_parts == 8 ? 1 : 0;
  choose_slots(v, gpu, items_of(p, v));
  v.many_units = has_many_units(p, v) ? 1 : 0;
  return v;
}

KernelSpec decode_spec(const DecodeVariant& v, const char* arch) {
  return {.name = "decode",
          .source = "serving/decode.cuh",
          .function = "decode",
          .args = DecodeArgs::kTypeName,
          .config = {{"kElement", enum_constant(v.element)},
                     {"kCacheElement", enum_constant(v.cache_element)},
                     {"kHeadDim", v.head_dim},
                     {"kHeadDimV", v.head_dim_v},
                     {"kValuesAreKeys", v.values_are_keys != 0},
                     {"kAligned", v.aligned != 0},
                     {"kRowFactors", v.row_factors != 0},
                     {"kHasBoxes", v.has_boxes != 0},
                     {"kByWarpgroup", v.by_warpgroup != 0},
                     {"kColumnParts", v.column_parts},
                     {"kRows", v.rows},
                     {"kRowParts", v.row_parts},
                     {"kHalfRows", v.half_rows != 0},
                     {"kSlots", v.slots},
                     {"kStackNodes", v.stack_nodes},
                     {"kManyUnits", v.many_units != 0},
                     {"kLeavesRoom", v.leaves_room != 0},
                     {"kThreads", decode_threads(v.tile())}},
          .arch = arch,
          .dynamic_smem_bytes = static_cast<unsigned>(decode_smem(v.tile()).bytes),
          .min_blocks = v.blocks};
}

std::vector<KernelSpec> decode_specs(const Arch& arch) {
  std::vector<KernelSpec> specs;
  if (!arch.cp_async) return specs;
  constexpr int kManySequences = 1 << 20;
  const auto add = [&](DecodeVariant v, std::int64_t items) {
    choose_slots(v, {.max_smem = arch.max_smem_per_block}, items);
    specs.push_back(decode_spec(v, arch.target));
  };
  for (const auto& [element, rows, head_dim, head_dim_v, shares, many_units, items] :
       {std::tuple{ElementType::kBF16, 8, 128, 128, 0, 0, 0}, std::tuple{ElementType::kF16, 16, 64, 64, 0, 0, 0},
        std::tuple{ElementType::kBF16, 32, 128, 128, 0, 0, 0}, std::tuple{ElementType::kBF16, 64, 128, 128, 0, 0, 0},
        std::tuple{ElementType::kBF16, 8, 72, 40, 0, 1, 0}, std::tuple{ElementType::kF32, 8, 128, 128, 0, 0, 0},
        std::tuple{ElementType::kBF16, 16, 256, 256, 0, 0, 0}, std::tuple{ElementType::kBF16, 16, 576, 512, 1, 0, 0},
        std::tuple{ElementType::kBF16, 16, 128, 128, 0, 0, kManySequences}}) {
    DecodeVariant v = {.element = element, .head_dim = head_dim, .head_dim_v = head_dim_v, .values_are_keys = shares};
    v.many_units = many_units;
    if (!choose_rows(v, rows, arch.max_smem_per_block)) continue;
    v.has_boxes = arch.tma && head_dim != 256 ? 1 : 0;  // adds one variant without boxes, at head_dim 256
    add(v, items);
  }
  for (const auto& [element, head_dim, head_dim_v, shares] :
       {std::tuple{ElementType::kBF16, 128, 128, 0}, std::tuple{ElementType::kF16, 72, 40, 0},
        std::tuple{ElementType::kF16, 64, 64, 1}, std::tuple{ElementType::kBF16, 576, 512, 1}}) {
    constexpr int kRows = 64;
    DecodeVariant v = {.element = element, .head_dim = head_dim, .head_dim_v = head_dim_v, .values_are_keys = shares};
    v.has_boxes = 1;
    if (arch.wgmma && (choose_warpgroups(v, kRows, arch.max_smem_per_block) ||
                       choose_halves_of_columns(v, kRows, arch.max_smem_per_block))) {
      add(v, 0);
    }
  }
  return specs;
}

}  // namespace attend::cuda
