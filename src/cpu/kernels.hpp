// Interface between the host side and the SIMD side of the `cpu` backend. Each function runs the code of the best SIMD
// target of this machine. The functions do not check their arguments, because make_problem() has checked them.
#pragma once

#include "core/problem.hpp"
#include "cpu/capture_sums.hpp"
#include "cpu/gemm.hpp"
#include "cpu/scratch.hpp"

namespace attend::cpu {

/// Rows [row_begin, row_end) of one head: at most kForwardBlockM of them, row_begin a multiple of kPanel.
struct ForwardTask {
  core::Sequence sequence;
  std::int64_t head;
  std::int64_t row_begin;
  std::int64_t row_end;
};

/// Writes o and lse of the task's rows. Returns false if a result is not finite. A NaN or infinity of one row or key
/// may then have reached other rows through products with masked zeros (0 * NaN = NaN), and the reference has to
/// recompute the rows.
bool forward_rows(const core::Problem& p, const ForwardTask& task, Scratch& scratch);

/// Returns the index of a query row in an array (batch, num_heads_q, seqlen_q).
[[nodiscard]] inline std::int64_t delta_index(const core::Problem& p, const core::Sequence& s, std::int64_t head,
                                              std::int64_t row) {
  return (s.batch * p.num_heads_q + head) * p.q.shape[2] + s.q_begin + row;
}

/// Corrections of query rows for backward, for rows whose o and lse are too coarse. Indexed by delta_index(); null: no
/// correction.
struct RowCorrections {
  const float* deltas = nullptr;     ///< <dout, o> - dlse
  const float* log2_sums = nullptr;  ///< log2 of sum_j exp(s_ij - lse_i), which is 0 for an exact lse
};

/// Keys [key_begin, key_end) of one key head. key_begin is a multiple of kBlockN; key_end is a multiple of kBlockN or
/// seqlen_k.
struct BackwardKeysTask {
  core::Sequence sequence;
  std::int64_t key_head;
  std::int64_t key_begin;
  std::int64_t key_end;
  bool with_dq;  ///< true: also write dq of all query heads of the group; only if the task has all keys
  RowCorrections corrections;
};

/// Returns the bytes of scratch memory for a task with all keys of a sequence.
std::int64_t backward_keys_bytes(const core::Problem& p, const core::Sequence& s);

/// Writes dk and dv of the task's keys (and dq). Returns false as forward_rows does; the reference then has to
/// recompute the group.
bool backward_keys(const core::Problem& p, const BackwardKeysTask& task, Scratch& scratch);

/// Rows [row_begin, row_end) of one query head: at most kBackwardBlockM, row_begin a multiple of it.
struct BackwardRowsTask {
  core::Sequence sequence;
  std::int64_t head;
  std::int64_t row_begin;
  std::int64_t row_end;
  RowCorrections corrections;
};

/// Writes dq of the task's rows. Returns false as backward_keys does.
bool backward_rows(const core::Problem& p, const BackwardRowsTask& task, Scratch& scratch);

/// Writes <dout, o> - dlse of the task's rows to `deltas`, computed as sum_j p_ij dp_ij - dlse. With dropout, the
/// rounding of o to 16 bits may be larger than the gradients of a row, which can cancel.
void exact_deltas(const core::Problem& p, const BackwardRowsTask& task, float* deltas, Scratch& scratch);

/// Returns whether rounding of a row's lse may change its gradients. This happens if lse is large and the product q k^T
/// does not account for all of it, for example with a bias that is large on all keys.
[[nodiscard]] bool lse_is_coarse(const core::Problem& p, const core::Sequence& s, std::int64_t head, std::int64_t row);

/// Writes log2 of sum_j exp(s_ij - lse_i) to `log2_sums`, for rows of the task with lse_is_coarse(). Writes 0 if the
/// rounding of lse cannot explain the sum; lse then covers other keys too.
void exact_log2_sums(const core::Problem& p, const BackwardRowsTask& task, float* log2_sums, Scratch& scratch);

/// One tile of dbias, as indices into p.dbias; the index is 0 in broadcast dimensions.
struct DbiasTask {
  std::int64_t batch;
  std::int64_t head;
  std::int64_t row_begin;  ///< a multiple of kBackwardBlockM
  std::int64_t key_begin;  ///< a multiple of kBlockN
  RowCorrections corrections;
};

/// Writes the tile. Returns false if a result is not finite; the reference then has to recompute dbias.
bool dbias_tile(const core::Problem& p, const DbiasTask& task, Scratch& scratch);

/// Writes p.captured_gradients. Returns false if a result is not finite; the reference then has to recompute them.
bool capture_gradients(const core::Problem& p, const RowCorrections& corrections, int threads);

/// Matrix product of the tiles, for benchmarks and tests. See gemm-inl.hpp.
void tile_gemm(const GemmArgs& args);

/// Returns Highway's name of the active SIMD target; "AVX3" is AVX-512.
const char* simd_target_name();

/// Fixes the SIMD target at the first call, which must precede all functions above. The target is the best one of this
/// machine, or the one that the environment variable ATTEND_SIMD names. Throws if ATTEND_SIMD names no target that this
/// processor can run.
void choose_simd_target();

}  // namespace attend::cpu
