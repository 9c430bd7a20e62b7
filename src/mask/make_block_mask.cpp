// Evaluates a mask function and makes tiles. Bounds of the function classify rectangles of tiles as empty or full. The
// search starts with large rectangles and divides those that the bounds cannot classify. The function itself is
// evaluated only in tiles that the bounds cannot classify.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <new>
#include <unordered_map>
#include <utility>

#define XXH_INLINE_ALL  // makes xxhash header-only, so that no library is needed
#include <xxhash.h>

#include "attend/block_mask.hpp"
#include "core/block_tiles.hpp"
#include "core/problem.hpp"
#include "core/problem_checks.hpp"
#include "cpu/parallel.hpp"
#include "cpu/score_function.hpp"
#include "mask/capture_bounds.hpp"
#include "mask/finished_tiles.hpp"
#include "mask/gpu_tiles.hpp"
#include "mask/mask_function.hpp"

namespace attend {
namespace {

using core::BlockTiles;
using core::kAllSeen;
using core::kMaskTile;
using core::SeenTiles;
using core::TilePattern;
using expr::Interval;
using expr::Variable;

/// A set of patterns. Equal patterns are stored once.
class PatternSet {
 public:
  /// Adds a pattern and returns its number.
  std::int32_t add(const TilePattern& pattern) {
    std::vector<std::int32_t>& of_hash = by_hash_[XXH3_64bits(pattern.data(), sizeof(pattern))];
    for (const std::int32_t number : of_hash) {
      if (all_[static_cast<std::size_t>(number)] == pattern) return number;
    }
    of_hash.push_back(static_cast<std::int32_t>(all_.size()));
    all_.push_back(pattern);
    return of_hash.back();
  }
  [[nodiscard]] const std::vector<TilePattern>& all() const { return all_; }
  [[nodiscard]] std::vector<TilePattern> take() { return std::move(all_); }

 private:
  std::vector<TilePattern> all_;
  std::unordered_map<std::uint64_t, std::vector<std::int32_t>> by_hash_;
};

/// Some neighbouring rows of tiles of one head. Until they are sorted, the tiles of a row are in any order.
struct SomeRows {
  std::int64_t batch, head, begin, end;
  // Visible tiles of each row of tiles; pattern numbers are indices into `patterns`.
  std::vector<std::vector<SeenTiles>> seen = {};
  PatternSet patterns = {};
};

/// Fills in SomeRows objects. Not thread-safe.
class TileMaker {
 public:
  TileMaker(const MaskFunction::State& mask, std::span<const cpu::CapturedView> captures,
            const mask::CaptureBounds& bounds, const BlockTiles& sizes)
      : mask_(mask),
        sizes_(sizes),
        loads_([&bounds](std::int32_t capture, std::span<const Interval> at) { return bounds.of(capture, at); }),
        function_(mask.program, captures, kMaskTile) {}

  void fill(SomeRows& rows) {
    rows.seen.assign(static_cast<std::size_t>(rows.end - rows.begin), {});
    if (sizes_.tile_columns() > 0) decide(rows, {rows.begin, rows.end, 0, sizes_.tile_columns()});
    for (std::vector<SeenTiles>& of_row : rows.seen) put_in_order(of_row);
  }

 private:
  struct Rectangle {  // all members are numbers of tiles
    std::int64_t row_begin, row_end, key_begin, key_end;
  };

  [[nodiscard]] static std::int64_t rows_in(std::int64_t begin, std::int64_t end, std::int64_t length) {
    return std::min(end * kMaskTile, length) - begin * kMaskTile;
  }

  [[nodiscard]] Interval truth(const SomeRows& rows, const Rectangle& r) const {
    const auto one = [](std::int64_t x) { return Interval::of(static_cast<double>(x)); };
    const auto range = [](std::int64_t first, std::int64_t count) {
      return Interval{static_cast<double>(first), static_cast<double>(first + count - 1)};
    };
    expr::Ranges ranges = {};
    const auto set = [&](Variable variable, const Interval& x) { ranges[static_cast<std::size_t>(variable)] = x; };
    set(Variable::kBatch, one(rows.batch));
    set(Variable::kHead, one(rows.head));
    set(Variable::kRow, range(r.row_begin * kMaskTile, rows_in(r.row_begin, r.row_end, sizes_.seqlen_q)));
    set(Variable::kKey, range(r.key_begin * kMaskTile, rows_in(r.key_begin, r.key_end, sizes_.seqlen_k)));
    set(Variable::kRowsLength, one(sizes_.seqlen_q));
    set(Variable::kKeysLength, one(sizes_.seqlen_k));
    return expr::bounds_of(mask_.graph, mask_.result, ranges, loads_);
  }

