// Backward attention on one thread: FlashAttention-2 (Dao, 2023), Algorithm 2.
//
// There are two methods, with bit-equal results:
//
// - In the first method, backward_keys computes dk, dv and dq for all keys of a head. It needs five products per tile,
//   and there is one task per key head.
//
// - The second method is used if there are fewer key heads than threads, or very many keys. backward_keys then computes
//   dk and dv for ranges of keys, and backward_rows computes dq for ranges of rows. This method needs seven products
//   per tile, but splits the work into many more tasks.
//
// Both methods compute the same tile products and add tiles in the same order.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per SIMD target
#include <hwy/highway.h>

#include <vector>

#include "cpu/backward-inl.hpp"
#include "cpu/kernels.hpp"
#include "cpu/parallel.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
namespace {

/// Computes C (m, n) += A B in float32. C has padded(n) columns.
void accumulate(BroadcastOperand a, FloatRows b, float* c, std::int64_t m, std::int64_t n, std::int64_t k,
                RowRanges depth, PrefetchRows* prefetch = nullptr) {
  gemm({.a = a,
        .b = {b.data, b.stride},
        .c = c,
        .c_stride = padded(n),
        .m = m,
        .n = padded(n),
        .k = k,
        .mode = GemmMode::kAccumulate,
        .prefetch = prefetch,
        .depth = depth});
}

/// Computes C += A B for operands in bf16 pairs. A is (m, k). The first row of B that the function reads has an even
/// number.
void accumulate_pairs(PairOperand a, const std::uint32_t* b, float* c, std::int64_t m, std::int64_t n, std::int64_t k,
                      RowRanges depth, PrefetchRows* prefetch = nullptr) {
  bf16_dot_gemm({.a = a,
                 .b = b,
                 .b_stride = padded(n),
                 .c = c,
                 .c_stride = padded(n),
                 .m = m,
                 .n = padded(n),
                 .pairs = ceil_div(k, 2),
                 .mode = GemmMode::kAccumulate,
                 .prefetch = prefetch,
                 .depth = depth});
}

/// Computes dV += P^T dO and dK += dS^T Q over the `rows` query rows that start at `lane`.
void add_rows_to_keys(const core::Problem& p, const GradientTile& tile, const QueryTile& q, std::int64_t num_keys,
                      std::int64_t lane, std::int64_t rows, RowRanges depth, float* dk, float* dv) {
  constexpr std::int64_t kStride = kBackwardScoreStride;
  if (tile.ds_pairs != nullptr) {
    const auto of_rows = [lane](const float* rounded) {
      return PairOperand{reinterpret_cast<const std::uint16_t*>(rounded) + lane, 2 * kStride, 2};
    };
    accumulate_pairs(of_rows(tile.p), q.dout_pairs.row(lane), dv, num_keys, p.head_dim_v, rows, depth, &q.next_o);
    accumulate_pairs(of_rows(tile.ds), q.q_pairs.row(lane), dk, num_keys, p.head_dim, rows, depth);
    return;
  }
  const FloatRows dout = {q.dout.row(lane), q.dout.stride};
  const FloatRows q_rows = {q.q.row(lane), q.q.stride};
  accumulate({tile.p + lane, kStride, 1}, dout, dv, num_keys, p.head_dim_v, rows, depth, &q.next_o);
  accumulate({tile.ds + lane, kStride, 1}, q_rows, dk, num_keys, p.head_dim, rows, depth);
}

/// Computes dV += P^T dO and dK += dS^T Q over all query rows of the tile.
void add_to_keys(const core::Problem& p, const GradientTile& tile, const QueryTile& q, KeyTile& k) {
  float* dk = k.dk.for_next_tile();
  float* dv = k.dv.for_next_tile();
  if (!tile.partial) {
    add_rows_to_keys(p, tile, q, k.num_keys, 0, q.num_rows, {}, dk, dv);
    return;
  }
  for (std::int64_t panel = 0; panel < q.num_panels(); ++panel) {
    const std::int64_t lane = panel * kPanel;
    const std::int64_t rows = std::min<std::int64_t>(kPanel, q.num_rows - lane);
    add_rows_to_keys(p, tile, q, k.num_keys, lane, rows, tile.ranges[panel].lanes_of_key(), dk, dv);
  }
}

/// Computes dQ += dS K.
void add_to_rows(const core::Problem& p, const GradientTile& tile, const QueryTile& q, const KeyTile& k, float* dq) {
  for (std::int64_t panel = 0; panel < q.num_panels(); ++panel) {
    const std::int64_t lane = panel * kPanel;
    const std::int64_t rows = std::min<std::int64_t>(kPanel, q.num_rows - lane);
    const RowRanges depth = tile.partial ? tile.ranges[panel].keys_of_lane() : RowRanges{};
    float* dq_rows = dq + lane * padded(p.head_dim);
    if (tile.ds_pairs != nullptr) {
      const PairOperand ds = {reinterpret_cast<const std::uint16_t*>(tile.ds_pairs + lane), 2,
                              2 * kBackwardScoreStride};
      accumulate_pairs(ds, k.k_pairs.data, dq_rows, rows, p.head_dim, k.num_keys, depth);
    } else {
      accumulate({tile.ds + lane, 1, kBackwardScoreStride}, k.k, dq_rows, rows, p.head_dim, k.num_keys, depth);
    }
  }
}

/// Stores `count` rows, multiplied by `factor`. Returns false if a value is not finite.
bool store_rows(const Matrix& m, std::int64_t begin, std::int64_t count, const float* rows, float factor) {
  bool finite = true;
  for (std::int64_t r = 0; r < count; ++r) finite &= store_row(m, begin + r, rows + r * padded(m.cols), factor);
  return finite;
}

/// Returns the number of query tiles that contribute to a key's gradients. The tiles of all query heads that share the
/// key head are counted.
std::int64_t row_tiles(const core::Problem& p, const core::Sequence& s) {
  return ceil_div(s.seqlen_q, kBackwardBlockM) * p.heads_per_group();
}

/// Returns the scratch memory, in floats, of a task with num_tiles key tiles.
std::int64_t keys_floats(const core::Problem& p, const core::Sequence& s, std::int64_t num_tiles) {
  return QueryTile::floats(p) + GradientTile::floats(p) +
         LongSum::floats(kBackwardBlockM * padded(p.head_dim), num_tiles) +
         num_tiles * KeyTile::floats_with_gradients(p, row_tiles(p, s));
}

/// Loads all key tiles of the task.
std::vector<KeyTile> load_keys(const core::Problem& p, const BackwardKeysTask& task, Scratch& scratch) {
  std::vector<KeyTile> tiles;
  for (std::int64_t key = task.key_begin; key < task.key_end; key += kBlockN) {
    const std::int64_t num_keys = std::min<std::int64_t>(kBlockN, task.key_end - key);
    tiles.push_back(KeyTile::with_gradients(p, num_keys, row_tiles(p, task.sequence), scratch));
    tiles.back().load(p, task.sequence, task.key_head, key, num_keys);
  }
  return tiles;
}

/// Computes one block of query rows against all key tiles of the task. If dq is non-null, sums dq as well. Returns
/// false if there was a NaN.
bool visit_rows(const core::Problem& p, const HeadRules& rules, const QueryTile& q, std::vector<KeyTile>& keys,
                GradientTile& tile, LongSum* dq) {
  bool ok = true;
  for (KeyTile& k : keys) {
    if (!rules.scores.may_see(q.row_begin, q.row_begin + q.num_rows, k.key_begin, k.key_begin + k.num_keys)) continue;
    ok &= tile.compute_operands(p, rules, q, k);
    add_to_keys(p, tile, q, k);
    if (dq != nullptr) add_to_rows(p, tile, q, k, dq->for_next_tile());
  }
  return ok;
}

bool run_backward_keys(const core::Problem& p, const BackwardKeysTask& task, Scratch& scratch) {
  const std::int64_t dq_size = std::min<std::int64_t>(task.sequence.seqlen_q, kBackwardBlockM) * padded(p.head_dim);
  const std::int64_t num_tiles = ceil_div(task.key_end - task.key_begin, kBlockN);
  scratch.reserve(keys_floats(p, task.sequence, num_tiles));
  QueryTile q = QueryTile::make(p, scratch);
  GradientTile tile = GradientTile::make(p, task.sequence.seqlen_q, task.key_end - task.key_begin, scratch);
  LongSum dq(dq_size, num_tiles, scratch);
  std::vector<KeyTile> keys = load_keys(p, task, scratch);
  const auto scale = static_cast<float>(p.scale);

  bool finite = true;
  const std::int64_t first_head = task.key_head * p.heads_per_group();
  for (std::int64_t head = first_head; head < first_head + p.heads_per_group() && finite; ++head) {
    const HeadRules rules(p, task.sequence, head);
    for (std::int64_t row = 0; row < task.sequence.seqlen_q && finite; row += kBackwardBlockM) {
      end_if_interrupted();  // a task of long sequences takes seconds
      const std::int64_t row_end = std::min<std::int64_t>(row + kBackwardBlockM, task.sequence.seqlen_q);
      if (!task.with_dq && !rules.scores.may_see(row, row_end, task.key_begin, task.key_end)) continue;
      finite &= q.load(p, task.sequence, head, rules, row, row_end, task.corrections);
      if (task.with_dq) dq.clear();
      finite &= visit_rows(p, rules, q, keys, tile, task.with_dq ? &dq : nullptr);
      if (!task.with_dq) continue;
      finite &= store_rows(core::q_matrix(p.dq, task.sequence, head), row, q.num_rows, dq.result(), scale);
    }
  }
  const Matrix dk = core::k_matrix(p.dk, task.sequence, task.key_head);
  const Matrix dv = core::k_matrix(p.dv, task.sequence, task.key_head);
  for (KeyTile& k : keys) {
    finite &= store_rows(dk, k.key_begin, k.num_keys, k.dk.result(), scale);
    finite &= store_rows(dv, k.key_begin, k.num_keys, k.dv.result(), 1.0F);
  }
  return finite;
}

bool run_backward_rows(const core::Problem& p, const BackwardRowsTask& task, Scratch& scratch) {
  const HeadRules rules(p, task.sequence, task.head);
  const KeyRange seen = rules.scores.window().rows(task.row_begin, task.row_end);
  const std::int64_t num_tiles = ceil_div(task.sequence.seqlen_k, kBlockN);
  const std::int64_t dq_size = (task.row_end - task.row_begin) * padded(p.head_dim);
  scratch.reserve(QueryTile::floats(p) + GradientTile::floats(p) + LongSum::floats(dq_size, num_tiles) +
                  KeyTile::floats(p));
  QueryTile q = QueryTile::make(p, scratch);
  GradientTile tile = GradientTile::make(p, task.row_end - task.row_begin, task.sequence.seqlen_k, scratch);
  LongSum dq(dq_size, num_tiles, scratch);
  KeyTile k = KeyTile::make(p, scratch);

  bool finite = q.load(p, task.sequence, task.head, rules, task.row_begin, task.row_end, task.corrections);
  dq.clear();
  for (std::int64_t key = seen.begin / kBlockN * kBlockN; key < seen.end; key += kBlockN) {
    const std::int64_t num_keys = std::min<std::int64_t>(kBlockN, task.sequence.seqlen_k - key);
    if (!rules.scores.may_see(task.row_begin, task.row_end, key, key + num_keys)) continue;
    k.load(p, task.sequence, task.head / p.heads_per_group(), key, num_keys);
    finite &= tile.compute_operands(p, rules, q, k);
    add_to_rows(p, tile, q, k, dq.for_next_tile());
  }
  const Matrix dq_out = core::q_matrix(p.dq, task.sequence, task.head);
  return store_rows(dq_out, task.row_begin, q.num_rows, dq.result(), static_cast<float>(p.scale)) && finite;
}

}  // namespace

