#include "cuda/launch/sm90_mask_steps.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "core/block_tiles.hpp"
#include "cuda/launch/block_mask_lists.hpp"
#include "kernels/attention/work.cuh"

namespace attend::cuda {
namespace {

using core::kMaskTile;

constexpr int kWarp = 32;
constexpr std::int64_t kAlignment = 256;

KernelSpec spec_of(const Arch& arch, const char* function, const char* source, int warps) {
  return {.name = function,
          .source = source,
          .function = function,
          .args = Sm90MaskArgs::kTypeName,
          .config = {{"kThreads", warps * kWarp}},
          .arch = arch.target};
}

/// Returns whether the mask is the same for all indices of dimension `dim`.
bool is_broadcast(const Tensor& mask, std::size_t dim) {
  return mask.shape[dim] == 1 || mask.stride[dim] == 0;
}

std::string too_many_text(const core::Problem& p) {
  return std::to_string(p.num_sequences) + " sequences, " + std::to_string(p.num_heads_q) + " heads, seqlen_q " +
         std::to_string(p.max_seqlen_q) + ", seqlen_k " + std::to_string(p.max_seqlen_k);
}

}  // namespace

void Sm90MaskLists::add_specs(const Arch& arch, std::vector<KernelSpec>& specs) const {
  constexpr const char* kLists = "sm90/sm90_mask_lists.cuh";
  specs.push_back(spec_of(arch, "sm90_mask_tiles", "sm90/sm90_mask_tiles.cuh", kMaskTilesOfBlock));
  if (has_order) specs.push_back(spec_of(arch, "sm90_mask_turns", kLists, kMaskListsOfBlock));
  for (const int keys : {by_keys_keys, by_rows_keys}) {
    if (keys > 0) specs.push_back(spec_of(arch, "sm90_mask_lists", kLists, kMaskListsOfBlock));
  }
}

Sm90MaskListArgs Sm90MaskLists::args(const Launch& launch, std::byte* memory) const {
  const core::Problem& p = launch.problem;
  if (p.mask) {
    const Sm90MaskSteps steps(p, *this);
    std::vector<Sm90MaskArgs> of_steps = steps.args(memory);
    for (std::size_t step = 0; step < of_steps.size(); ++step) launch.run(step, of_steps[step]);
    return steps.lists(memory);
  }
  Sm90MaskListArgs lists;
  if (p.block_mask == nullptr) return lists;
  const int device = p.q.device.index;
  if (by_keys_keys > 0) {
    lists.by_keys = block_mask_args_by_keys(*p.block_mask, device, by_keys_keys, static_cast<int>(p.heads_per_group()),
                                            is_persistent);
  }
  if (by_rows_rows > 0) lists.by_rows = block_mask_args(*p.block_mask, device, by_rows_rows, by_rows_keys);
  return lists;
}

Sm90MaskSteps::Sm90MaskSteps(const core::Problem& p, const Sm90MaskLists& lists) : problem_(p), lists_(lists) {
  constexpr std::int64_t kPatternBytes = kPatternWords * std::int64_t{sizeof(uint32)};
  const core::BlockTiles* const other = p.block_mask;
  const bool same_sequences = is_broadcast(*p.mask, 0) && (other == nullptr || other->batch == 1);
  const bool same_heads = is_broadcast(*p.mask, 1) && (other == nullptr || other->num_heads == 1);
  sequences_ = same_sequences ? std::min<std::int64_t>(1, p.num_sequences) : p.num_sequences;
  num_heads_ = same_heads ? std::min<std::int64_t>(1, p.num_heads_q) : p.num_heads_q;
  tile_rows_ = num_tiles(p.max_seqlen_q, kMaskTile);
  tile_columns_ = num_tiles(p.max_seqlen_k, kMaskTile);
  mask_rows_ = p.mask->stride[2] == 0 && other == nullptr ? std::min<std::int64_t>(1, tile_rows_) : tile_rows_;
  const std::int64_t tiles = sequences_ * num_heads_ * mask_rows_ * tile_columns_;
  kinds_at_ = place(tiles * std::int64_t{sizeof(int)});
  if (lists.by_keys_keys > 0) {
    by_keys_ = part({.by_keys = 1,
                     .rows = 1,
                     .keys = static_cast<int>(lists.by_keys_keys / kMaskTile),
                     .heads = num_heads_ <= 1 ? 1 : static_cast<int>(p.heads_per_group())});
    patterns_by_key_at_ = place(tiles * kPatternBytes);
    const std::int64_t turns = by_keys_.num_lists(sequences_) * tile_rows_;
    turns_at_ = place(lists.has_order ? turns * std::int64_t{sizeof(int)} : 0);
  }
  if (lists.by_rows_rows > 0) {
    by_rows_ = part({.by_keys = 0,
                     .rows = static_cast<int>(lists.by_rows_rows / kMaskTile),
                     .keys = static_cast<int>(lists.by_rows_keys / kMaskTile),
                     .heads = 1});
    patterns_at_ = place(tiles * kPatternBytes);
  }
}

std::int64_t Sm90MaskSteps::place(std::int64_t bytes) {
  const std::int64_t at = bytes_;
  bytes_ += num_tiles(bytes, kAlignment) * kAlignment;
  return at;
}

Sm90MaskSteps::Part Sm90MaskSteps::part(MaskListShape shape) {
  Part part = {.shape = shape,
               .lists = shape.lists(tile_rows_, tile_columns_),
               .heads = num_heads_ / shape.heads,
               .elements = shape.elements(tile_rows_, tile_columns_)};
  const std::int64_t lists = part.num_lists(sequences_);
  part.bounds_at = place(2 * lists * std::int64_t{sizeof(int64)});
  part.entries_at = place(lists * part.elements * shape.entry_words() * std::int64_t{sizeof(int)});
  return part;
}

void Sm90MaskSteps::add_steps(Choice& choice) const {
  const std::int64_t heads = sequences_ * num_heads_;
  choice.add_step({.blocks = heads * mask_rows_ * num_tiles(tile_columns_, kMaskTilesOfBlock)});
  if (lists_.has_order) {
    choice.add_step({.blocks = num_tiles(sequences_ * by_keys_.heads * tile_rows_, kMaskListsOfBlock)});
  }
  for (const Part* part : {&by_keys_, &by_rows_}) {
    if (part->exists()) choice.add_step({.blocks = num_tiles(part->num_lists(sequences_), kMaskListsOfBlock)});
  }
}

double Sm90MaskSteps::seconds(const DeviceInfo& device) const {
  constexpr double kBytesPerSecond = 3e12, kMultiprocessors = 132;  // H200
  const double share = static_cast<double>(device.num_multiprocessors) / kMultiprocessors;
  const double rows = static_cast<double>(mask_rows_ * kMaskTile);
  return static_cast<double>(sequences_ * num_heads_) * rows * static_cast<double>(problem_.max_seqlen_k) /
         (kBytesPerSecond * share);
}

std::optional<core::Lack> Sm90MaskSteps::lack() const {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  const std::int64_t tiles = sequences_ * num_heads_ * mask_rows_ * tile_columns_;
  if (tiles <= kMost && by_keys_.num_lists(sequences_) * by_keys_.elements <= kMost) return std::nullopt;
  return core::Lack{"mask", "tiles of all sequences and heads:", too_many_text, "2^31 - 1"};
}

BlockMaskArgs Sm90MaskSteps::args_of(const Part& part, std::byte* memory, std::int64_t patterns_at) const {
  if (!part.exists()) return {};
  return {.bounds = reinterpret_cast<const int64*>(memory + part.bounds_at),
          .entries = reinterpret_cast<const int*>(memory + part.entries_at),
          .patterns = reinterpret_cast<const uint32*>(memory + patterns_at),
          .sequence_stride = sequences_ == 1 ? 0 : part.heads * part.lists,
          .head_stride = num_heads_ == 1 ? 0 : part.lists,
          .entry_words = part.shape.entry_words(),
          .head_words = num_heads_ == 1 ? 0 : part.shape.keys};
}

std::vector<Sm90MaskArgs> Sm90MaskSteps::args(std::byte* memory) const {
  const core::Problem& p = problem_;
  const auto words = [memory](std::int64_t at) { return reinterpret_cast<uint32*>(memory + at); };
  const core::Problem::Window window = p.own_window();
  Sm90MaskArgs args = {.mask = static_cast<const unsigned char*>(p.mask->data),
                       .patterns = by_rows_.exists() ? words(patterns_at_) : nullptr,
                       .patterns_by_key = by_keys_.exists() ? words(patterns_by_key_at_) : nullptr,
                       .kinds = reinterpret_cast<int*>(memory + kinds_at_),
                       .turns = lists_.has_order ? reinterpret_cast<int*>(memory + turns_at_) : nullptr,
                       .bounds = nullptr,
                       .entries = nullptr,
                       .mask_stride = core::strides_of(*p.mask),
                       .seqlen_q = p.max_seqlen_q,
                       .seqlen_k = p.max_seqlen_k,
                       .window_left = window.left,
                       .window_right = window.right,
                       .other = {},
                       .shape = by_keys_.exists() ? by_keys_.shape : by_rows_.shape,
                       .sequences = static_cast<uint32>(sequences_),
                       .num_heads = static_cast<uint32>(num_heads_),
                       .mask_rows = static_cast<int>(mask_rows_),
                       .is_persistent = lists_.is_persistent ? 1 : 0};
  if (p.block_mask != nullptr) args.other = block_mask_args(*p.block_mask, p.q.device.index, kMaskTile, kMaskTile);
  // The first element is for the kernel that reads the mask. If additions are ordered, the second one is for the kernel
  // that determines their order.
  std::vector<Sm90MaskArgs> all(lists_.has_order ? 2 : 1, args);
  for (const Part* part : {&by_keys_, &by_rows_}) {
    if (!part->exists()) continue;
    args.shape = part->shape;
    args.bounds = reinterpret_cast<int64*>(memory + part->bounds_at);
    args.entries = reinterpret_cast<int*>(memory + part->entries_at);
    all.push_back(args);
  }
  return all;
}

Sm90MaskListArgs Sm90MaskSteps::lists(std::byte* memory) const {
  return {args_of(by_keys_, memory, patterns_by_key_at_), args_of(by_rows_, memory, patterns_at_)};
}

}  // namespace attend::cuda
