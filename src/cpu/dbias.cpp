// Computes dbias, the gradient of an additive bias. An element of dbias is the sum of dS over all batches, heads and
// rows that read this element of the bias.
//
// A task computes one tile of dbias and visits every score tile that contributes to it. Therefore threads need not
// combine partial sums, and no buffer is as large as the score matrix. The tasks repeat two of the five products of the
// backward pass.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/dbias.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per SIMD target
#include <hwy/highway.h>

#include "cpu/backward-inl.hpp"
#include "cpu/kernels.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
namespace {

/// Adds dS to `sums`, of shape (128, kBackwardScoreStride). If `over_rows` is set, adds the sum over rows to the first
/// column. The sums are float64, because a broadcast bias collects contributions from every batch, head and row.
void add_tile(const GradientTile& tile, const QueryTile& q, const KeyTile& k, bool over_rows, double* sums) {
  for (std::int64_t key = 0; key < k.num_keys; ++key) {
    const float* ds = tile.ds + key * kBackwardScoreStride;
    double* sum = sums + key * kBackwardScoreStride;
    for (std::int64_t r = 0; r < q.num_rows; ++r) sum[over_rows ? 0 : r] += ds[r];
  }
}

/// Returns the indices, in one dimension of the problem, at which the bias element with index `index` is used. This is
/// only `index` itself, or all indices if the bias is broadcast.
KeyRange broadcast_range(std::int64_t index, std::int64_t bias_size, std::int64_t full_size) {
  return bias_size == full_size ? KeyRange{index, index + 1} : KeyRange{0, full_size};
}

bool run_dbias_tile(const core::Problem& p, const DbiasTask& task, Scratch& scratch) {
  const Tensor& dbias = *p.dbias;
  const std::int64_t sum_size = kBlockN * kBackwardScoreStride;
  scratch.reserve(QueryTile::floats(p) + GradientTile::floats(p) + 2 * sum_size + KeyTile::floats(p));
  QueryTile q = QueryTile::make(p, scratch);
  GradientTile tile = GradientTile::make(p, kBackwardBlockM, kBlockN, scratch);
  double* sums = take_doubles(scratch, sum_size);
  KeyTile k = KeyTile::make(p, scratch);
  std::fill_n(sums, sum_size, 0.0);

  const bool over_rows = dbias.shape[2] != p.max_seqlen_q;
  const KeyRange rows = over_rows
                            ? KeyRange{0, p.max_seqlen_q}
                            : KeyRange{task.row_begin, std::min(task.row_begin + kBackwardBlockM, p.max_seqlen_q)};
  const KeyRange batches = broadcast_range(task.batch, dbias.shape[0], p.num_sequences);
  const KeyRange heads = broadcast_range(task.head, dbias.shape[1], p.num_heads_q);
  const std::int64_t num_keys = std::min<std::int64_t>(kBlockN, p.max_seqlen_k - task.key_begin);
  bool finite = true;
  for (std::int64_t batch = batches.begin; batch < batches.end; ++batch) {
    const core::Sequence s = p.sequence(batch);
    for (std::int64_t head = heads.begin; head < heads.end && finite; ++head) {
      const HeadRules rules(p, s, head);
      k.load(p, s, head / p.heads_per_group(), task.key_begin, num_keys);
      for (std::int64_t row = rows.begin; row < rows.end && finite; row += kBackwardBlockM) {
        const std::int64_t row_end = std::min<std::int64_t>(row + kBackwardBlockM, rows.end);
        if (!rules.scores.may_see(row, row_end, task.key_begin, task.key_begin + num_keys)) continue;
        finite &= q.load(p, s, head, rules, row, row_end, task.corrections);
        tile.compute(p, rules, q, k);
        tile.through_function(q, k);
        add_tile(tile, q, k, over_rows, sums);
      }
    }
  }
  for (std::int64_t key = 0; key < num_keys; ++key) {
    for (std::int64_t r = 0; r < (over_rows ? 1 : rows.end - rows.begin); ++r) {
      finite &= std::isfinite(sums[key * kBackwardScoreStride + r]);
      core::store(dbias, task.batch, task.head, task.row_begin + r, task.key_begin + key,
                  sums[key * kBackwardScoreStride + r]);
    }
  }
  return finite;
}

}  // namespace

bool dbias_tile_target(const core::Problem& p, const DbiasTask& task, Scratch& scratch) {
  return run_dbias_tile(p, task, scratch);
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::cpu {

HWY_EXPORT(dbias_tile_target);

bool dbias_tile(const core::Problem& p, const DbiasTask& task, Scratch& scratch) {
  const Bf16Registers registers;
  return HWY_DYNAMIC_DISPATCH(dbias_tile_target)(p, task, scratch);
}

}  // namespace attend::cpu
#endif