std::int64_t backward_keys_bytes_target(const core::Problem& p, const core::Sequence& s) {
  return keys_floats(p, s, ceil_div(s.seqlen_k, kBlockN)) * static_cast<std::int64_t>(sizeof(float));
}

bool backward_keys_target(const core::Problem& p, const BackwardKeysTask& task, Scratch& scratch) {
  return run_backward_keys(p, task, scratch);
}

bool backward_rows_target(const core::Problem& p, const BackwardRowsTask& task, Scratch& scratch) {
  return run_backward_rows(p, task, scratch);
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::cpu {

HWY_EXPORT(backward_keys_bytes_target);
HWY_EXPORT(backward_keys_target);
HWY_EXPORT(backward_rows_target);

std::int64_t backward_keys_bytes(const core::Problem& p, const core::Sequence& s) {
  return HWY_DYNAMIC_DISPATCH(backward_keys_bytes_target)(p, s);
}

bool backward_keys(const core::Problem& p, const BackwardKeysTask& task, Scratch& scratch) {
  const Bf16Registers registers;
  return HWY_DYNAMIC_DISPATCH(backward_keys_target)(p, task, scratch);
}

bool backward_rows(const core::Problem& p, const BackwardRowsTask& task, Scratch& scratch) {
  const Bf16Registers registers;
  return HWY_DYNAMIC_DISPATCH(backward_rows_target)(p, task, scratch);
}

}  // namespace attend::cpu
#endif
