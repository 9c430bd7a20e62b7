// Decoding on a CPU. Splits a call into tiles and the keys of a tile into parts, and distributes the parts over
// threads.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "cpu/kernels.hpp"
#include "cpu/parallel.hpp"
#include "cpu/serving/decode_backends.hpp"
#include "cpu/serving/decode_tiles.hpp"

namespace attend::cpu {
namespace {

using core::DecodeProblem;
using core::DecodeSequence;

/// A tile and the leaves (blocks of keys) that it reads.
struct TileWork {
  DecodeTile tile;
  LeafRange leaves;
  /// Index of the tile's first partial result. It is -1 if a single part computes the tile.
  std::int64_t first_part = -1;
};

/// A range of leaves of a tile that one thread computes.
struct Part {
  std::int64_t tile;
  LeafRange leaves;
  LeafRange node;  ///< all leaves below the tree node whose result the part computes
  std::int64_t place = -1;
};

/// Returns whether a call reads more data than fits into the processor caches of the threads. If the data fits,
/// prefetches are not used, because their instructions would take longer than they save.
bool exceeds_caches(const DecodeProblem& p, const std::vector<TileWork>& tiles, int threads) {
  constexpr std::int64_t kCacheOfThread = 1 << 20;  // cache size per thread, in bytes
  std::int64_t leaves = 0;
  for (const TileWork& work : tiles) leaves += work.leaves.end - work.leaves.begin;
  return leaves * kLeaf * (p.head_dim + p.head_dim_v) * dtype_bytes(p.k.dtype) > threads * kCacheOfThread;
}

std::vector<TileWork> tiles_of(const DecodeProblem& p) {
  std::vector<TileWork> tiles;
  for (std::int64_t index = 0; index < p.num_sequences; ++index) {
    const DecodeSequence s = p.sequence(index);
    const std::int64_t packed_rows = s.seqlen_q * p.heads_per_group();
    for (std::int64_t head = 0; head < p.num_heads_k; ++head) {
      for (std::int64_t row = 0; row < packed_rows; row += kTileRows) {
        const DecodeTile tile = {s, head, row, static_cast<int>(std::min<std::int64_t>(kTileRows, packed_rows - row))};
        tiles.push_back({tile, LeafRange::of(tile.keys(p))});
      }
    }
  }
  return tiles;
}

/// Returns the number of leaves in a part, which is a power of two. Long rows are split into enough parts that all
/// threads have work and finish at about the same time.
std::int64_t leaves_per_part(const std::vector<TileWork>& tiles, int threads) {
  constexpr std::int64_t kPartsPerThread = 8;
  constexpr std::int64_t kFewest = 4;  // lower limit, because each part writes and copies a result
  std::int64_t leaves = 0;
  for (const TileWork& work : tiles) leaves += work.leaves.end - work.leaves.begin;
  const std::int64_t wanted = std::max(kFewest, leaves / (threads * kPartsPerThread));
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(wanted)));
}

/// Splits the tiles into parts. If a tile has several parts, the function reserves memory for their partial results.
std::vector<Part> parts_of(std::vector<TileWork>& tiles, std::int64_t per_part) {
  std::vector<Part> parts;
  std::int64_t places = 0;
  for (std::size_t number = 0; number < tiles.size(); ++number) {
    TileWork& work = tiles[number];
    const auto tile = static_cast<std::int64_t>(number);
    const std::int64_t first = work.leaves.begin / per_part;
    if (work.leaves.end <= (first + 1) * per_part) {
      parts.push_back({tile, work.leaves, {first * per_part, (first + 1) * per_part}});
      continue;
    }
    work.first_part = places;
    for (std::int64_t node = first * per_part; node < work.leaves.end; node += per_part) {
      const LeafRange leaves = {std::max(work.leaves.begin, node), std::min(work.leaves.end, node + per_part)};
      parts.push_back({tile, leaves, {node, node + per_part}, places++});
    }
  }
  return parts;
}

int threads_for(const DecodeProblem& p, const std::vector<TileWork>& tiles) {
  constexpr double kWorkWorthThreads = 1 << 18;  // number of multiplications that take as long as starting the threads
  double scores = 0;
  for (const TileWork& work : tiles) {
    scores += static_cast<double>(work.tile.rows) * static_cast<double>((work.leaves.end - work.leaves.begin) * kLeaf);
  }
  return scores * static_cast<double>(p.head_dim + p.head_dim_v) < kWorkWorthThreads ? 1 : max_threads();
}

}  // namespace

void decode(const DecodeProblem& p) {
  // Must be called before threads start, because it may throw an exception about an environment variable, and only an
  // exception of this thread reaches the caller.
  choose_simd_target();
  std::vector<TileWork> tiles = tiles_of(p);
  const int threads = threads_for(p, tiles);
  const bool prefetches = exceeds_caches(p, tiles, threads);
  for (TileWork& work : tiles) work.tile.prefetches = prefetches;
  const std::int64_t per_part = threads == 1 ? std::int64_t{1} << (kMostLevels - 1) : leaves_per_part(tiles, threads);
  const std::vector<Part> parts = parts_of(tiles, per_part);
  const std::int64_t floats = state_floats(p.head_dim_v);
  std::int64_t places = 0;
  for (const Part& part : parts) places = std::max(places, part.place + 1);
  std::vector<float> results(static_cast<std::size_t>(places * floats));
  parallel_for(static_cast<std::int64_t>(parts.size()), threads, [&](std::int64_t number) {
    const Part& part = parts[static_cast<std::size_t>(number)];
    float* result = part.place < 0 ? nullptr : results.data() + part.place * floats;
    decode_leaves(p, tiles[static_cast<std::size_t>(part.tile)].tile, part.leaves, part.node, result,
                  Scratch::of_this_thread());
    Scratch::of_this_thread().release_if_large();
  });
  if (places == 0) return;
  parallel_for(static_cast<std::int64_t>(tiles.size()), threads, [&](std::int64_t number) {
    const TileWork& work = tiles[static_cast<std::size_t>(number)];
    if (work.first_part < 0) return;
    merge_parts(p, work.tile, work.leaves, per_part, results.data() + work.first_part * floats,
                Scratch::of_this_thread());
  });
}

}  // namespace attend::cpu
