// Brings keys and values into the ring, as far ahead of the products as it has slots, across pieces.
//
// A loading warp has 32 keys of every step, a lane one of them. Where a key lies is found two steps ahead: first the
// table of pages is asked, whose answer comes while the copies of the step before start; then the place and its factors
// follow. Keys that do not exist (beyond the length, left of the padding, without a page) or that no row sees become
// zeros: in a product of tiles 0 * NaN would reach rows that do not see them.
#pragma once

#include "../isa/cp_async.cuh"
#include "decode_config.cuh"
#include "decode_piece.cuh"

namespace attend {

template <class Config>
class DecodeLoader {
 public:
  using Sizes = DecodeSizes<Config>;

  // cursor: of the warp, at the block's first piece. warp: of the loading ones.
  __device__ __forceinline__ DecodeLoader(const DecodeArgs& args, const DecodeSchedule& schedule, DecodeCursor& cursor,
                                          const DecodeRing<Config>& ring, int warp, int lane)
      : args_(args), schedule_(schedule), cursor_(cursor), ring_(ring), warp_(warp), lane_(lane) {}

  // All steps of all pieces.
  __device__ __forceinline__ void run() {
    unit_ = cursor_.piece.first_step;
    Asked asked = {};
    Found next = {};
#pragma unroll 1
    for (int round = 0;; ++round) {  // the first two have nothing to load yet
      const Found now = next;
      if (now.has_step) load_keys(now);
      next = found(asked);
      asked = ask();
      ++unit_;
      if (Sizes::kLoadsValues && now.has_step) load_values(now);
      if (round > 0 && !next.has_step) break;
    }
    cp_async_commit();
    cp_async_wait<0>();  // a block's memory is not given back while copies may come
  }

 private:
  // The lane's key of a step, and what the table says of its page.
  struct Asked {
    bool has_step;    // false: there is no further one
    bool has_key;     // that exists, as far as lengths tell, and that a row sees
    int page;         // of a paged cache: nothing has looked at it yet
    int64 cache_row;  // of others
    int64 row;        // in the page, or in the cache's row
    int64 sequence, head;
  };
  struct Found {
    bool has_step;
    CachePlace row;
    int64 head;
    float2 factors;  // kHasFactors
  };

  // Step unit_ of the cursor's piece, or the first one of the next piece that has any.
  [[nodiscard]] __device__ __forceinline__ Asked ask() {
    while (!cursor_.is_done && unit_ >= cursor_.piece.end_step) {
      cursor_.advance(args_, schedule_, lane_);
      unit_ = cursor_.piece.first_step;
    }
    Asked asked = {};
    if (cursor_.is_done) return asked;
    const DecodeSpan& span = cursor_.item.span;
    const int64 key = static_cast<int64>(unit_) * kStepKeys + warp_ * kWarpThreads + lane_;
    asked.has_step = true;
    asked.has_key = key >= cursor_.piece.first_key && key < cursor_.piece.end_key;
    asked.sequence = span.index;
    asked.head = cursor_.piece.head;
    asked.cache_row = span.cache_row;
    asked.row = key;
    if (args_.cache.is_paged != 0 && asked.has_key) {
      const CachePlace in_table = split_by_blocks(args_.cache, key);
      asked.row = in_table.row;
      asked.page = args_.cache.pages[span.cache_row * args_.cache.table_row_stride + in_table.block];
    }
    return asked;
  }
  [[nodiscard]] __device__ __forceinline__ Found found(const Asked& asked) const {
    Found found = {asked.has_step, {-1, 0}, asked.head, {}};
    if (!asked.has_key) return found;
    const int64 block = args_.cache.is_paged != 0 ? existing_page(args_.cache, asked.page) : asked.cache_row;
    found.row = {block, asked.row};
    if constexpr (Sizes::kHasFactors) {
      if (!found.row.exists()) return found;
      found.factors.x = factor(args_.cache.k_descale, asked.sequence, asked.head, found.row);
      found.factors.y = factor(args_.cache.v_descale, asked.sequence, asked.head, found.row);
    }
    return found;
  }

