// Brings a stripe's keys and values into its ring of slots, kStages steps ahead of the products, across pieces.
//
// A lane looks for the place of one key of the next step while the copies of this one start: a table of pages is far.
// Keys that do not exist (beyond the length, left of the padding, without a page) become zeros: in a product of tiles
// 0 * NaN would reach rows that do not see them.
#pragma once

#include "../isa/cp_async.cuh"
#include "decode_config.cuh"
#include "decode_piece.cuh"

namespace attend {

template <class Config>
class DecodeLoader {
 public:
  using Sizes = DecodeSizes<Config>;
  static constexpr int kKRow = decode_row_bytes(Config::kHeadDim, Sizes::kCacheBytes, 16);
  static constexpr int kVRow =
      Config::kValuesAreKeys ? kKRow : decode_row_bytes(Config::kHeadDimV, Sizes::kCacheBytes, 16);
  static constexpr int kKSlot = decode_k_slot(Sizes::kTile), kVSlot = decode_v_slot(Sizes::kTile);
  static constexpr int kStages = Config::kStages;
  static constexpr bool kLoadsValues = !Config::kValuesAreKeys;
  static constexpr bool kHasFactors = Config::kCacheElement != CacheElement::kSame;

  // cursor: of the warp, at the block's first piece.
  __device__ __forceinline__ DecodeLoader(const DecodeArgs& args, const DecodeSchedule& schedule, DecodeCursor& cursor,
                                          const DecodeRole<Config>& role, char* ring, char* factors)
      : args_(args), schedule_(schedule), cursor_(cursor), role_(role) {
    slots_ = ring + role.stripe * (kStages * (kKSlot + kVSlot));
    factors_ = reinterpret_cast<float2*>(factors) + role.stripe * (kStages * kStripeKeys);
    unit_ = cursor_.piece.first_step;
    skip_pieces_without_steps();
    find_row();
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) {
      load_keys(stage);
      load_values(stage);
    }
  }

  [[nodiscard]] __device__ __forceinline__ char* keys(int stage) const {
    return slots_ + stage * (kKSlot + kVSlot);
  }
  [[nodiscard]] __device__ __forceinline__ char* values(int stage) const {
    return kLoadsValues ? keys(stage) + kKSlot : keys(stage);
  }

  // The factors of the stripe's keys and values: kHasFactors.
  [[nodiscard]] __device__ __forceinline__ float2* factors(int stage) const {
    return factors_ + stage * kStripeKeys;
  }

  // Copies of all steps but so many have landed. For the whole stripe, behind stripe_barrier().
  static __device__ __forceinline__ void wait_keys() {
    cp_async_wait<kLoadsValues ? 2 * kStages - 1 : kStages - 1>();
  }
  static __device__ __forceinline__ void wait_values() {
    if constexpr (kLoadsValues) cp_async_wait<2 * kStages - 1>();
  }

  // Which of the stripe's keys exist in the step that is computed now: a bit each.
  [[nodiscard]] __device__ __forceinline__ uint32 existing() const {
    return static_cast<uint32>(existing_ >> (kStripeKeys * (kStages - 1))) & 0xFFFFu;
  }

  // Starts the copies of the next step whose keys belong into this slot, whose last readers are done.
  __device__ __forceinline__ void load_keys(int stage) {
    const int64 from =
        row_exists_ ? row_.block * args_.k_stride.batch + row_.row * args_.k_stride.row + head_ * args_.k_stride.head
                    : -1;
    copy<Config::kHeadDim, kKRow>(keys(stage), static_cast<const char*>(args_.k), from);
    cp_async_commit();
    if constexpr (kHasFactors && !kLoadsValues) store_factors(stage);
    existing_ = existing_ << kStripeKeys | (__ballot_sync(kAllLanes, row_exists_) & 0xFFFFu);
    if constexpr (!kLoadsValues) advance();
  }
  __device__ __forceinline__ void load_values(int stage) {
    if constexpr (kLoadsValues) {
      const int64 from =
          row_exists_ ? row_.block * args_.v_stride.batch + row_.row * args_.v_stride.row + head_ * args_.v_stride.head
                      : -1;
      copy<Config::kHeadDimV, kVRow>(values(stage), static_cast<const char*>(args_.v), from);
      cp_async_commit();
      if constexpr (kHasFactors) store_factors(stage);
      advance();
    }
  }

