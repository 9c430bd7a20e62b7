// Brings keys and values into the ring, as far ahead of the products as it has slots, across pieces.
//
// A loading warp has 32 keys of every step, a lane one of them. Where a key lies is found two steps ahead: first the
// table of pages is asked, whose answer comes while the copies of the step before start; then the place and its factors
// follow. Keys that do not exist (beyond the length, left of the padding, without a page) or that no row sees become
// zeros: in a product of tiles 0 * NaN would reach rows that do not see them.
#pragma once

#include "decode_copy.cuh"
#include "decode_piece.cuh"

namespace attend {

template <class Config>
class DecodeLoader {
 public:
  using Sizes = DecodeSizes<Config>;
  using Cursor = DecodeCursor<Config>;

  // cursor: of the warp, at the block's first piece. warp: of the loading ones.
  __device__ __forceinline__ DecodeLoader(const DecodeArgs& args, Cursor& cursor, const DecodeRing<Config>& ring,
                                          int warp, int lane)
      : args_(args), cursor_(cursor), ring_(ring), warp_(warp), lane_(lane) {}

  // All steps of all pieces.
  __device__ __forceinline__ void run() {
    take_piece();
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
  // What a piece says of its keys.
  struct Keys {
    int end_step;
    int begin, end;
    int sequence, cache_row, head;
  };
  // The lane's key of a step, and what the table says of its page.
  struct Asked {
    bool has_step;  // false: there is no further one
    bool has_key;   // that exists, as far as lengths tell, and that a row sees
    int page;       // of a paged cache: nothing has looked at it yet. Of others the cache's row
    int row;        // in the page, or in the cache's row
    int sequence, head;
  };
  struct Found {
    bool has_step;
    CachePlace row;
    int head;
    float2 factors;  // kHasFactors
  };

  __device__ __forceinline__ void take_piece() {
    const DecodePiece& piece = cursor_.piece;
    unit_ = piece.first_step;
    keys_ = {piece.end_step, piece.first_key, piece.end_key, cursor_.item.span.index, cursor_.item.span.cache_row,
             piece.head};
  }

  // Step unit_ of the cursor's piece, or the first one of the next piece that has any.
  [[nodiscard]] __device__ __forceinline__ Asked ask() {
    while (!is_done_ && unit_ >= keys_.end_step) {
      cursor_.advance(args_, lane_);
      is_done_ = cursor_.is_done;
      take_piece();
    }
    Asked asked = {};
    if (is_done_) return asked;
    const int key = unit_ * kStepKeys + warp_ * kWarpThreads + lane_;
    asked = {true, key >= keys_.begin && key < keys_.end, keys_.cache_row, key, keys_.sequence, keys_.head};
    if (args_.cache.is_paged != 0 && asked.has_key) {
      const CachePlace in_table = split_by_blocks(args_.cache, key);
      asked.row = static_cast<int>(in_table.row);
      asked.page = args_.cache.pages[keys_.cache_row * args_.cache.table_row_stride + in_table.block];
    }
    return asked;
  }
  [[nodiscard]] __device__ __forceinline__ Found found(const Asked& asked) const {
    Found found = {asked.has_step, {-1, 0}, asked.head, {}};
    if (!asked.has_key) return found;
    found.row = {args_.cache.is_paged != 0 ? existing_page(args_.cache, asked.page) : asked.page, asked.row};
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
    DecodeCopy<Config, Config::kHeadDim, Sizes::kKRow>::rows(own_rows<Sizes::kKRow>(number),
                                                             static_cast<const char*>(args_.k),
                                                             offset(key, args_.k_stride), args_.k_stride.row, lane_);
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
    DecodeCopy<Config, Config::kHeadDimV, Sizes::kVRow>::rows(own_rows<Sizes::kVRow>(number),
                                                              static_cast<const char*>(args_.v),
                                                              offset(key, args_.v_stride), args_.v_stride.row, lane_);
    arrive();
  }
  // The warp's in a slot.
  template <int kRowBytes>
  [[nodiscard]] __device__ __forceinline__ char* own_rows(int slot) const {
    return ring_.slot(slot) + warp_ * kWarpThreads * kRowBytes;
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

  const DecodeArgs& args_;
  Cursor& cursor_;
  DecodeRing<Config> ring_;
  typename DecodeRing<Config>::Place place_;
  int warp_, lane_;
  int unit_ = 0;
  Keys keys_ = {};
  bool is_done_ = false;
};

}  // namespace attend