  __device__ __forceinline__ void load_keys(const Found& key) {
    const int number = place_.stage;
    const bool exists = key.row.exists();
    ring_.empty(number).wait(place_.parity ^ 1);  // the slot's readers are done
    copy<Config::kHeadDim, Sizes::kKRow>(ring_.slot(number), static_cast<const char*>(args_.k),
                                         offset(key, args_.k_stride));
    const uint32 existing = __ballot_sync(kAllLanes, exists);
    if (lane_ == 0) ring_.existing(number)[warp_] = existing;
    if constexpr (Sizes::kHasFactors) {
      ring_.factors(number)[warp_ * kWarpThreads + lane_] = exists ? multipliers(key.factors) : float2{0.0f, 0.0f};
    }
    arrive();
  }
  __device__ __forceinline__ void load_values(const Found& key) {
    const int number = place_.stage;
    ring_.empty(number).wait(place_.parity ^ 1);  // the slot's readers are done
    copy<Config::kHeadDimV, Sizes::kVRow>(ring_.slot(number), static_cast<const char*>(args_.v),
                                          offset(key, args_.v_stride));
    arrive();
  }
  // In elements; -1 if the key does not exist.
  [[nodiscard]] static __device__ __forceinline__ int64 offset(const Found& key, const TensorStrides& stride) {
    if (!key.row.exists()) return -1;
    return key.row.block * stride.batch + key.row.row * stride.row + key.head * stride.head;
  }

  // The slot is full when the copies have landed, and the warp's stores are done.
  __device__ __forceinline__ void arrive() {
    Mbarrier& full = ring_.full(place_.stage);
    cp_async_arrive(full);
    __syncwarp();  // all lanes have stored
    arrive_as_warp(full);
    place_.advance();
  }

  // Infinity counts as NaN: infinity * 0 is NaN, and so is a sum of infinities of both signs, which infinity times a
  // finished product would hide.
  [[nodiscard]] static __device__ __forceinline__ float2 multipliers(const float2& factors) {
    const auto multiplier = [](float x) { return fabsf(x) == kInfinity ? __uint_as_float(0x7fc00000u) : x; };
    return {multiplier(factors.x), multiplier(factors.y)};
  }

  // The warp's rows, each from the address that its lane knows; from < 0: zeros. Columns that pad a row are zeros too.
  template <int kColumns, int kRowBytes>
  __device__ __forceinline__ void copy(char* slot, const char* base, int64 from) const {
    slot += warp_ * kWarpThreads * kRowBytes;
    if constexpr (!Config::kAligned) {
      copy_elements<kColumns, kRowBytes>(slot, base, from);
    } else {
      constexpr int kChunks = round_up(kColumns, 16) * Sizes::kCacheBytes / kChunkBytes;
      constexpr bool kIsPadded = kColumns % 16 != 0;
      if (!kIsPadded && __all_sync(kAllLanes, from >= 0)) {
        const uint64 own = reinterpret_cast<uint64>(base) + from * Sizes::kCacheBytes;
#pragma unroll(kChunks <= 16 ? kChunks : 8)
        for (int first = 0; first < kChunks; ++first) {
          const int chunk = first * kWarpThreads + lane_;
          const int row = chunk / kChunks, column = chunk % kChunks;
          const uint64 source = __shfl_sync(kAllLanes, own, row) + column * kChunkBytes;
          cp_async_16_of_stream(smem_address(slot + row * kRowBytes + column * kChunkBytes),
                                reinterpret_cast<const void*>(source));
        }
        return;
      }
#pragma unroll 1
      for (int first = 0; first < kChunks; ++first) {
        const int chunk = first * kWarpThreads + lane_;
        const int row = chunk / kChunks, column = chunk % kChunks;
        const int64 offset = __shfl_sync(kAllLanes, from, row);
        const bool exists = offset >= 0 && (!kIsPadded || column < kColumns * Sizes::kCacheBytes / kChunkBytes);
        const char* source = base + (exists ? offset * Sizes::kCacheBytes + column * kChunkBytes : 0);
        cp_async_16(smem_address(slot + row * kRowBytes + column * kChunkBytes), source, exists);
      }
    }
  }

  // Likewise, where chunks do not lie on multiples of their size.
  template <int kColumns, int kRowBytes>
  __device__ __forceinline__ void copy_elements(char* slot, const char* base, int64 from) const {
    using Storage = StorageOf<Sizes::kCacheBytes>;
#pragma unroll 1
    for (int row = 0; row < kWarpThreads; ++row) {
      const int64 offset = __shfl_sync(kAllLanes, from, row);
      const Storage* source = reinterpret_cast<const Storage*>(base) + offset;
      for (int column = lane_; column < round_up(kColumns, 16); column += kWarpThreads) {
        const bool exists = offset >= 0 && column < kColumns;
        reinterpret_cast<Storage*>(slot + row * kRowBytes)[column] = exists ? source[column] : Storage{};
      }
    }
  }

  const DecodeArgs& args_;
  const DecodeSchedule& schedule_;
  DecodeCursor& cursor_;
  DecodeRing<Config> ring_;
  typename DecodeRing<Config>::Place place_;
  int warp_, lane_;
  int unit_ = 0;
};

}  // namespace attend
