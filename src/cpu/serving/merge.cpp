// Merges states: combines attention over disjoint sets of keys into attention over all keys.
//
//   lse = log(sum_n exp(lse_n) + exp(sink)),   o = sum_n exp(lse_n - lse) o_n
//
// Weights and sums are float64. They are added in the order of the states, without fused multiply-adds, so all SIMD
// targets give the same bits. A state with lse = -inf is not read. Source: Milakov & Gimelshein, Online normalizer
// calculation for softmax (2018), section 3.1
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/serving/merge.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per SIMD target
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/elements.hpp"
#include "cpu/kernels.hpp"
#include "cpu/pack-inl.hpp"
#include "cpu/parallel.hpp"
#include "cpu/serving/decode_backends.hpp"

#ifndef ATTEND_CPU_MERGE_SHARED  // This code does not depend on the SIMD target, so only the first target compiles it.
#define ATTEND_CPU_MERGE_SHARED
namespace attend::cpu {

/// One row of a state that has a nonzero weight.
struct WeightedRow {
  const void* data;
  DType dtype;
  double weight;
};

}  // namespace attend::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
namespace {

using DoubleTag = hn::CappedTag<double, 8>;
using DoubleVector = hn::Vec<DoubleTag>;
constexpr DoubleTag kDoubles;
constexpr hn::Rebind<float, DoubleTag> kHalves;
constexpr int kDoubleLanes = hn::MaxLanes(kDoubles);
static_assert(2 * kDoubleLanes == kLanes, "a vector of floats is two of doubles");

void run_merge_row(const std::vector<WeightedRow>& rows, const Matrix& o) {
  for (std::int64_t c = 0; c < o.cols; c += kLanes) {
    DoubleVector low = hn::Zero(kDoubles), high = low;
    for (const WeightedRow& row : rows) {
      const auto load = [&](const auto* data) HWY_ATTR { return load_partial(data + c, o.cols - c); };
      const Vector x = with_type(row.data, row.dtype, load);
      const DoubleVector weight = hn::Set(kDoubles, row.weight);
      low = hn::Add(low, hn::Mul(hn::PromoteTo(kDoubles, hn::LowerHalf(kHalves, x)), weight));
      high = hn::Add(high, hn::Mul(hn::PromoteTo(kDoubles, hn::UpperHalf(kHalves, x)), weight));
    }
    HWY_ALIGN float sums[kLanes];
    hn::Store(hn::DemoteTo(kHalves, low), kHalves, sums);
    hn::Store(hn::DemoteTo(kHalves, high), kHalves, sums + kDoubleLanes);
    const std::int64_t valid = std::min<std::int64_t>(kLanes, o.cols - c);
    (void)store_row({static_cast<char*>(o.data) + c * dtype_bytes(o.dtype), o.dtype, 1, valid, valid}, 0, sums, 1.0F);
  }
}

}  // namespace

void merge_row_target(const std::vector<WeightedRow>& rows, const Matrix& o) {
  run_merge_row(rows, o);
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::cpu {
namespace {

HWY_EXPORT(merge_row_target);

constexpr double kNone = -std::numeric_limits<double>::infinity();

/// Computes the weights of the states for one row.
class RowWeights {
 public:
  RowWeights(const core::MergeProblem& p, std::int64_t batch, std::int64_t head)
      : p_(p), batch_(batch), head_(head), sink_(sink_of(p, batch, head)), lses_(p.states.size()) {}

  /// Returns the lse of the row. Fills `rows` with the states that have a nonzero weight. These weights and the weight
  /// of the sink add up to 1.
  double of_row(std::int64_t row, std::vector<WeightedRow>& rows) {
    double highest = sink_;
    for (std::size_t n = 0; n < lses_.size(); ++n) {
      lses_[n] = core::load(core::input_view(p_.states[n].lse), batch_, head_, row, 0);
      // If one value is NaN, the highest value becomes NaN and stays NaN.
      if (lses_[n] > highest || std::isnan(lses_[n])) highest = lses_[n];
    }
    rows.clear();
    if (highest == kNone) return kNone;
    double sum = share(sink_, highest);
    for (std::size_t n = 0; n < lses_.size(); ++n) {
      if (lses_[n] == kNone) continue;
      const Tensor o = core::input_view(p_.states[n].o);
      rows.push_back({core::element(o, batch_, head_, row), o.dtype, share(lses_[n], highest)});
      sum += rows.back().weight;
    }
    for (WeightedRow& r : rows) r.weight /= sum;
    return highest + (p_.lse_base2 ? std::log2(sum) : std::log(sum));
  }

 private:
  /// Returns the sink as a logarithm in the base of the states' lse.
  static double sink_of(const core::MergeProblem& p, std::int64_t batch, std::int64_t head) {
    if (!p.sinks) return kNone;
    const double sink = core::load(*p.sinks, batch, head, 0, 0);
    return p.lse_base2 ? sink / std::log(2.0) : sink;
  }

  /// Returns exp(lse - highest), or 1 if the two are equal. If `highest` is infinite, all states with that lse
  /// therefore have the same weight.
  [[nodiscard]] double share(double lse, double highest) const {
    if (lse == highest) return 1;
    return p_.lse_base2 ? std::exp2(lse - highest) : std::exp(lse - highest);
  }

  const core::MergeProblem& p_;
  std::int64_t batch_, head_;
  double sink_;
  std::vector<double> lses_;
};

/// Merges rows [begin, end) of one head.
void merge_rows(const core::MergeProblem& p, std::int64_t head_index, std::int64_t begin, std::int64_t end) {
  const std::int64_t batch = head_index / p.o.shape[1], head = head_index % p.o.shape[1];
  RowWeights weights(p, batch, head);
  std::vector<WeightedRow> rows;
  for (std::int64_t row = begin; row < end; ++row) {
    const double lse = weights.of_row(row, rows);
    const core::Matrix o = {core::element(p.o, batch, head, row), p.o.dtype, 1, p.o.shape[3], p.o.stride[2]};
    HWY_DYNAMIC_DISPATCH(merge_row_target)(rows, o);
    if (p.lse) core::store(*p.lse, batch, head, row, 0, lse);
  }
}

}  // namespace

void merge(const core::MergeProblem& p) {
  choose_simd_target();
  constexpr std::int64_t kRowsOfTask = 64;
  constexpr std::int64_t kElementsWorthThreads = 1 << 19;  // about 100 us on one thread
  const std::int64_t blocks = ceil_div(p.o.shape[2], kRowsOfTask);
  const std::int64_t elements = p.o.numel() * static_cast<std::int64_t>(p.states.size());
  parallel_for(p.o.shape[0] * p.o.shape[1] * blocks, elements < kElementsWorthThreads ? 1 : max_threads(),
               [&](std::int64_t task) {
                 const std::int64_t begin = task % blocks * kRowsOfTask;
                 merge_rows(p, task / blocks, begin, std::min(p.o.shape[2], begin + kRowsOfTask));
               });
}

}  // namespace attend::cpu
#endif
