#include "cuda/launch/block_mask_lists.hpp"

#include <algorithm>
#include <compare>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "attend/error.hpp"
#include "cuda/launch/mask_memory.hpp"
#include "kernels/sm90/sm90_backward_schedule.cuh"
#include "kernels/tiles/accumulator_mask.cuh"

namespace attend::cuda {
namespace {

using core::BlockTiles;
using core::kMaskTile;
using core::SeenTiles;

/// The visible key tiles of 64 query rows, in ascending order.
class RowOfTiles {
 public:
  RowOfTiles() = default;
  explicit RowOfTiles(std::span<const SeenTiles> tiles) : rest_(tiles) {}

  /// Returns the first visible key tile at or after key tile `key`, or -1 if there is none. The argument must not
  /// decrease from call to call.
  [[nodiscard]] std::int64_t first_from(std::int64_t key) {
    while (!rest_.empty() && rest_.front().end <= key) rest_ = rest_.subspan(1);
    return rest_.empty() ? -1 : std::max<std::int64_t>(rest_.front().begin, key);
  }
  /// Returns the pattern number of key tile `key`, or kNoneSeen if the tile is hidden. The argument must not decrease
  /// from call to call.
  [[nodiscard]] std::int32_t pattern_of(std::int64_t key) {
    return first_from(key) == key ? rest_.front().pattern : kNoneSeen;
  }

 private:
  std::span<const SeenTiles> rest_ = {};
};

/// Divides the key tiles into groups of `keys` tiles. Returns the first group, starting with group `from`, that at
/// least one of `rows` sees. Returns -1 if there is none.
std::int64_t next_tile(std::vector<RowOfTiles>& rows, std::int64_t from, std::int64_t keys) {
  std::int64_t next = -1;
  for (RowOfTiles& row : rows) {
    const std::int64_t first = row.first_from(from * keys);
    if (first >= 0 && (next < 0 || first / keys < next)) next = first / keys;
  }
  return next;
}

/// Appends the lists of one head to `lists`.
void add_head(const BlockTiles& tiles, std::int64_t head, std::int64_t rows, std::int64_t keys, BlockMaskLists& lists) {
  const std::int64_t first = head * tiles.tile_rows();
  for (std::int64_t row = 0; row < tiles.tile_rows(); row += rows) {
    lists.begin.push_back(static_cast<int64>(lists.entries.size()) / (1 + rows * keys));
    std::vector<RowOfTiles> of_rows(static_cast<std::size_t>(rows));
    for (std::int64_t n = 0; n < rows && row + n < tiles.tile_rows(); ++n) {
      const std::int64_t* at = tiles.row_begin.data() + first + row + n;
      of_rows[static_cast<std::size_t>(n)] =
          RowOfTiles({tiles.seen.data() + at[0], static_cast<std::size_t>(at[1] - at[0])});
    }
    for (std::int64_t tile = next_tile(of_rows, 0, keys); tile >= 0; tile = next_tile(of_rows, tile + 1, keys)) {
      lists.entries.push_back(static_cast<int>(tile));
      for (RowOfTiles& of_row : of_rows) {
        for (std::int64_t key = tile * keys; key < (tile + 1) * keys; ++key) {
          lists.entries.push_back(of_row.pattern_of(key));
        }
      }
    }
  }
}

/// Writes the last word of each entry: the number of key blocks that must add to the row tile before the key block of
/// this entry.
void number_turns(std::vector<std::vector<int>>& of_blocks, std::int64_t words, std::int64_t tile_rows,
                  bool is_persistent) {
  const int blocks = static_cast<int>(of_blocks.size());
  const auto order = Sm90BackwardOrder::of(blocks, is_persistent);
  std::vector<int> before(static_cast<std::size_t>(tile_rows));
  for (int place = 0; place < blocks; ++place) {
    std::vector<int>& list = of_blocks[static_cast<std::size_t>(order.block_at(place))];
    for (std::size_t at = 0; at < list.size(); at += static_cast<std::size_t>(words)) {
      list[at + static_cast<std::size_t>(words) - 1] = before[static_cast<std::size_t>(list[at])]++;
    }
  }
}

/// Identifies a set of lists by GPU and tile size. If `rows` is 0, the set has lists of the row tiles that see each key
/// block. Otherwise it has lists of the key tiles that each row tile sees.
struct Kind {
  int device, rows, keys, heads;
  bool is_persistent = false;