 private:
  __device__ __forceinline__ void skip_pieces_without_steps() {
    while (!cursor_.is_done && unit_ >= cursor_.piece.end_step) {
      __syncwarp();  // all lanes have read the cursor
      cursor_.advance(args_, schedule_, Sizes::kTileRows);
      __syncwarp();  // the next piece is there
      unit_ = cursor_.piece.first_step;
    }
  }

  // The lane's row of step unit_. What is read here is wanted by the next loads only.
  __device__ __forceinline__ void find_row() {
    row_exists_ = false;
    const DecodeSpan& span = cursor_.item.span;
    const int64 key = static_cast<int64>(unit_) * kStepKeys + role_.stripe * kStripeKeys + role_.lane % kStripeKeys;
    if (cursor_.is_done || key < span.first_key || key >= span.seqlen_k) return;
    row_ = place(args_.cache, span.cache_row, key);
    row_exists_ = row_.exists();
    head_ = cursor_.piece.head;
    if constexpr (kHasFactors) {
      if (!row_exists_) return;
      factor_.x = factor(args_.cache.k_descale, span.index, head_, row_);
      factor_.y = factor(args_.cache.v_descale, span.index, head_, row_);
    }
  }

  // Infinity counts as NaN: infinity * 0 is NaN, and so is a sum of infinities of both signs, which infinity times a
  // finished product would hide.
  __device__ __forceinline__ void store_factors(int stage) {
    if (role_.lane >= kStripeKeys || role_.part != 0) return;
    const auto multiplier = [](float x) { return fabsf(x) == kInfinity ? __uint_as_float(0x7fc00000u) : x; };
    factors_[stage * kStripeKeys + role_.lane] =
        row_exists_ ? float2{multiplier(factor_.x), multiplier(factor_.y)} : float2{0.0f, 0.0f};
  }

  __device__ __forceinline__ void advance() {
    if (++unit_ >= cursor_.piece.end_step) skip_pieces_without_steps();
    find_row();
  }

  // The stripe's rows, each from the address that its lane knows; from < 0: zeros.
  template <int kColumns, int kRowBytes>
  __device__ __forceinline__ void copy(char* slot, const char* base, int64 from) {
    constexpr int kBytes = kColumns * Sizes::kCacheBytes;
    const int thread = Sizes::kParts == 1 ? role_.lane : role_.part * kWarpThreads + role_.lane;
    if constexpr (Config::kAligned) {
      constexpr int kChunks = kBytes / kChunkBytes;
      static_assert(kBytes % kChunkBytes == 0);
#pragma unroll
      for (int first = 0; first < kStripeKeys * kChunks; first += Sizes::kStripeThreads) {
        const int chunk = first + thread;
        const int row = min(chunk / kChunks, kStripeKeys - 1), column = chunk % kChunks;
        const int64 offset = __shfl_sync(kAllLanes, from, row);
        if (kStripeKeys * kChunks % Sizes::kStripeThreads == 0 || chunk < kStripeKeys * kChunks) {
          const char* source = base + (offset < 0 ? 0 : offset * Sizes::kCacheBytes + column * kChunkBytes);
          cp_async_16(smem_address(slot + row * kRowBytes + column * kChunkBytes), source, offset >= 0);
        }
      }
    } else {
      using Storage = StorageOf<Sizes::kCacheBytes>;
      for (int row = 0; row < kStripeKeys; ++row) {
        const int64 offset = __shfl_sync(kAllLanes, from, row);
        const Storage* source = reinterpret_cast<const Storage*>(base) + offset;
        for (int column = thread; column < kColumns; column += Sizes::kStripeThreads) {
          reinterpret_cast<Storage*>(slot + row * kRowBytes)[column] = offset < 0 ? Storage{} : source[column];
        }
      }
    }
  }

  const DecodeArgs& args_;
  const DecodeSchedule& schedule_;
  DecodeCursor& cursor_;
  const DecodeRole<Config>& role_;
  int unit_ = 0;
  bool row_exists_ = false;
  int64 head_ = 0;
  CachePlace row_ = {};
  float2 factor_ = {};
  uint64 existing_ = 0;
  char* slots_;
  float2* factors_;
};

}  // namespace attend
