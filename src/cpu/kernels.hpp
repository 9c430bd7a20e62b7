// The SIMD side of the `cpu` backend as the host side calls it: each function runs the code of the best target here.
// The arguments are trusted; everything was checked when the Problem was made.
#pragma once

#include "core/problem.hpp"
#include "cpu/gemm.hpp"
#include "cpu/scratch.hpp"

namespace attend::cpu {

/// Rows [row_begin, row_end) of one head: at most kForwardBlockM of them, row_begin a multiple of kForwardBlockM.
struct ForwardTask {
  core::Sequence sequence;
  std::int64_t head;
  std::int64_t row_begin;
  std::int64_t row_end;
};

/// Writes o and lse of the task's rows. False: some of it is not finite. Then a NaN or infinity of one row or key may
/// have spoilt others through products with masked zeros (0 * NaN = NaN), and the reference has to redo the rows.
bool forward_rows(const core::Problem& p, const ForwardTask& task, Scratch& scratch);

/// Keys [key_begin, key_end) of one key head: key_begin a multiple of kBlockN, key_end one too or seqlen_k.
struct BackwardKeysTask {
  core::Sequence sequence;
  std::int64_t key_head;
  std::int64_t key_begin;
  std::int64_t key_end;
  bool with_dq;  ///< also write dq of all query heads of the group; only for a task that has all keys
};

/// Writes dk and dv of the task's keys (and dq). False as for forward_rows; then the group has to be redone.
bool backward_keys(const core::Problem& p, const BackwardKeysTask& task, Scratch& scratch);

/// Rows [row_begin, row_end) of one query head: at most kBackwardBlockM, row_begin a multiple of it.
struct BackwardRowsTask {
  core::Sequence sequence;
  std::int64_t head;
  std::int64_t row_begin;
  std::int64_t row_end;
};

/// Writes dq of the task's rows. False as for backward_keys.
bool backward_rows(const core::Problem& p, const BackwardRowsTask& task, Scratch& scratch);

/// One tile of dbias: indices into p.dbias, 0 in dimensions that it is broadcast in.
struct DbiasTask {
  std::int64_t batch;
  std::int64_t head;
  std::int64_t row_begin;  ///< a multiple of kBackwardBlockM
  std::int64_t key_begin;  ///< a multiple of kBlockN
};

/// Writes the tile. False: not finite, then dbias has to be redone.
bool dbias_tile(const core::Problem& p, const DbiasTask& task, Scratch& scratch);

/// The matrix product of the tiles, for measurements and tests. See gemm-inl.hpp.
void tile_gemm(const GemmArgs& args);

/// Name of the SIMD target that runs, as Highway calls it: "AVX3" is AVX-512.
const char* simd_target_name();

}  // namespace attend::cpu
