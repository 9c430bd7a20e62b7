// Implements the public functions of BlockMask.
#include "attend/block_mask.hpp"

#include <utility>

#include "core/block_tiles.hpp"
#include "core/problem.hpp"
#include "core/problem_checks.hpp"

namespace attend {

static_assert(BlockMask::kTile == core::kMaskTile);

BlockMask::BlockMask(std::shared_ptr<const core::BlockTiles> tiles) noexcept : tiles_(std::move(tiles)) {}

BlockMaskShape BlockMask::shape() const noexcept {
  return {tiles_->batch, tiles_->num_heads, tiles_->seqlen_q, tiles_->seqlen_k};
}

BlockMask::Tiles BlockMask::tiles() const noexcept {
  Tiles tiles = {};
  tiles.all = tiles_->batch * tiles_->num_heads * tiles_->tile_rows() * tiles_->tile_columns();
  tiles.patterns = static_cast<std::int64_t>(tiles_->patterns.size());
  for (const core::SeenTiles& some : tiles_->seen) {
    (some.pattern == core::kAllSeen ? tiles.full : tiles.partial) += some.end - some.begin;
  }
  return tiles;
}

double BlockMask::density() const noexcept {
  const double all = static_cast<double>(tiles_->batch * tiles_->num_heads) * static_cast<double>(tiles_->seqlen_q) *
                     static_cast<double>(tiles_->seqlen_k);
  return all == 0 ? 1.0 : tiles_->num_pairs / all;
}

std::size_t BlockMask::bytes() const noexcept {
  return sizeof(core::BlockTiles) + tiles_->row_begin.size() * sizeof(std::int64_t) +
         tiles_->seen.size() * sizeof(core::SeenTiles) +
         tiles_->patterns.size() * (sizeof(core::TilePattern) + sizeof(std::uint64_t));
}

bool BlockMask::sees(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t key) const {
  const auto check = [](const char* name, std::int64_t index, std::int64_t extent) {
    if (extent == 0) core::refuse("{}: {}, allowed none", name, index);
    if (index < 0 || index >= extent) core::refuse("{}: {}, allowed 0 to {}", name, index, extent - 1);
  };
  check("batch", batch, tiles_->asks_for_batch ? tiles_->batch : core::kMaxLength);
  check("head", head, tiles_->asks_for_head ? tiles_->num_heads : core::kMaxLength);
  check("row", row, tiles_->seqlen_q);
  check("key", key, tiles_->seqlen_k);
  return core::HeadTiles(tiles_.get(), batch, head).sees(row, key);
}

}  // namespace attend
