// The SIMD side of the `cpu` backend as the host side calls it: each function runs the code of the best target here.
// The arguments are trusted; everything was checked when the Problem was made.
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

/// Writes o and lse of the task's rows. False: some of it is not finite. Then a NaN or infinity of one row or key may
/// have spoilt others through products with masked zeros (0 * NaN = NaN), and the reference has to redo the rows.
bool forward_rows(const core::Problem& p, const ForwardTask& task, Scratch& scratch);

/// Where a query row's value is in an array (batch, num_heads_q, seqlen_q).
[[nodiscard]] inline std::int64_t delta_index(const core::Problem& p, const core::Sequence& s, std::int64_t head,
                                              std::int64_t row) {
  return (s.batch * p.num_heads_q + head) * p.q.shape[2] + s.q_begin + row;
}

/// What backward needs of query rows beyond o and lse where these are too coarse, each by delta_index(); null: nothing.
struct RowCorrections {
  const float* deltas = nullptr;     ///< <dout, o> - dlse
  const float* log2_sums = nullptr;  ///< log2 of sum_j exp(s_ij - lse_i): 0 if lse were exact
};

/// Keys [key_begin, key_end) of one key head: key_begin a multiple of kBlockN, key_end one too or seqlen_k.
struct BackwardKeysTask {
  core::Sequence sequence;
  std::int64_t key_head;
  std::int64_t key_begin;
  std::int64_t key_end;
  bool with_dq;  ///< also write dq of all query heads of the group; only for a task that has all keys
  RowCorrections corrections;
};

/// Scratch of a task with all keys of a sequence.
std::int64_t backward_keys_bytes(const core::Problem& p, const core::Sequence& s);

/// Writes dk and dv of the task's keys (and dq). False as for forward_rows; then the group has to be redone.
bool backward_keys(const core::Problem& p, const BackwardKeysTask& task, Scratch& scratch);

/// Rows [row_begin, row_end) of one query head: at most kBackwardBlockM, row_begin a multiple of it.
struct BackwardRowsTask {
  core::Sequence sequence;
  std::int64_t head;
  std::int64_t row_begin;
  std::int64_t row_end;
  RowCorrections corrections;
};

/// Writes dq of the task's rows. False as for backward_keys.
bool backward_rows(const core::Problem& p, const BackwardRowsTask& task, Scratch& scratch);

/// <dout, o> - dlse of the task's rows into `deltas`, as sum_j p_ij dp_ij - dlse: with dropout an o that was rounded to
/// 16 bits may hide that a row's gradients cancel.
void exact_deltas(const core::Problem& p, const BackwardRowsTask& task, float* deltas, Scratch& scratch);

/// Whether the rounding of a row's lse may be seen in its gradients: lse is large and not all of it is a product's, as
/// below a bias that is large on all keys.
[[nodiscard]] bool lse_is_coarse(const core::Problem& p, const core::Sequence& s, std::int64_t head, std::int64_t row);

/// log2 of sum_j exp(s_ij - lse_i) into `log2_sums`, of those of the task's rows whose lse_is_coarse(). 0 where it is
/// more than the rounding of lse explains, which then is that of other keys too.
void exact_log2_sums(const core::Problem& p, const BackwardRowsTask& task, float* log2_sums, Scratch& scratch);

/// One tile of dbias: indices into p.dbias, 0 in dimensions that it is broadcast in.
struct DbiasTask {
  std::int64_t batch;
  std::int64_t head;
  std::int64_t row_begin;  ///< a multiple of kBackwardBlockM
  std::int64_t key_begin;  ///< a multiple of kBlockN
  RowCorrections corrections;
};

/// Writes the tile. False: not finite, then dbias has to be redone.
bool dbias_tile(const core::Problem& p, const DbiasTask& task, Scratch& scratch);

/// Writes p.captured_gradients. False: not finite, then they have to be redone.
bool capture_gradients(const core::Problem& p, const RowCorrections& corrections, int threads);

/// The matrix product of the tiles, for measurements and tests. See gemm-inl.hpp.
void tile_gemm(const GemmArgs& args);

/// Name of the SIMD target that runs, as Highway calls it: "AVX3" is AVX-512.
const char* simd_target_name();

/// Fixes the target at its first call, before anything of the above runs: the best one here, or what the environment
/// variable ATTEND_SIMD names. Throws where it names none that this processor can run.
void choose_simd_target();

}  // namespace attend::cpu
