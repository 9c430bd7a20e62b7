// Sums over thousands of tiles. Every 8192 keys (or rows) the float sum is added to a float64 total, so the rounding
// error does not grow with the length. Included once per SIMD target.
#if defined(ATTEND_CPU_LONG_SUM_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_LONG_SUM_INL
#undef ATTEND_CPU_LONG_SUM_INL
#else
#define ATTEND_CPU_LONG_SUM_INL
#endif

#include <algorithm>

#include "cpu/scratch.hpp"
#include "cpu/simd-inl.hpp"
#include "cpu/tiles.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

/// Computes total = factor * total + sum, and sum = 0, for n elements.
HWY_INLINE void fold(float* HWY_RESTRICT sum, std::int64_t n, double factor, double* HWY_RESTRICT total) {
  for (std::int64_t i = 0; i < n; ++i) {
    total[i] = total[i] * factor + static_cast<double>(sum[i]);
    sum[i] = 0;
  }
}

/// Returns scratch memory for `doubles` doubles.
HWY_INLINE double* take_doubles(Scratch& scratch, std::int64_t doubles) {
  return reinterpret_cast<double*>(scratch.take(2 * doubles));
}

/// Sum of the products of many tiles: a float array for recent tiles and, if there are many tiles, a float64 total.
class LongSum {
 public:
  /// Returns the scratch memory, in floats, for `size` elements and at most `tiles` tiles.
  static std::int64_t floats(std::int64_t size, std::int64_t tiles) {
    return Scratch::size_of(size) + (tiles > kTilesPerSum ? Scratch::size_of(2 * size) : 0);
  }

  LongSum() = default;
  LongSum(std::int64_t size, std::int64_t tiles, Scratch& scratch)
      : size_(size), sum_(scratch.take(size)), total_(tiles > kTilesPerSum ? take_doubles(scratch, size) : nullptr) {}

  void clear() {
    std::fill_n(sum_, size_, 0.0F);
    pending_ = 0;
    has_total_ = false;
  }

  /// Returns the matrix to which the next tile adds its products.
  [[nodiscard]] float* for_next_tile() {
    if (pending_ == kTilesPerSum) fold_pending();
    ++pending_;
    return sum_;
  }

  /// Returns the sum of all tiles. After this call, only clear() may be called.
  [[nodiscard]] const float* result() {
    if (has_total_) {
      for (std::int64_t i = 0; i < size_; ++i) sum_[i] = static_cast<float>(total_[i] + static_cast<double>(sum_[i]));
    }
    return sum_;
  }

 private:
  void fold_pending() {
    if (has_total_) {
      fold(sum_, size_, 1.0, total_);
    } else {  // the total contains no values yet
      std::copy_n(sum_, size_, total_);
      std::fill_n(sum_, size_, 0.0F);
    }
    has_total_ = true;
    pending_ = 0;
  }

  std::int64_t size_ = 0;
  float* sum_ = nullptr;
  double* total_ = nullptr;  // null if a float sum is precise enough, because there are few tiles
  std::int64_t pending_ = 0;
  bool has_total_ = false;
};

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
