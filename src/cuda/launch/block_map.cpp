#include "cuda/launch/block_map.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "cuda/launch/mask_memory.hpp"

namespace attend::cuda {
namespace {

using core::BlockTiles;
using core::kMaskTile;
using core::SeenTiles;

static_assert(kMapPatternWords == 2 * kMaskTile);

/// The map of one mask in the memory of one GPU.
class OnDevice {
 public:
  OnDevice(const BlockMaskMap& map, int device)
      : device_(device), tiles_(map.tiles.size() * sizeof(int)), patterns_(map.patterns.size() * sizeof(uint64)) {
    const OwnStream stream;  // the default stream would wait for a stream that is being captured
    fill(tiles_, map.tiles, stream.get());
    fill(patterns_, map.patterns, stream.get());
    synchronize(stream.get());
  }
  ~OnDevice() { give_back(device_, tiles_, patterns_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  [[nodiscard]] BlockMapArgs args(const BlockTiles& tiles) const {
    const std::int64_t of_head = tiles.tile_rows() * tiles.tile_columns();
    return {reinterpret_cast<const int*>(tiles_.data()),        // NOLINT(performance-no-int-to-ptr)
            reinterpret_cast<const uint64*>(patterns_.data()),  // NOLINT(performance-no-int-to-ptr)
            tiles.batch == 1 ? 0 : tiles.num_heads * of_head,
            tiles.num_heads == 1 ? 0 : of_head,
            static_cast<int>(tiles.tile_rows()),
            static_cast<int>(tiles.tile_columns())};
  }

 private:
  int device_;
  DeviceMemory tiles_, patterns_;
};

/// The maps of one mask, one for each GPU.
class OnDevices {
 public:
  BlockMapArgs args(const BlockTiles& tiles, int device) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<OnDevice>& map = maps_[device];
    if (map == nullptr) {
      const RelaxedCapture relaxed;  // keeps the copy out of a CUDA graph that this thread may be capturing
      map = std::make_unique<OnDevice>(BlockMaskMap::of(tiles), device);
    }
    return map->args(tiles);
  }

 private:
  std::mutex mutex_;
  std::map<int, std::unique_ptr<OnDevice>> maps_;
};

}  // namespace

BlockMaskMap BlockMaskMap::of(const BlockTiles& tiles) {
  BlockMaskMap map;
  const std::int64_t rows = tiles.batch * tiles.num_heads * tiles.tile_rows();
  map.tiles.assign(static_cast<std::size_t>(rows * tiles.tile_columns()), kNoneSeen);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t* at = tiles.row_begin.data() + row;
    for (std::int64_t n = at[0]; n < at[1]; ++n) {
      const SeenTiles& some = tiles.seen[static_cast<std::size_t>(n)];
      const auto first = map.tiles.begin() + row * tiles.tile_columns();
      std::fill(first + some.begin, first + some.end, some.pattern);
    }
  }
  map.patterns.reserve(tiles.patterns.size() * kMapPatternWords);
  for (const core::TilePattern& pattern : tiles.patterns) {
    for (std::int64_t row = 0; row < kMaskTile; ++row) {
      uint64 keys = 0;
      for (std::int64_t key = 0; key < kMaskTile; ++key) {
        keys |= (pattern[static_cast<std::size_t>(key)] >> row & 1) << key;
      }
      map.patterns.push_back(keys);
    }
    map.patterns.insert(map.patterns.end(), pattern.begin(), pattern.end());
  }
  return map;
}

BlockMapArgs block_map_args(const BlockTiles& tiles, int device) {
  return made_once<OnDevices>(tiles.maps_on_devices)->args(tiles, device);
}

void set_block_map(OptionArgs& options, const core::Problem& p) {
  if (p.block_mask != nullptr) options.block_map = block_map_args(*p.block_mask, p.q.device.index);
}

}  // namespace attend::cuda
