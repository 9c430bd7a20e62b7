// Recomputes two values of query rows for the backward pass, if the rounding of o or lse would make them too imprecise:
//
// - delta. dS = P (dP - delta), where delta = <dout, o> = sum_j P_j dP_j. If a row has only one key after dropout, dP
//   and delta are equal, and dS is 0. If o is rounded to 16 bits, the difference of dP and delta is instead a rounding
//   error of o, and dropout's factor 1/(1-p) enlarges it.
//
// - The sum of exp(s - lse), including a sink. The sum is 1 for an exact lse. Suppose that a row has n keys, all with a
//   bias of -1e9. lse is then rounded to a multiple of 64, which loses the term log n. P and all gradients would be n
//   times too large.
//
// Each correction repeats two of the five products of the backward pass.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/row_corrections.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per SIMD target
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "core/dtype_traits.hpp"
#include "core/elements.hpp"
#include "cpu/backward-inl.hpp"
#include "cpu/kernels.hpp"
#include "kernels/attention/coarse_lse.cuh"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
namespace {

/// Returns an upper limit for the difference between <dout, o> and the sum over keys, if only the rounding of o causes
/// it. If the difference is larger, o includes other keys, for example because results of several devices were merged.
/// In that situation <dout, o> is the correct delta.
double rounding_of_o(const Matrix& dout, const Matrix& o, std::int64_t row) {
  constexpr double kSlack = 1.1;  // allows for the rounding of the float32 sum
  const double roundoff = core::dtype_traits(o.dtype).unit_roundoff;
  const double subnormal = std::max(0x1p-24, 2 * roundoff * core::dtype_traits(o.dtype).smallest_normal);
  double sum = 0;
  for (std::int64_t c = 0; c < o.cols; ++c) {
    sum += std::abs(core::load(dout, row, c)) * (kSlack * roundoff * std::abs(core::load(o, row, c)) + subnormal);
  }
  return sum;
}

/// Adds each lane's sum over the keys of a score tile to `sums`.
void add_keys(const float* values, const QueryTile& q, const KeyTile& k, double* sums) {
  for (std::int64_t lane = 0; lane < padded(q.num_rows); lane += kLanes) {
    Vector of_tile = hn::Zero(kFloats);
    for (std::int64_t key = 0; key < k.num_keys; ++key) {
      of_tile = hn::Add(of_tile, hn::Load(kFloats, values + key * kBackwardScoreStride + lane));
    }
    HWY_ALIGN float lanes[kLanes];
    hn::Store(of_tile, kFloats, lanes);
    for (int r = 0; r < kLanes; ++r) sums[lane + r] += lanes[r];
  }
}

void run_exact_deltas(const core::Problem& p, const BackwardRowsTask& task, float* deltas, Scratch& scratch) {
  float from_o[kBackwardBlockM];
  double sums[kBackwardBlockM] = {};
  visit_key_tiles(
      p, task, scratch, /*with_inputs=*/false,
      [&](QueryTile& q) {
        std::copy_n(q.delta, q.num_rows, from_o);
        std::fill_n(q.delta, kBackwardBlockM, 0.0F);  // makes dS equal to P dP
      },
      [&](const GradientTile& tile, const QueryTile& q, const KeyTile& k) { add_keys(tile.ds, q, k, sums); });
  const Matrix dout = core::q_matrix(p.dout, task.sequence, task.head);
  const Matrix o = core::q_matrix(p.o, task.sequence, task.head);
  for (std::int64_t r = 0; r < task.row_end - task.row_begin; ++r) {
    const std::int64_t row = task.row_begin + r;
    const double dlse = p.dlse ? core::load(core::q_matrix(*p.dlse, task.sequence, task.head), row, 0) : 0.0;
    const auto exact = static_cast<float>(sums[r] - dlse);
    const bool rounding_only = std::abs(sums[r] - dlse - from_o[r]) <= rounding_of_o(dout, o, row);
    deltas[delta_index(p, task.sequence, task.head, row)] = rounding_only ? exact : from_o[r];
  }
}

void run_exact_log2_sums(const core::Problem& p, const BackwardRowsTask& task, float* log2_sums, Scratch& scratch) {
  double sums[kBackwardBlockM] = {};
  visit_key_tiles(
      p, task, scratch, /*with_inputs=*/false, [](const QueryTile&) {},
      [&](const GradientTile& tile, const QueryTile& q, const KeyTile& k) { add_keys(tile.p, q, k, sums); });
  for (std::int64_t row = task.row_begin; row < task.row_end; ++row) {
    if (!lse_is_coarse(p, task.sequence, task.head, row)) continue;
    const double lse = core::load(core::q_matrix(*p.lse, task.sequence, task.head), row, 0);
    const double sink = p.sinks ? core::load(*p.sinks, task.sequence.index, task.head, 0, 0) : -kInfinity;
    const double log_sum = std::log(sums[row - task.row_begin] + std::exp(sink - lse));
    const bool rounding_only = std::abs(log_sum) <= double{kLargestLseError} * std::abs(lse);
    log2_sums[delta_index(p, task.sequence, task.head, row)] = static_cast<float>(rounding_only ? log_sum * kLog2E : 0);
  }
}

}  // namespace

void exact_deltas_target(const core::Problem& p, const BackwardRowsTask& task, float* deltas, Scratch& scratch) {
  run_exact_deltas(p, task, deltas, scratch);
}

void exact_log2_sums_target(const core::Problem& p, const BackwardRowsTask& task, float* log2_sums, Scratch& scratch) {
  run_exact_log2_sums(p, task, log2_sums, scratch);
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::cpu {

HWY_EXPORT(exact_deltas_target);

void exact_deltas(const core::Problem& p, const BackwardRowsTask& task, float* deltas, Scratch& scratch) {
  const Bf16Registers registers;
  HWY_DYNAMIC_DISPATCH(exact_deltas_target)(p, task, deltas, scratch);
}

HWY_EXPORT(exact_log2_sums_target);

void exact_log2_sums(const core::Problem& p, const BackwardRowsTask& task, float* log2_sums, Scratch& scratch) {
  const Bf16Registers registers;
  HWY_DYNAMIC_DISPATCH(exact_log2_sums_target)(p, task, log2_sums, scratch);
}

bool lse_is_coarse(const core::Problem& p, const core::Sequence& s, std::int64_t head, std::int64_t row) {
  // Without these options, a correction is useless, because the rounding errors of the products are as large as that of
  // lse.
  if (!p.bias && !p.alibi_slopes && p.custom_score == nullptr) return false;
  if (!is_coarse(static_cast<float>(core::load(core::q_matrix(*p.lse, s, head), row, 0)))) return false;
  if (p.dlse && core::load(core::q_matrix(*p.dlse, s, head), row, 0) != 0) return true;
  const core::Matrix dout = core::q_matrix(p.dout, s, head);
  for (std::int64_t c = 0; c < dout.cols; ++c) {
    if (core::load(dout, row, c) != 0) return true;
  }
  return false;  // All factors of p in the gradients are 0, as in a padded row.
}

}  // namespace attend::cpu
#endif
