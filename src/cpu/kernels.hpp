// Functions of the `cpu` backend that are compiled once per SIMD target. Each function runs the code of the active SIMD
// target. The functions do not check their arguments, because make_problem() has checked them.
#pragma once

#include "core/problem.hpp"
#include "cpu/capture_sums.hpp"
#include "cpu/gemm.hpp"
#include "cpu/scratch.hpp"

namespace attend::cpu {

/// Query rows [row_begin, row_end) of one head. There are at most kForwardBlockM rows, and row_begin is a multiple of
/// kPanel.
struct ForwardTask {
  core::Sequence sequence;
  std::int64_t head;
  std::int64_t row_begin;
  std::int64_t row_end;
};

/// Writes o and lse of the task's rows. Returns false if a result is not finite. The reference must then recompute the
/// rows. The reason is that a NaN or infinity of one row or key may have reached other rows. Tile products also
/// multiply masked entries, whose p is 0, and 0 * NaN is NaN.
bool forward_rows(const core::Problem& p, const ForwardTask& task, Scratch& scratch);

/// Returns the index of a query row in an array of shape (batch, num_heads_q, seqlen_q).
[[nodiscard]] inline std::int64_t delta_index(const core::Problem& p, const core::Sequence& s, std::int64_t head,
                                              std::int64_t row) {
  return (s.batch * p.num_heads_q + head) * p.q.shape[2] + s.q_begin + row;
}

/// Corrections for the backward pass, for query rows whose o or lse has a rounding error that would change the
/// gradients. The arrays are indexed by delta_index(). A null array means no correction.
struct RowCorrections {
  const float* deltas = nullptr;     ///< <dout, o> - dlse
  const float* log2_sums = nullptr;  ///< log2 of sum_j exp(s_ij - lse_i) for row i; it is 0 if lse is exact
};

/// Keys [key_begin, key_end) of one key head. key_begin is a multiple of kBlockN. key_end is a multiple of kBlockN, or
/// seqlen_k.
struct BackwardKeysTask {
  core::Sequence sequence;
  std::int64_t key_head;
  std::int64_t key_begin;
  std::int64_t key_end;
  /// If true, the task also writes dq of all query heads of the group. Allowed only if the task has all keys.
  bool with_dq;
  RowCorrections corrections;
};

/// Returns the bytes of scratch memory for a task with all keys of a sequence.
std::int64_t backward_keys_bytes(const core::Problem& p, const core::Sequence& s);

/// Writes dk and dv of the task's keys, and dq if requested. Returns false if a result is not finite; the reference
/// must then recompute the key head and its query heads.
bool backward_keys(const core::Problem& p, const BackwardKeysTask& task, Scratch& scratch);

/// Query rows [row_begin, row_end) of one head. There are at most kBackwardBlockM rows, and row_begin is a multiple of
/// kBackwardBlockM.
struct BackwardRowsTask {
  core::Sequence sequence;
  std::int64_t head;
  std::int64_t row_begin;
  std::int64_t row_end;
  RowCorrections corrections;
};

/// Writes dq of the task's rows. Returns false if a result is not finite; the reference must then recompute the key
/// head and its query heads.
bool backward_rows(const core::Problem& p, const BackwardRowsTask& task, Scratch& scratch);

/// Computes delta = sum_j p_ij dp_ij - dlse for each row of the task and writes it to `deltas`. With dropout, the usual
/// formula <dout, o> - dlse is not precise enough if o has 16 bits. The terms of a row's gradients may cancel, and the
/// rounding error of o may then exceed the gradients.
void exact_deltas(const core::Problem& p, const BackwardRowsTask& task, float* deltas, Scratch& scratch);

/// Returns whether the rounding of a row's lse may change its gradients. This happens if lse is large for a reason
/// other than the product q k^T, for example because of a large bias on all keys.
[[nodiscard]] bool lse_is_coarse(const core::Problem& p, const core::Sequence& s, std::int64_t head, std::int64_t row);

/// Writes log2 of sum_j exp(s_ij - lse_i) to `log2_sums`, for those rows of the task for which lse_is_coarse() is true.
/// Writes 0 if the sum differs from 1 by more than the rounding of lse can explain, because lse then includes keys
/// outside this problem.
void exact_log2_sums(const core::Problem& p, const BackwardRowsTask& task, float* log2_sums, Scratch& scratch);

/// One tile of dbias. The fields are indices into p.dbias; the index is 0 in a broadcast dimension.
struct DbiasTask {
  std::int64_t batch;
  std::int64_t head;
  std::int64_t row_begin;  ///< a multiple of kBackwardBlockM
  std::int64_t key_begin;  ///< a multiple of kBlockN
  RowCorrections corrections;
};

/// Writes the tile. Returns false if a result is not finite; the reference must then recompute dbias.
bool dbias_tile(const core::Problem& p, const DbiasTask& task, Scratch& scratch);

/// Writes p.captured_gradients. Returns false if a result is not finite; the reference must then recompute them.
bool capture_gradients(const core::Problem& p, const RowCorrections& corrections, int threads);

/// Computes the matrix product of tiles (gemm-inl.hpp) for benchmarks and tests.
void tile_gemm(const GemmArgs& args);

/// Returns Highway's name of the active SIMD target; "AVX3" is AVX-512.
const char* simd_target_name();

/// Selects the SIMD target at the first call, which must precede calls of all functions above. The target is the best
/// one of this machine, or the one that the environment variable ATTEND_SIMD names. Throws if ATTEND_SIMD names no
/// target that this processor can run.
void choose_simd_target();

}  // namespace attend::cpu