  auto operator<=>(const Kind&) const = default;

  [[nodiscard]] bool is_by_keys() const { return rows == 0; }
  [[nodiscard]] BlockMaskLists lists_of(const BlockTiles& tiles) const {
    return is_by_keys() ? BlockMaskLists::by_keys(tiles, keys, heads, is_persistent)
                        : BlockMaskLists::of(tiles, rows, keys);
  }
};

/// All sets of lists of one mask.
class OnDevices {
 public:
  BlockMaskArgs args(const BlockTiles& tiles, const Kind& kind) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Memory>& memory = lists_[kind];
    if (memory == nullptr) {
      const RelaxedCapture relaxed;  // keeps the copy out of a CUDA graph that this thread may be capturing
      memory = std::make_unique<Memory>(kind.lists_of(tiles), pattern_words(tiles, kind.is_by_keys()), kind.device);
    }
    const std::int64_t of_head =
        kind.is_by_keys() ? (tiles.seqlen_k + kind.keys - 1) / kind.keys : (tiles.seqlen_q + kind.rows - 1) / kind.rows;
    const std::int64_t heads =
        kind.is_by_keys() ? std::max<std::int64_t>(1, tiles.num_heads / kind.heads) : tiles.num_heads;
    const int patterns = static_cast<int>(kind.keys / kMaskTile);
    const int groups =
        kind.is_by_keys() ? (tiles.num_heads == 1 ? 1 : kind.heads) : static_cast<int>(kind.rows / kMaskTile);
    return {reinterpret_cast<const int64*>(memory->bounds.data()),     // NOLINT(performance-no-int-to-ptr)
            reinterpret_cast<const int*>(memory->entries.data()),      // NOLINT(performance-no-int-to-ptr)
            reinterpret_cast<const uint32*>(memory->patterns.data()),  // NOLINT(performance-no-int-to-ptr)
            tiles.batch == 1 ? 0 : heads * of_head,
            tiles.num_heads == 1 ? 0 : of_head,
            (kind.is_by_keys() ? 2 : 1) + groups * patterns,
            tiles.num_heads == 1 ? 0 : patterns};
  }

 private:
  struct Memory {
    Memory(const BlockMaskLists& lists, const std::vector<uint32>& words, int device)
        : device_index(device),
          bounds(2 * (lists.begin.size() - 1) * sizeof(int64)),
          entries(lists.entries.size() * sizeof(int)),
          patterns(words.size() * sizeof(uint32)) {
      const OwnStream stream;  // the default stream would wait for a stream that is being captured
      std::vector<int64> of_lists;
      for (std::size_t n = 0; n + 1 < lists.begin.size(); ++n) {
        of_lists.insert(of_lists.end(), {lists.begin[n], lists.begin[n + 1]});
      }
      fill(bounds, of_lists, stream.get());
      fill(entries, lists.entries, stream.get());
      fill(patterns, words, stream.get());
      synchronize(stream.get());
    }
    ~Memory() { give_back(device_index, bounds, entries, patterns); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    int device_index;
    DeviceMemory bounds, entries, patterns;
  };

