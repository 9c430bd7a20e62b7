// The `cpu` backend, host side: cuts a problem into tasks, runs them on threads, and lets the reference redo what holds
// NaN or infinities.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <vector>

#include "core/problem.hpp"
#include "cpu/backends.hpp"
#include "cpu/kernels.hpp"
#include "cpu/parallel.hpp"
#include "cpu/reference.hpp"

namespace attend::cpu {
namespace {

using core::Problem;
using core::Sequence;

/// Threads that are worth their meeting: until they have met, one alone has done some 2^18 multiplications; on a busy
/// machine the meeting takes milliseconds.
int threads_for(const Problem& p) {
  constexpr double kWorkWorthThreads = 1 << 18;
  const double rows = static_cast<double>(p.num_sequences * p.num_heads_q) * static_cast<double>(p.max_seqlen_q);
  const double work = rows * static_cast<double>(p.max_seqlen_k) * static_cast<double>(p.head_dim + p.head_dim_v);
  return work < kWorkWorthThreads ? 1 : max_threads();
}

void forward(const Problem& p, Stream /*stream*/) {
  const std::int64_t blocks = ceil_div(p.max_seqlen_q, kForwardBlockM);
  const std::int64_t heads = p.num_sequences * p.num_heads_q;
  parallel_for(blocks * heads, threads_for(p), [&](std::int64_t index) {
    // Head by head, so that K and V of a head stay in the second-level cache from one task to the next; its last rows
    // first, because under a causal mask they are the longest tasks, and a long task last leaves threads idle.
    const std::int64_t head = index / blocks;
    const std::int64_t block = blocks - 1 - index % blocks;
    const Sequence sequence = p.sequence(head / p.num_heads_q);
    const std::int64_t row_begin = block * kForwardBlockM;
    if (row_begin >= sequence.seqlen_q) return;
    const ForwardTask task = {sequence, head % p.num_heads_q, row_begin,
                              std::min<std::int64_t>(row_begin + kForwardBlockM, sequence.seqlen_q)};
    if (!forward_rows(p, task, Scratch::of_this_thread())) {
      reference_forward_rows(p, sequence, task.head, task.row_begin, task.row_end);
    }
    Scratch::of_this_thread().release_if_large();
  });
}

/// Part of the threads that would be busy on average if `tasks` equal tasks ran on them.
double busy_share(std::int64_t tasks, std::int64_t threads) {
  return static_cast<double>(tasks) / static_cast<double>(ceil_div(tasks, threads) * threads);
}

/// Per key head: whether a task met NaN or infinities, so that the reference has to redo it. Written by many threads.
using RedoFlags = std::vector<std::atomic<bool>>;

/// dq, dk and dv, one task a key head: five products a tile.
void backward_by_group(const Problem& p, RedoFlags& redo) {
  parallel_for(p.num_sequences * p.num_heads_k, threads_for(p), [&](std::int64_t group) {
    const Sequence sequence = p.sequence(group / p.num_heads_k);
    const BackwardKeysTask task = {sequence, group % p.num_heads_k, 0, sequence.seqlen_k, true};
    if (!backward_keys(p, task, Scratch::of_this_thread())) redo[group] = true;
    Scratch::of_this_thread().release_if_large();
  });
}

/// The same in parts of the keys for dk and dv, and parts of the rows for dq: seven products a tile.
void backward_by_tile(const Problem& p, RedoFlags& redo) {
  const std::int64_t key_parts = ceil_div(p.max_seqlen_k, kBackwardKeysPerTask);
  const std::int64_t row_parts = ceil_div(p.max_seqlen_q, kBackwardBlockM);
  const std::int64_t key_tasks = p.num_sequences * p.num_heads_k * key_parts;
  const std::int64_t row_tasks = p.num_sequences * p.num_heads_q * row_parts;
  parallel_for(key_tasks + row_tasks, threads_for(p), [&](std::int64_t index) {
    Scratch& scratch = Scratch::of_this_thread();
    if (index < key_tasks) {  // the larger tasks first
      const std::int64_t group = index / key_parts;
      const Sequence sequence = p.sequence(group / p.num_heads_k);
      const std::int64_t begin = index % key_parts * kBackwardKeysPerTask;
      const std::int64_t end = std::min(begin + kBackwardKeysPerTask, sequence.seqlen_k);
      if (begin >= end) return;
      if (!backward_keys(p, {sequence, group % p.num_heads_k, begin, end, false}, scratch)) redo[group] = true;
    } else {
      const std::int64_t head = (index - key_tasks) / row_parts;
      const Sequence sequence = p.sequence(head / p.num_heads_q);
      const std::int64_t begin = (index - key_tasks) % row_parts * kBackwardBlockM;
      const std::int64_t end = std::min<std::int64_t>(begin + kBackwardBlockM, sequence.seqlen_q);
      if (begin >= end) return;
      if (!backward_rows(p, {sequence, head % p.num_heads_q, begin, end}, scratch))
        redo[head / p.heads_per_group()] = true;
    }
    scratch.release_if_large();
  });
}

void backward_bias(const Problem& p) {
  const Shape& shape = p.dbias->shape;
  const std::int64_t row_tiles = ceil_div(shape[2], kBackwardBlockM);
  const std::int64_t key_tiles = ceil_div(shape[3], kBlockN);
  std::atomic<bool> finite = true;
  parallel_for(shape[0] * shape[1] * row_tiles * key_tiles, threads_for(p), [&](std::int64_t index) {
    const std::int64_t row_tile = index / key_tiles % row_tiles;
    const std::int64_t head = index / key_tiles / row_tiles;
    const DbiasTask task = {head / shape[1], head % shape[1], row_tile * kBackwardBlockM, index % key_tiles * kBlockN};
    if (!dbias_tile(p, task, Scratch::of_this_thread())) finite = false;
    Scratch::of_this_thread().release_if_large();
  });
  if (!finite) reference_dbias(p);
}

void backward(const Problem& p, Stream /*stream*/) {
  constexpr double kWorthOfFiveInsteadOfSeven = 5.0 / 7.0;
  const std::int64_t groups = p.num_sequences * p.num_heads_k;
  RedoFlags redo(static_cast<std::size_t>(groups));
  if (busy_share(groups, threads_for(p)) >= kWorthOfFiveInsteadOfSeven) {
    backward_by_group(p, redo);
  } else {
    backward_by_tile(p, redo);
  }
  parallel_for(groups, threads_for(p), [&](std::int64_t group) {
    if (redo[group]) reference_backward_group(p, p.sequence(group / p.num_heads_k), group % p.num_heads_k);
  });
  if (p.dbias) backward_bias(p);
}

std::optional<std::string> unsupported(const Problem& p) {
  if (p.bias && p.bias->dtype == DType::kF64) return "bias: dtype f64, compute 'cpu' allows f32, f16, bf16";
  return core::dtype_lack(p, "cpu", std::array{DType::kF32, DType::kF16, DType::kBF16});
}

}  // namespace

Scratch& Scratch::of_this_thread() {
  thread_local Scratch scratch;
  return scratch;
}

void Scratch::throw_out_of_memory(std::int64_t floats) {
  throw Error(ErrorCode::kInternal, fmt::format("out of memory: {} bytes of scratch for one thread", floats * 4));
}

const core::Backend& fast_backend() {
  static const core::Backend kBackend = {.name = "cpu",
                                         .description = "tiled online softmax, SIMD, threads",
                                         .device = DeviceType::kCPU,
                                         .forward = forward,
                                         .backward = backward,
                                         .unsupported = unsupported};
  return kBackend;
}

}  // namespace attend::cpu

namespace attend {

int cpu_threads() {
  return cpu::max_threads();
}

std::string cpu_simd_target() {
  return cpu::simd_target_name();
}

}  // namespace attend