  void decide(SomeRows& rows, const Rectangle& r) {
    const Interval is_seen = truth(rows, r);
    if (is_seen.high == 0) return;
    if (is_seen.low == 1) return add_full(rows, r);
    const std::int64_t tile_rows = r.row_end - r.row_begin, tile_keys = r.key_end - r.key_begin;
    if (tile_rows == 1 && tile_keys == 1) return evaluate(rows, r.row_begin, r.key_begin);
    Rectangle first = r, second = r;
    if (tile_rows > tile_keys) {
      first.row_end = second.row_begin = r.row_begin + tile_rows / 2;
    } else {
      first.key_end = second.key_begin = r.key_begin + tile_keys / 2;
    }
    decide(rows, first);
    decide(rows, second);
  }

  /// Sorts the tiles of a row by keys, and joins neighbouring full tiles.
  static void put_in_order(std::vector<SeenTiles>& of_row) {
    std::sort(of_row.begin(), of_row.end(), [](const SeenTiles& a, const SeenTiles& b) { return a.begin < b.begin; });
    std::size_t last = 0;
    for (std::size_t n = 1; n < of_row.size(); ++n) {
      SeenTiles& before = of_row[last];
      if (before.pattern == kAllSeen && of_row[n].pattern == kAllSeen && before.end == of_row[n].begin) {
        before.end = of_row[n].end;
      } else {
        of_row[++last] = of_row[n];
      }
    }
    if (!of_row.empty()) of_row.resize(last + 1);
  }

  void add(SomeRows& rows, std::int64_t tile_row, std::int64_t key_begin, std::int64_t key_end,
           std::int32_t pattern) const {
    rows.seen[static_cast<std::size_t>(tile_row - rows.begin)].push_back(
        {static_cast<std::int32_t>(key_begin), static_cast<std::int32_t>(key_end), pattern});
  }

  void add_full(SomeRows& rows, const Rectangle& r) const {
    for (std::int64_t tile_row = r.row_begin; tile_row < r.row_end; ++tile_row) {
      add(rows, tile_row, r.key_begin, r.key_end, kAllSeen);
    }
  }

  void evaluate(SomeRows& rows, std::int64_t tile_row, std::int64_t key_tile) {
    cpu::end_if_interrupted();
    const auto number = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
    const std::int64_t num_rows = rows_in(tile_row, tile_row + 1, sizes_.seqlen_q);
    const std::int64_t num_keys = rows_in(key_tile, key_tile + 1, sizes_.seqlen_k);
    TilePattern pattern = {};
    for (std::int64_t row = 0; row < num_rows; ++row) {
      function_.run({number(rows.batch), number(rows.head), number(tile_row * kMaskTile + row), number(sizes_.seqlen_q),
                     number(sizes_.seqlen_k), number(key_tile * kMaskTile)},
                    nullptr, static_cast<int>(num_keys));
      const std::int32_t* sees = function_.ints(0);
      for (std::int64_t key = 0; key < num_keys; ++key) {
        pattern[static_cast<std::size_t>(key)] |= std::uint64_t{sees[key] != 0} << row;
      }
    }
    std::int64_t pairs = 0;
    for (const std::uint64_t word : pattern) pairs += std::popcount(word);
    if (pairs == 0) return;
    add(rows, tile_row, key_tile, key_tile + 1, pairs == num_rows * num_keys ? kAllSeen : rows.patterns.add(pattern));
  }

