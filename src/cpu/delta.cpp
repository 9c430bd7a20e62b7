// <dout, o> of query rows without o's rounding, where the gradients cannot bear it.
//
// dS = P (dP - delta) with delta = <dout, o> = sum_j P_j dP_j. A row that keeps one key after dropout has dS = 0: dP
// and delta cancel. With an o rounded to 16 bits they cancel to its last bit only, and dropout's 1/(1-p) makes that
// large. Costs two of the five products of the backward pass once more.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/delta.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per SIMD target
#include <hwy/highway.h>

#include <cmath>

#include "core/elements.hpp"
#include "cpu/backward-inl.hpp"
#include "cpu/kernels.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
namespace {

/// How far <dout, o> may be from the sum over keys by the rounding of o alone. Farther away, o is of other keys too, as
/// where the keys are spread over devices and the parts merged, and then <dout, o> it has to be.
double rounding_of_o(const Matrix& dout, const Matrix& o, std::int64_t row) {
  constexpr double kSlack = 1.1;  // for the float32 sum itself
  const double roundoff = o.dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
  constexpr double kSubnormal = 0x1p-24;
  double sum = 0;
  for (std::int64_t c = 0; c < o.cols; ++c) {
    sum += std::abs(core::load(dout, row, c)) * (kSlack * roundoff * std::abs(core::load(o, row, c)) + kSubnormal);
  }
  return sum;
}

/// sums += P dP, over the keys of the tile.
void add_tile(const GradientTile& tile, const QueryTile& q, const KeyTile& k, double* sums) {
  for (std::int64_t lane = 0; lane < padded(q.num_rows); lane += kLanes) {
    Vector of_tile = hn::Zero(kFloats);
    for (std::int64_t key = 0; key < k.num_keys; ++key) {
      of_tile = hn::Add(of_tile, hn::Load(kFloats, tile.ds + key * kBackwardScoreStride + lane));
    }
    HWY_ALIGN float lanes[kLanes];
    hn::Store(of_tile, kFloats, lanes);
    for (int r = 0; r < kLanes; ++r) sums[lane + r] += lanes[r];
  }
}

void run_exact_deltas(const core::Problem& p, const BackwardRowsTask& task, float* deltas, Scratch& scratch) {
  scratch.reserve(QueryTile::floats(p) + GradientTile::floats(p) + KeyTile::floats(p));
  QueryTile q = QueryTile::make(p, scratch);
  GradientTile tile = GradientTile::make(p, kBackwardBlockM, kBlockN, scratch);
  KeyTile k = KeyTile::make(p, scratch);
  const HeadRules rules(p, task.sequence, task.head);
  q.load(p, task.sequence, task.head, rules, task.row_begin, task.row_end, nullptr);

  float from_o[kBackwardBlockM];
  std::copy_n(q.delta, q.num_rows, from_o);
  std::fill_n(q.delta, kBackwardBlockM, 0.0F);  // dS is P dP then
  double sums[kBackwardBlockM] = {};
  const KeyRange seen = rules.scores.window().rows(task.row_begin, task.row_end);
  for (std::int64_t key = seen.begin / kBlockN * kBlockN; key < seen.end; key += kBlockN) {
    k.load(p, task.sequence, task.head / p.heads_per_group(), key,
           std::min<std::int64_t>(kBlockN, task.sequence.seqlen_k - key));
    tile.compute(p, rules, q, k);
    add_tile(tile, q, k, sums);
  }
  const Matrix dout = core::q_matrix(p.dout, task.sequence, task.head);
  const Matrix o = core::q_matrix(p.o, task.sequence, task.head);
  for (std::int64_t r = 0; r < q.num_rows; ++r) {
    const std::int64_t row = task.row_begin + r;
    const double dlse = p.dlse ? core::load(core::q_matrix(*p.dlse, task.sequence, task.head), row, 0) : 0.0;
    const auto exact = static_cast<float>(sums[r] - dlse);
    const bool rounding_only = std::abs(sums[r] - dlse - from_o[r]) <= rounding_of_o(dout, o, row);
    deltas[delta_index(p, task.sequence, task.head, row)] = rounding_only ? exact : from_o[r];
  }
}

}  // namespace

void exact_deltas_target(const core::Problem& p, const BackwardRowsTask& task, float* deltas, Scratch& scratch) {
  run_exact_deltas(p, task, deltas, scratch);
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

}  // namespace attend::cpu
#endif