  std::mutex mutex_;
  std::map<Kind, std::unique_ptr<Memory>> lists_;
};

}  // namespace

BlockMaskLists BlockMaskLists::of(const BlockTiles& tiles, int rows, int keys) {
  BlockMaskLists lists;
  const std::int64_t tile_rows = rows / kMaskTile, tile_keys = keys / kMaskTile;
  for (std::int64_t head = 0; head < tiles.batch * tiles.num_heads; ++head) {
    add_head(tiles, head, tile_rows, tile_keys, lists);
  }
  lists.begin.push_back(static_cast<int64>(lists.entries.size()) / (1 + tile_rows * tile_keys));
  return lists;
}

BlockMaskLists BlockMaskLists::by_keys(const BlockTiles& tiles, int keys, int heads, bool is_persistent) {
  const std::int64_t of_block = keys / kMaskTile, group = tiles.num_heads == 1 ? 1 : heads;
  const std::int64_t blocks = (tiles.tile_columns() + of_block - 1) / of_block, words = 2 + group * of_block;
  BlockMaskLists lists;
  for (std::int64_t first = 0; first < tiles.batch * tiles.num_heads; first += group) {
    std::vector<std::vector<int>> of_blocks(static_cast<std::size_t>(blocks));  // one list for each key block
    for (std::int64_t row = 0; row < tiles.tile_rows(); ++row) {
      for (std::int64_t head = 0; head < group; ++head) {
        const std::int64_t* at = tiles.row_begin.data() + (first + head) * tiles.tile_rows() + row;
        for (std::int64_t n = at[0]; n < at[1]; ++n) {
          const SeenTiles& some = tiles.seen[static_cast<std::size_t>(n)];
          for (std::int64_t key = some.begin; key < some.end; ++key) {
            std::vector<int>& list = of_blocks[static_cast<std::size_t>(key / of_block)];
            if (list.empty() || list[list.size() - static_cast<std::size_t>(words)] != row) {
              list.push_back(static_cast<int>(row));
              list.resize(list.size() + static_cast<std::size_t>(words - 1), kNoneSeen);
            }
            // Number of words from the pattern's position to the end of the list. Word 0 of an entry is the row tile.
            const std::int64_t from_end = words - 1 - head * of_block - key % of_block;
            list[list.size() - static_cast<std::size_t>(from_end)] = some.pattern;
          }
        }
      }
    }
    number_turns(of_blocks, words, tiles.tile_rows(), is_persistent);
    for (const std::vector<int>& list : of_blocks) {
      lists.begin.push_back(static_cast<int64>(lists.entries.size()) / words);
      lists.entries.insert(lists.entries.end(), list.begin(), list.end());
    }
  }
  lists.begin.push_back(static_cast<int64>(lists.entries.size()) / words);
  if (lists.begin.back() > std::numeric_limits<int>::max()) {  // kernels store the number of entries in an int
    throw Error(ErrorCode::kUnsupported, "block_mask: more than 2^31 - 1 pairs of 64 rows and a block of keys");
  }
  return lists;
}

std::vector<uint32> pattern_words(const BlockTiles& tiles, bool transposed) {
  std::vector<uint32> words;
  words.reserve(tiles.patterns.size() * kPatternWords);
  for (const core::TilePattern& pattern : tiles.patterns) {
    for (int thread = 0; thread < kPatternWords; ++thread) {
      uint32 word = 0;
      for (int i = 0; i < 32; ++i) {
        int row = accumulator_row(thread) + i / 2 % 2 * kRowHalf;
        int key = accumulator_column(thread) + i / 4 * kColumnsOfTile + i % 2;
        if (transposed) std::swap(row, key);
        word |= static_cast<uint32>(pattern[static_cast<std::size_t>(key)] >> row & 1) << i;
      }
      words.push_back(word);
    }
  }
  return words;
}

namespace {

BlockMaskArgs args_of_kind(const BlockTiles& tiles, const Kind& kind) {
  return made_once<OnDevices>(tiles.on_devices)->args(tiles, kind);
}

}  // namespace

BlockMaskArgs block_mask_args(const BlockTiles& tiles, int device, int rows, int keys) {
  return args_of_kind(tiles, {device, rows, keys, 1});
}

BlockMaskArgs block_mask_args_by_keys(const BlockTiles& tiles, int device, int keys, int heads, bool is_persistent) {
  return args_of_kind(tiles, {device, 0, keys, heads, is_persistent});
}

}  // namespace attend::cuda