  const MaskFunction::State& mask_;
  const BlockTiles& sizes_;
  expr::LoadBounds loads_;
  cpu::RowFunction function_;
};

/// Returns all rows of tiles in order, divided into parts for the threads.
std::vector<SomeRows> parts_of(const BlockTiles& sizes) {
  constexpr std::int64_t kTogether = 16;  // number of rows of tiles whose rectangles are classified together
  std::vector<SomeRows> parts;
  for (std::int64_t batch = 0; batch < sizes.batch; ++batch) {
    for (std::int64_t head = 0; head < sizes.num_heads; ++head) {
      for (std::int64_t begin = 0; begin < sizes.tile_rows(); begin += kTogether) {
        parts.push_back({batch, head, begin, std::min(begin + kTogether, sizes.tile_rows())});
      }
    }
  }
  return parts;
}

void put_together(std::vector<SomeRows>& parts, BlockTiles& tiles) {
  PatternSet patterns;
  tiles.row_begin.push_back(0);
  for (SomeRows& part : parts) {
    std::vector<std::int32_t> numbers;
    for (const TilePattern& pattern : part.patterns.all()) numbers.push_back(patterns.add(pattern));
    for (const std::vector<SeenTiles>& of_row : part.seen) {
      for (SeenTiles some : of_row) {
        if (some.pattern != kAllSeen) some.pattern = numbers[static_cast<std::size_t>(some.pattern)];
        tiles.seen.push_back(some);
      }
      tiles.row_begin.push_back(static_cast<std::int64_t>(tiles.seen.size()));
    }
    part = {};
  }
  tiles.patterns = patterns.take();
}

/// Returns the sizes of the mask. The mask has separate tiles for each sequence only if the function depends on b. It
/// has separate tiles for each head only if the function depends on h.
BlockTiles sizes_of(const MaskFunction::State& mask, const BlockMaskShape& shape) {
  const auto check = [](const char* name, std::int64_t size, std::int64_t least) {
    if (size < least || size > core::kMaxLength) {
      core::refuse("{}: {}, allowed {} to {}", name, size, least, core::kMaxLength);
    }
  };
  check("batch", shape.batch, 1);
  check("num_heads", shape.num_heads, 1);
  check("seqlen_q", shape.seqlen_q, 0);
  check("seqlen_k", shape.seqlen_k, 0);
  BlockTiles sizes = {.batch = 1, .num_heads = 1, .seqlen_q = shape.seqlen_q, .seqlen_k = shape.seqlen_k};
  const std::vector<bool> needed = mask.graph.needed_by(mask.result);
  for (std::size_t n = 0; n < needed.size(); ++n) {
    const expr::Node& node = mask.graph[static_cast<expr::Id>(n)];
    if (!needed[n] || node.op != expr::Op::kVariable) continue;
    if (node.which == static_cast<std::int32_t>(Variable::kBatch)) sizes.asks_for_batch = true;
    if (node.which == static_cast<std::int32_t>(Variable::kHead)) sizes.asks_for_head = true;
  }
  if (sizes.asks_for_batch) sizes.batch = shape.batch;
  if (sizes.asks_for_head) sizes.num_heads = shape.num_heads;
  constexpr double kMostRows = 1 << 28;
  const double rows =
      static_cast<double>(sizes.batch) * static_cast<double>(sizes.num_heads) * static_cast<double>(sizes.tile_rows());
  if (rows > kMostRows) {
    core::refuse("batch, num_heads, seqlen_q: {:.0f} rows of tiles of 64, allowed at most 2^28", rows);
  }
  return sizes;
}

void make_on_host(const MaskFunction::State& state, BlockTiles& tiles) {
  std::vector<cpu::CapturedView> captures;
  for (std::size_t n = 0; n < state.captured.size(); ++n) {
    if (state.captured[n].device.type != DeviceType::kCPU) {
      core::refuse(
          "mask: capture '{}': on CUDA device {}, allowed on a CPU if the mask is made on a CPU; or make the "
          "mask on that device",
          state.captures[n].name, state.captured[n].device.index);
    }
    captures.push_back(cpu::captured_view(state.captured[n], state.captures[n].tensor.shape.size()));
  }
  const mask::CaptureBounds bounds(state.graph, state.result, captures);
  std::vector<SomeRows> parts = parts_of(tiles);
  cpu::parallel_for(static_cast<std::int64_t>(parts.size()), cpu::max_threads(), [&](std::int64_t n) {
    TileMaker(state, captures, bounds, tiles).fill(parts[static_cast<std::size_t>(n)]);
  });
  put_together(parts, tiles);
}

}  // namespace

BlockMask make_block_mask(const MaskFunction& mask, const BlockMaskShape& shape, const BlockMaskPlace& place) {
  const MaskFunction::State& state = mask.state();
  auto tiles = std::make_shared<BlockTiles>(sizes_of(state, shape));
  try {
    if (place.device.type == DeviceType::kCUDA) {
      mask::make_on_gpu(state, place, *tiles);
    } else {
      make_on_host(state, *tiles);
    }
    mask::finish(*tiles);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::kInternal, "out of memory: tiles of a block mask");
  }
  return BlockMask(std::move(tiles));
}

}  // namespace attend
